"""Dropped and quarantined records in the viewer."""

import json

from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view.page_requests import Requests


def read_numbers(requests, **words):
    answer = requests.read_rows({name: value if isinstance(value, list) else [value] for name, value in words.items()})
    return [row["number"] for row in answer["rows"]], answer


def test_reasons_of_dropped_records(web):
    requests = Requests(open_collections([web]))
    name = "out · dropped"
    paths = sorted((web / "dropped").glob("*.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    _, answer = read_numbers(requests, name=name)
    assert answer["total"] == len(lines)
    reasons = dict(answer["facets"]["reason"])
    assert reasons == {
        reason: sum(f"{line['step']}: {line['reason']}" == reason for line in lines) for reason in reasons
    }
    source = lines[0]["source"]
    _, answer = read_numbers(requests, name=name, source=source)
    assert answer["total"] == sum(line["source"] == source for line in lines)
    shown = requests.collections[name]._lines
    number, line = next((number, line) for number, line in enumerate(shown) if line.get("thresholds"))
    for words, kept in (({"reason": line["step"]}, "step"), ({"reason": line["reason"]}, "reason")):  # a part suffices
        _, answer = read_numbers(requests, name=name, **words)
        assert answer["total"] == sum(line[kept] == words["reason"] for line in lines) > 0
    [(rule, value), *_] = line["failed"].items()
    sign = "<" if rule.startswith("min") else ">"
    why = requests.read_record({"name": [name], "row": [str(number)]})["why"]
    assert why.startswith(f"{value:.6g} {sign} {line['thresholds'][rule]:.6g}")
    score = requests.collections[name].score_names[0]
    _, answer = read_numbers(requests, name=name, score=f"{score}:0:1e9")
    assert answer["total"] == sum(f"{line['step']}.{key}" == score for line in lines for key in line.get("failed", {}))
