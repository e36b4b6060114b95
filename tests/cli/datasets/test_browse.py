"""`gristmill view` without a browser: a saved page, and what it refuses. The viewer is in `report/view`.

`gristmill diff`: what differs, and its exit codes. How it is found is in `report`.
"""

import json
import shutil
from urllib.parse import parse_qs

from click.testing import CliRunner

import gristmill as gm
from gristmill import steps
from gristmill.cli.datasets.browse import view_command


def test_chosen_rows_are_saved(gristmill, dataset, tmp_path):
    page = tmp_path / "page.html"
    assert "2 rows" in gristmill("view", dataset, "--save", page, "--rows", "0,3").out
    assert page.read_text().lower().startswith("<!doctype html>")
    gristmill("view", dataset, "--save", page, "--show", "quarantined")
    assert "not json [bold]" in page.read_text()


def test_what_cannot_be_saved_is_wrong_use(gristmill, dataset, tmp_path):
    assert "--save" in gristmill("view", dataset, "--show", "dropped", fails=2).err
    gristmill("view", dataset, "--save", tmp_path / "page.html", "--show", "nothing", fails=2)
    gristmill("view", tmp_path / "missing", "--save", tmp_path / "page.html", fails=2)


def test_a_dataset_equals_its_copy(gristmill, dataset, tmp_path):
    copy = shutil.copytree(dataset, tmp_path / "copy")
    assert gristmill("diff", dataset, copy).out.startswith("equal: ")
    assert json.loads(gristmill("diff", dataset, copy, "--json").out)["equal"] is True


def test_shards_records_and_inputs_that_differ_are_named(gristmill, dataset, project):
    data = project / "data.jsonl"
    data.write_text(data.read_text().replace("document 13", "dokument 13"))
    gristmill("run", project / "recipe.yaml", "--backend", "serial")
    said = gristmill("diff", dataset, project / "out", fails=1).out
    assert said.startswith("different: ")
    assert "train/web: 1 of 1 shards of A and 1 of 1 of B differ" in said
    assert "data.jsonl: " in said.partition("input files:")[2]


def test_a_difference_begins_with_its_size_and_its_cause(gristmill, tmp_path):
    """Three documents change, one of them only in white space; one is added, and one removed."""
    texts = [f"document {number} of some words" for number in range(20)]
    for name, change in (("a", {}), ("b", {3: "document 3 of  some words", 5: "other words\r\n", 19: "new"})):
        lines = [
            {"text": change.get(n, text), "lang": "x" if n == 5 and change else "en"} for n, text in enumerate(texts)
        ]
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[name == "b" :]))
        (tmp_path / f"{name}.yaml").write_text(
            f"output: {name}\nsources: {{web: {{read: data.jsonl}}}}\n"
            f"steps: [length: {{min_chars: {2 + bool(change)}}}, write: {{format: jsonl}}]\n"
        )
        gristmill("run", f"{name}.yaml", "--backend", "serial", folder=tmp_path)
    said = gristmill("diff", "a", "b", folder=tmp_path, fails=1).out
    first, *_ = said.splitlines()
    assert "20 → 19 records (-1)" in first
    assert "3 changed, 1 removed" in first
    places = [said.index(word) for word in ("min_chars: 2 in A, 3 in B", "3 documents changed", "1 document removed")]
    assert places == sorted(places), "the cause, then what changed, then what is gone"
    assert "text, lang: " in said
    assert "of··some·words" in said
    assert "document·5" not in said, "what differs in more than white space is shown as it is"


def test_no_dataset_is_wrong_use(gristmill, dataset, tmp_path):
    gristmill("diff", dataset, tmp_path, fails=2)


def test_a_place_of_a_report_is_opened(tmp_path, monkeypatch):
    (tmp_path / "in.jsonl").write_text('{"text": "a long enough text"}\n{"text": "short"}\n')
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "in.jsonl"))},
        steps=[steps.Length(min_chars=9), steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
        keep_dropped="samples",
    )
    gm.run(recipe, backend="serial", progress=False)

    class QuietViewer:
        url, port = "http://127.0.0.1:1/", 1

        def __init__(self, *_): ...

        def serve(self): ...

    monkeypatch.setattr("gristmill.report.view.server.Viewer", QuietViewer)
    place = f"{tmp_path}/out#show=dropped&reason=length%3A%20too_short"
    shown = CliRunner().invoke(view_command, [place, "--no-browser"], catch_exceptions=False).output
    fragment = shown.partition("#show=")[2].split()[0]
    assert parse_qs(f"show={fragment}") == {"show": ["out · dropped"], "reason": ["length: too_short"]}
