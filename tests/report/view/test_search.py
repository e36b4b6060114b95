"""Searches in the rows of every kind of collection."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view.rows import Filters, RowRange, Rows, Selection
from gristmill.report.view.search import make_line_blocks, make_record_blocks, search_rows
from gristmill.shards.dataset import open_dataset


def find(rows, query, kind="text", filters=None, start=0):
    hits = search_rows(rows, Selection(rows, filters or Filters()), query, kind, start)
    return [hit for hit in hits if isinstance(hit, dict)]


def test_a_search_finds_texts_expressions_and_tokens(mixed_rows):
    rows = open_collections([mixed_rows])["out"]
    dataset = open_dataset(mixed_rows)
    texts = [dataset.decode(number) for number in range(len(dataset))]
    wanted = {"web text number 17", "web text number 27"}
    for query, kind, expected in (
        ("BOOKS TEXT number 4", "text", [n for n, text in enumerate(texts) if "books text number 4" in text]),
        (r"web\s+text number (1|2)7", "regex", [n for n, text in enumerate(texts) if any(w in text for w in wanted)]),
        ("no such words", "text", []),
    ):
        hits = find(rows, query, kind)
        assert [hit["number"] for hit in hits] == expected
        for hit in hits:
            assert hit["before"] + hit["match"] + hit["after"] in texts[hit["number"]]
    token = int(dataset[3]["input_ids"][0])
    lengths = [int(dataset[n]["lengths"].sum()) for n in range(len(dataset))]
    expected = [n for n in range(len(dataset)) if token in dataset[n]["input_ids"][: lengths[n]]]
    assert [hit["number"] for hit in find(rows, str(token), "token")] == expected[:200]
    assert [hit["number"] for hit in find(rows, str(token), "token", Filters(split="validation"))] == [
        number for number in expected if number >= len(dataset.split("train"))
    ]
    assert [hit["number"] for hit in find(rows, str(token), "token", start=10)] == [n for n in expected if n >= 10]
    for query, kind in (("(", "regex"), ("(?=x)", "regex"), ("seven", "token")):
        with pytest.raises(UsageError):
            find(rows, query, kind)


@settings(max_examples=30)
@given(st.text(max_size=30), st.integers(0, 25), st.integers(1, 5))
def test_a_text_is_found_wherever_it_is(text, start, size):
    query = text[start : start + size]
    if query.strip():

        class Texts(Rows):
            @property
            def ranges(self):
                return [RowRange(start=0, rows=2)]

            def read_blocks(self, start, end):
                return make_record_blocks([{"text": "\u2603"}, {"text": text}])

        [hit] = [hit for hit in find(Texts(), query) if hit["number"] == 1]
        assert hit["before"] + hit["match"] + hit["after"] in text


EXPRESSIONS = [
    "ab+a", "a(?:b|c)d?a", r"a\.b", "[ab]a{2}b", "[[:alpha:]ba]b a", "ab|ba", r"\bab\b", "a?ba", "ab*", "中a?b",
    r"\x61b", "^ab$", "a k", "(?i)aB", r"\Qa.b\E", "a[^]b]b", r"ab\sba", "b{,2}a",
]  # fmt: skip


@settings(max_examples=150)
@given(
    st.lists(st.text(st.sampled_from('aabBcksK\u017f\u212a"\\/é中.,: 1e{}\n'), max_size=8), min_size=1, max_size=5),
    st.data(),
)
def test_lines_are_searched_as_records_are(texts, data):
    """Looking at the bytes of JSON first finds what decoding every line finds, however the JSON was written."""
    kind = data.draw(st.sampled_from(["text", "regex"]))
    parts = [text[start : start + 4] for text in texts for start in range(len(text)) if text[start : start + 4].strip()]
    queries = ["k", "ks", "s a", ":", '"', "1500", *parts] if kind == "text" else EXPRESSIONS
    query = data.draw(st.sampled_from(queries))
    column = data.draw(st.sampled_from(["text", "other"]))  # without a text, records are shown as JSON
    ascii_only = data.draw(st.booleans())
    lines = [
        json.dumps({column: text, "n": 1}, ensure_ascii=ascii_only).replace("b", "\\u0062", 1)[:-2]
        + '15.0e2 , "m":true}'
        for text in texts
    ]

    class Lines(Rows):
        @property
        def ranges(self):
            return [RowRange(start=0, rows=len(texts))]

        def read_blocks(self, start, end):
            return make_line_blocks(["\n".join(lines).encode()], json.loads)

    class Records(Lines):
        def read_blocks(self, start, end):
            return make_record_blocks([json.loads(line) for line in lines])

    assert find(Lines(), query, kind) == find(Records(), query, kind)


@pytest.mark.parametrize("form", ["arrow", "jsonl", "parquet", "webdataset"])
def test_a_search_in_every_format(tmp_path, form):
    texts = [f"text {n} of {'a needle' if n % 7 == 3 else 'hay'}" for n in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    read = steps.Read(read=str(tmp_path / "in.jsonl"))
    recipe = gm.Recipe(sources={"web": read}, steps=[steps.Write(format=form)], output=str(tmp_path / "out"))
    gm.run(recipe, backend="serial", progress=False)
    rows = open_collections([tmp_path / "out"])["out"]
    for query, kind in (("A Needle", "text"), ("(a|the) need.e", "regex"), ("[n]e+d[l]", "regex")):
        hits = [hit["number"] for hit in find(rows, query, kind)]
        assert [rows.describe_row(number)["text"] for number in hits] == [text for text in texts if "needle" in text]
