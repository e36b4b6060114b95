"""What the viewer shows, without a browser: filters that narrow each other, searches, jumps, differences, pictures."""

import json
import shutil
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.pictures import photo
from gristmill_testing.small_tokenizers import trained
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.plain_json import restore_pictures
from gristmill.report.view.describe import describe_record
from gristmill.report.view.requests import Requests
from gristmill.report.view.row_blocks import make_line_blocks, make_record_blocks
from gristmill.report.view.rows import Filters, RowRange, Rows, ScoreRange, Selection, count_facets, count_rows
from gristmill.report.view.search import search_rows
from gristmill.report.write import load_report
from gristmill.shards.dataset import open_dataset
from gristmill.stream import Stream

WORDS = "gopher_quality.words"


def read_score(folder, name):
    """The score of each document by its origin, read with pyarrow alone."""
    scores = {}
    for path in sorted(folder.glob("scores/*/*.arrow")):
        for row in pa.ipc.open_stream(pa.memory_map(str(path))).read_all().to_pylist():
            origin = row["origin"]
            scores[origin["file"], origin["position"], origin["part"]] = row[name]
    return scores


def list_documents(dataset):
    """(row, split, source, origin) of every document."""
    row = 0
    for split, source, shard in dataset.manifest.shards():
        for record in pa.ipc.open_stream(pa.memory_map(str(dataset.folder / shard.path))).read_all().to_pylist():
            for origin in record.get("origins") or [record["origin"]]:
                yield row, split, source, (origin["file"], origin["position"], origin["part"])
            row += 1


def read_numbers(requests, **words):
    answer = requests.read_rows({name: value if isinstance(value, list) else [value] for name, value in words.items()})
    return [row["number"] for row in answer["rows"]], answer


@pytest.mark.parametrize("name", ["web", "mixed_rows"])
def test_filters_narrow_each_other(request, name):
    folder = request.getfixturevalue(name)
    requests = Requests(open_collections([folder]))
    scores = read_score(folder, WORDS)
    documents = list(list_documents(open_dataset(folder)))
    values = sorted(scores[origin] for *_, origin in documents)
    low, high = values[len(values) // 4], values[len(values) // 2]
    splits, sources = {"", *(d[1] for d in documents)}, {"", *(d[2] for d in documents)}
    for split, source, scored in product(sorted(splits), sorted(sources), (False, True)):

        def keep(document, *, split=split, source=source, scored=scored):
            _, own_split, own_source, origin = document
            in_score = not scored or low <= scores[origin] <= high
            return split in ("", own_split) and source in ("", own_source) and in_score

        expected = sorted({document[0] for document in documents if keep(document)})
        words = {"split": split, "source": source, "count": "3", "score": [f"{WORDS}:{low}:{high}"] if scored else []}
        numbers, answer = read_numbers(requests, **words)
        assert numbers == expected[:3]
        assert answer["total"] == len(expected)
        # The counts of a choice are those of the page that it would open.
        for other, number in answer["facets"]["split"]:
            assert number == len({d[0] for d in documents if keep(d, split=other)})
    facet = answer["facets"]["scores"][0]
    known = [scores[d[3]] for d in documents if d[1] == split and d[2] == source]
    assert sum(facet["counts"]) == len(known)  # the filter by the score itself does not narrow its own histogram


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 40), st.data())
def test_a_selection_is_the_chosen_rows_in_order(sizes, row, data):
    class Numbered(Rows):
        title = "numbers"

        @property
        def ranges(self):
            starts = np.cumsum([0, *sizes]).tolist()
            pairs = enumerate(zip(starts, sizes, strict=False))
            return [RowRange(source=str(n % 2), start=start, rows=size) for n, (start, size) in pairs]

        def read_scores(self, name):
            return np.repeat(np.arange(sum(sizes)), 2), values

    values = np.array(
        data.draw(st.lists(st.sampled_from([0.0, 1.0, np.nan]), min_size=2 * sum(sizes), max_size=2 * sum(sizes)))
    )
    rows = Numbered()
    for source, scores in product(("", "0", "1", "2"), ((), ("x:1:",))):
        filters = Filters(source=source, scores=tuple(map(ScoreRange.parse, scores)))
        expected = [
            number for part in rows.ranges for number in range(part.start, part.start + part.rows)
            if source in ("", part.source) and (not scores or 1.0 in values[2 * number : 2 * number + 2])
        ]  # fmt: skip
        selection = Selection(rows, filters)
        assert [selection.row(place) for place in range(len(selection))] == expected
        assert selection.find(row) == sum(number < row for number in expected)
        assert np.flatnonzero(selection.mask(0, sum(sizes))).tolist() == expected
        assert sum(number for _, number in count_facets(rows, Filters(scores=filters.scores))["source"]) >= len(
            expected
        )


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
    score = requests.collections[name].score_names[0]
    _, answer = read_numbers(requests, name=name, score=f"{score}:0:1e9")
    assert answer["total"] == sum(f"{line['step']}.{key}" == score for line in lines for key in line.get("failed", {}))


def test_a_step_shows_the_rows_of_the_stream(mixed_rows):
    requests = Requests(open_collections([mixed_rows]))
    stream, dataset = Stream(mixed_rows), open_dataset(mixed_rows)
    for step in (0, 3):
        numbers, answer = read_numbers(requests, step=str(step), batch="3", world="2", count="100")
        ids = np.concatenate([stream.batch(step, 3, rank, 2)["input_ids"] for rank in range(2)])
        assert [dataset[number]["input_ids"].tolist() for number in numbers] == ids.tolist()
        assert [row["step"]["rank"] for row in answer["rows"]] == [0, 0, 0, 1, 1, 1]
    mixture = requests.describe_mixture({"steps": ["200"], "batch": ["4"]})
    shares = np.mean([point["shares"] for point in mixture["points"]], axis=0)
    assert dict(zip(mixture["sources"], shares.round(2).tolist(), strict=True)) == {"web": 0.75, "books": 0.25}
    assert [point["step"] for point in mixture["points"]][:2] == [0, 3]


def test_a_document_is_found_by_its_origin(mixed_rows, web):
    for folder in (mixed_rows, web):
        rows = open_collections([folder])["out"]
        for number in (0, 5, len(rows.dataset) - 1):
            described = rows.describe_row(number)
            for place in [entry["origin"] for entry in described.get("documents", ())] or [described["origin"]]:
                found = rows.describe_row(rows.find_document(place))
                assert place in [entry["origin"] for entry in found.get("documents", ())] or found["origin"] == place
        for place in ("web:nothing.jsonl@0", "nonsense", "web:a@99999999999999999999999"):
            with pytest.raises(UsageError):
                rows.find_document(place)


def find(rows, query, kind="text", filters=None, start=0):
    hits = search_rows(rows, Selection(rows, filters or Filters()), query, kind, start)
    return [hit for hit in hits if not isinstance(hit, int)]


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
    changed, added = answer["rows"]
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


def test_tokens_far_inside_a_long_document(tmp_path, rows):
    chain = [steps.Tokenize(tokenizer=str(rows.parent / "tokenizer")), steps.Write(format="arrow")]
    for name, word in (("a", "one"), ("b", "two")):
        (tmp_path / "in.jsonl").write_text(json.dumps({"text": "7 " * 20_000 + word}) + "\n")
        read = steps.Read(read=str(tmp_path / "in.jsonl"))
        recipe = gm.Recipe(sources={"web": read}, steps=chain, output=str(tmp_path / name))
        gm.run(recipe, backend="serial", progress=False)
    sides = open_collections([tmp_path / "a", tmp_path / "b"])["differences"].describe_row(0)["sides"]
    assert ["".join(token[1] for token in side["tokens"] if token[-1]) for side in sides] == [" one", " two"]


def test_pictures_are_sent_as_what_they_are(tmp_path):
    import pyarrow.parquet as pq

    picture = photo(1, "PNG")
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    table = pa.table({
        "image": [{"bytes": picture, "path": "a.png"}, {"bytes": svg, "path": "b.png"}],
        "more": pa.array([[picture, picture], None], pa.list_(pa.binary())),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    rows = open_collections([tmp_path / "a.parquet"])["files"]
    assert [entry["column"] for entry in rows.describe_row(0)["pictures"]] == ["image", "more", "more"]
    assert rows.read_pictures(0) == [picture] * 3
    assert "pictures" not in rows.describe_row(1)
    with pytest.raises(IndexError):
        Requests({"files": rows}).read_picture({"row": ["1"], "index": ["0"]})


def test_dropped_pictures_are_shown(tmp_path):
    """They are base64 in the lines of dropped records."""
    (tmp_path / "photos").mkdir()
    picture = photo(1, "PNG", width=20, height=20)
    (tmp_path / "photos/small.png").write_bytes(picture)
    (tmp_path / "photos/large.png").write_bytes(photo(2, "PNG"))
    recipe = gm.Recipe(
        sources={"photos": steps.Read(read=str(tmp_path / "photos"))},
        steps=[steps.Images(min_width=30), steps.Write(format="webdataset")],
        output=str(tmp_path / "out"),
        keep_dropped="samples",
    )
    gm.run(recipe, backend="serial", progress=False)
    rows = open_collections([tmp_path / "out"])["out · dropped"]
    described = rows.describe_row(0)
    assert described["pictures"] == [{"column": "image", "bytes": len(picture)}]
    assert described["columns"]["image"] == f"{len(picture):,} bytes"
    assert rows.read_pictures(0) == [picture]
    assert rows.score_names == []  # "failed": true is no score
    [sample] = load_report(tmp_path / "out").samples.dropped
    assert f"{len(picture):,} bytes" in sample.text


@pytest.mark.parametrize("text", ["iVBORw0KGgoA", "iVBORw0KGgo", "/9j/ is no picture", "R0lGODlh\ud800", "Qk0é", "BM"])
def test_texts_that_begin_like_pictures_stay_texts(text):
    assert isinstance(restore_pictures({"a": [text + "!"]})["a"][0], str)


def test_turns_show_calls_of_tools_and_parts():
    call = {"function": {"name": "find_flight", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image", "image": b"x"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hmm", "tool_calls": [call]},
        {"role": "tool", "name": "find_flight", "content": "LH 400"},
    ]
    user, assistant, tool = (turn["text"] for turn in describe_record({"messages": messages})["turns"])
    assert user.startswith("hello\n")
    assert assistant.startswith("reasoning_content: hmm\ntool_calls: ")
    assert "find_flight" in assistant
    assert tool == "LH 400\nname: find_flight"
    assert describe_record({"conversations": [{"from": "gpt", "value": "hi"}]})["turns"] == [
        {"role": "gpt", "text": "hi"}
    ]


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


def test_a_hundred_million_rows(tmp_path):
    """Shards of links to one file: any row is read by itself, and no page reads more than its rows."""
    trained(tmp_path / "tokenizer")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"n {n}"}) + "\n" for n in range(2000)))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "in.jsonl"))},
        steps=[steps.Tokenize(tokenizer=str(tmp_path / "tokenizer"))],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    [shard] = manifest["splits"]["train"]["web"]
    # One row in 10^8 is read from one of 50,000 names of one file; only those that a page needs have to exist.
    manifest["splits"]["train"]["web"] = [{**shard, "path": f"train/web/{n}.arrow"} for n in range(50_000)]
    (tmp_path / "out/manifest.json").write_text(json.dumps(manifest))
    for n in (0, 31_415, 49_999):
        (tmp_path / f"out/train/web/{n}.arrow").hardlink_to(tmp_path / "out" / shard["path"])
    requests = Requests(open_collections([tmp_path / "out"]))
    for row, text in ((0, "n 0"), (31_415 * 2000 + 7, "n 7"), (99_999_999, "n 1999")):
        [number], answer = read_numbers(requests, row=str(row), count="1")
        assert (number, answer["total"]) == (row, 100_000_000)
        tokens = answer["rows"][0]["documents"][0]["tokens"]
        assert "".join(token[1] for token in tokens).startswith(text)
    assert answer["next"] is None
    assert requests.read_rows({"row": ["2000"]})["rows"][0]["bad"]  # a shard that is not there says so


def test_a_dataset_on_a_store(s3, mixed_rows, tmp_path, monkeypatch):
    """The same rows, filters, searches and steps as on a disk; only shards that are looked at are copied."""
    monkeypatch.setattr("gristmill.storage.user_cache.local_copies._folder", tmp_path / "copies")
    for path in mixed_rows.rglob("*"):
        if path.is_file():
            s3.put(f"out/{path.relative_to(mixed_rows)}", path.read_bytes())
    remote, local = (Requests(open_collections([place])) for place in (f"{s3.url}/out", mixed_rows))
    assert remote.describe() == local.describe()
    for words in (
        {},
        {"split": ["validation"], "source": ["web"]},
        {"score": [f"{WORDS}:10:30"], "row": ["5"]},
        {"step": ["2"], "batch": ["3"]},
    ):
        assert remote.read_rows(words) == local.read_rows(words)
    words = {"query": ["books text"]}
    assert [hit for hit in remote.search(words) if "number" in hit] == [
        hit for hit in local.search(words) if "number" in hit
    ]
    with pytest.raises(UsageError, match="no dataset"):
        open_collections([f"{s3.url}/nothing"])


def test_damage_in_one_file_hides_no_other(web, tmp_path):
    copy = shutil.copytree(web, tmp_path / "out")
    [quarantined] = (copy / "quarantine").glob("*.jsonl*")
    quarantined.write_bytes(quarantined.read_bytes()[:-20] + b"x" * 20)
    collections = open_collections([copy])
    assert count_rows(collections["out"]) == len(open_dataset(web))
    damaged = Requests(collections).read_rows({"name": ["out · quarantined"]})
    assert quarantined.name in damaged["note"]
    quarantined.unlink()
    assert quarantined.name in open_collections([copy])["out · quarantined"].note
    assert open_collections([copy])["out · dropped"].note == ""
