"""What differs between two datasets, row by row."""

import json

import gristmill as gm
from gristmill import steps
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view.page_requests import Requests
from gristmill.report.view.rows import Filters, Selection
from gristmill.report.view.search import search_rows


def read_numbers(requests, **words):
    answer = requests.read_rows({name: value if isinstance(value, list) else [value] for name, value in words.items()})
    return [row["number"] for row in answer["rows"]], answer


def find(rows, query, kind="text", filters=None, start=0):
    hits = search_rows(rows, Selection(rows, filters or Filters()), query, kind, start)
    return [hit for hit in hits if isinstance(hit, dict)]


def make_dataset(folder, texts, output, **pack):
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(folder / "in.jsonl"))},
        steps=[steps.Write(format="arrow")],
        output=str(folder / output),
    )
    gm.run(recipe, backend="serial", progress=False)
    return folder / output


def test_two_datasets_side_by_side(tmp_path):
    texts = [f"text {n} of many words" for n in range(20)]
    a = make_dataset(tmp_path, texts, "a")
    texts[4] = "text 4 of MANY words"  # the same length: all origins stay
    b = make_dataset(tmp_path, [*texts, "one more"], "b")
    collections = open_collections([a, b])
    assert next(iter(collections)) == "differences"
    requests = Requests(collections)
    _, answer = read_numbers(requests, name="differences")
    assert answer["facets"]["reason"] == [("changed", 1), ("only in b", 1)]
    assert [row["lines"][0]["text"] for row in answer["rows"]][:1] == ["text 4 of [many] → text 4 of [MANY]"]
    changed, added = (requests.read_record({"row": [str(number)]}) for number in (0, 1))
    assert [[piece for piece in side["pieces"] if piece[1]] for side in changed["sides"]] == [
        [("many", 1)],
        [("MANY", 1)],
    ]
    assert [side["row"] for side in changed["sides"]] == [4, 4]
    assert [side["row"] for side in added["sides"]] == [None, 20]
    assert changed["origin"].startswith("web:in.jsonl@")  # not a path of this machine
    assert [hit["number"] for hit in find(collections["differences"], "one more")] == [1]
    same = Requests(open_collections([a, a])).read_rows({"name": ["differences"]})
    assert same["rows"] == []
    assert "same bytes" in same["note"]


def test_long_differences_are_cut_but_searched(tmp_path):
    words = "equal words " * 20_000
    a = make_dataset(tmp_path, [f"{words}left{words}", "x" * 200_000], "a")
    b = make_dataset(tmp_path, [f"{words}LEFT{words}"], "b")
    rows = open_collections([a, b])["differences"]
    changed, single = rows.describe_row(0)["sides"], rows.describe_row(1)["sides"]
    assert [side["pieces"][1] for side in changed] == [("leftequal", 1), ("LEFTequal", 1)]
    assert sum(len(text) for side in changed + single for text, _ in side["pieces"]) < 150_000
    assert "characters are not shown" in single[0]["pieces"][0][0]
    assert [hit["number"] for hit in find(rows, "LEFTequal")] == [0]
