"""Rows of a collection: filters that narrow each other, and rows chosen in order."""

import json
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.small_tokenizers import trained
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view.page_requests import Requests
from gristmill.report.view.rows import Filters, RowRange, Rows, ScoreRange, Selection, count_facets
from gristmill.shards.dataset import open_dataset

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


def test_the_source_of_rows_that_are_mixed(tmp_path):
    for name, count in (("web", 90), ("books", 60)):
        lines = "".join(json.dumps({"text": f"{name} {n} " + "word " * (n % 9)}) + "\n" for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    recipe = gm.Recipe(
        sources={name: steps.Read(read=str(tmp_path / f"{name}.jsonl")) for name in ("web", "books")},
        steps=[
            steps.Scores(min_words=4),
            steps.Split(validation=0.2),
            steps.Mix(weights={"web": 0.6, "books": 0.4}, size=40, by="documents"),
            steps.Write(format="arrow"),
        ],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.manifest.mixed
    requests = Requests(open_collections([tmp_path / "out"]))
    texts = [record["text"] for record in dataset]
    for name, scores in product(("web", "books"), ({}, {"score": "scores.words:6:"})):
        least = 6 if scores else 0
        expected = [n for n, text in enumerate(texts) if text.startswith(name) and len(text.split()) >= least]
        numbers, answer = read_numbers(requests, name="out", source=name, count="1000", **scores)
        assert numbers
        assert numbers == expected[: len(numbers)]
        assert answer["total"] == dict(answer["facets"]["source"])[name] == len(expected)
        assert set(dict(answer["facets"]["source"])) == {"web", "books"}
        assert sum(dict(answer["facets"]["split"]).values()) == len(expected)


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
        tokens = requests.read_record({"row": [str(row)]})["documents"][0]["tokens"]
        assert "".join(token[1] for token in tokens).startswith(text)
    assert answer["rows"][0]["lines"][0]["text"].startswith("n 1999")
    with pytest.raises(UsageError, match="no row 100,000,000"):
        requests.read_record({"row": ["100000000"]})
    assert requests.read_rows({"row": ["2000"]})["rows"][0]["bad"]  # a shard that is not there says so
