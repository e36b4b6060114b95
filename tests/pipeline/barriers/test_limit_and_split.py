"""A limit reads as much as it needs: the quick look is quick."""

import gzip
import json

import msgspec
import pytest

from gristmill.pipeline.stages import unpack as first_units
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Length, Limit, Read, Shuffle, Write


def json_lines(name, count):
    return b"".join(json.dumps({"id": f"{name}-{n}", "text": f"{n} " * 200}).encode() + b"\n" for n in range(count))


@pytest.fixture
def corpus_of_many_units(mill, small_units, tmp_path):
    """Two plain files of 3 units each and a compressed one of 6, in this order."""
    mill.layout = msgspec.structs.replace(mill.layout, unpack_bytes=1 << 10)
    (tmp_path / "a.jsonl").write_bytes(json_lines("a", 18_000))
    (tmp_path / "b.jsonl").write_bytes(json_lines("b", 18_000))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(json_lines("c", 36_000), 1, mtime=0))
    return tmp_path


def numbers_read(mill, source="web"):
    return mill.result.books[source][0].records_in


def ids(mill):
    return [record["id"] for record in open_dataset(mill.output)]


def run(mill, folder, pattern, steps, **options):
    mill.result = mill.run(
        mill.recipe({"web": Read(read=f"{folder}/{pattern}")}, [*steps, Write(format="jsonl")]), **options
    )


@pytest.mark.parametrize("count", [0, 1, 10, 20_000, 100_000])
def test_the_first_records_in_path_order(mill, corpus_of_many_units, count):
    run(mill, corpus_of_many_units, "*", [], limit=count)
    expected = [f"a-{n}" for n in range(18_000)] + [f"b-{n}" for n in range(18_000)] + [f"c-{n}" for n in range(36_000)]
    assert ids(mill) == expected[:count]


def test_what_is_not_needed_is_not_read(mill, corpus_of_many_units):
    run(mill, corpus_of_many_units, "*", [], limit=10)
    assert 10 <= numbers_read(mill) < 10_000


def test_of_a_compressed_file_only_the_first_unit_is_unpacked(mill, corpus_of_many_units, monkeypatch):
    unpacked = []
    real = first_units.run_unpack

    def noting(task, context):
        unpacked.append(result := real(task, context))
        return result

    monkeypatch.setattr(first_units, "run_unpack", noting)
    run(mill, corpus_of_many_units, "c*", [], limit=10, backend="serial")
    assert [len(result.pieces) for result in unpacked] == [1]
    assert ids(mill) == [f"c-{n}" for n in range(10)]


@pytest.mark.parametrize(
    "steps", [[Length(min_chars=500), Limit(max_records=9000)], [Limit(max_records=7000), Shuffle()]]
)
def test_the_same_bytes_however_it_is_run(mill, corpus_of_many_units, steps):
    recipe = mill.recipe({"web": Read(read=f"{corpus_of_many_units}/*")}, [*steps, Write(format="arrow")])
    expected = mill.fresh_files(recipe, backend="serial")
    assert mill.fresh_files(recipe, workers=2) == expected
    assert mill.fresh_files(recipe, workers=3, backend="threads") == expected


def test_a_limit_behind_another_barrier_counts_all(mill, corpus_of_many_units):
    run(mill, corpus_of_many_units, "a*", [Shuffle(), Limit(max_records=100)])
    assert numbers_read(mill) == 18_000
    assert len(ids(mill)) == 100
