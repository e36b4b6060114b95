"""Much, little and nothing: crowds of tiny files, empty inputs, large compressed ones, sources of different shapes."""

import gzip
import json
import zlib

import pytest

from gristmill.core.errors import EmptyDatasetError
from gristmill.core.recipe import Source
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Length, Limit, Read, Shuffle, Split, Write

FORMATS = ["jsonl", "parquet", "arrow", "webdataset"]


def lines(count, start=0):
    return b"".join(json.dumps({"text": f"text {n}"}).encode() + b"\n" for n in range(start, start + count))


@pytest.mark.slow
def test_twenty_thousand_tiny_files(mill, tmp_path):
    folder = tmp_path / "in"
    for number in range(20_000):
        parent = folder / f"{number // 1000:02d}"
        if number % 1000 == 0:
            parent.mkdir(parents=True)
        (parent / f"{number}.jsonl").write_bytes(b'{"text": "number %d"}\n' % number)
    recipe = mill.recipe({"web": Read(read=str(folder))}, [Write(format="arrow")])
    result = run_recipe(recipe, RunOptions(backend="threads", workers=2, progress=False))
    dataset = open_dataset(mill.output)
    assert len(dataset) == 20_000
    assert sum(1 for _ in result.manifest.shards()) == 1
    assert {record["text"] for record in dataset} == {f"number {number}" for number in range(20_000)}


@pytest.mark.parametrize("format", FORMATS)
def test_empty_files_between_others(mill, tmp_path, format):
    for number in range(6):
        (tmp_path / f"{number}.jsonl").write_bytes(lines(5) if number % 2 else b"")
    (tmp_path / "6.jsonl.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "7.jsonl").write_bytes(b"\n \n\n")
    mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.jsonl*")}, [Write(format=format)]))
    assert len(open_dataset(mill.output)) == 15


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("content", [b"", lines(10)], ids=["no records", "all dropped"])
@pytest.mark.parametrize("barrier", [[], [Shuffle()], [Limit(max_records=4)]], ids=["local", "shuffle", "limit"])
def test_a_dataset_of_nothing(mill, tmp_path, format, content, barrier):
    (tmp_path / "a.jsonl").write_bytes(content)
    steps = [Length(min_chars=100), *barrier, Split(validation=0.5), Write(format=format)]
    reads = {"web": Read(read=f"{tmp_path}/*.jsonl")}
    with pytest.raises(EmptyDatasetError):
        mill.run(mill.recipe(reads, steps))
    recipe = mill.recipe(reads, steps, allow_empty=True)
    result = mill.run(recipe)
    dataset = open_dataset(mill.output)
    assert (len(dataset), list(dataset)) == (0, [])
    assert "text" in dataset.schema.names
    assert [account.step for account in result.books["web"] if account.step != "columns"] == [
        "read",
        "length",
        *(step.name for step in barrier),
        "split",
    ]
    assert mill.run(recipe).was_up_to_date


def test_one_source_of_nothing_beside_another(mill, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(10))
    (tmp_path / "b.jsonl").write_bytes(b"")
    reads = {name: Read(read=f"{tmp_path}/{name}.jsonl") for name in "ab"}
    for steps in ([], [Shuffle()], [Split(validation=3)], [Limit(max_records=2)]):
        result = mill.run(mill.recipe(reads, [*steps, Write(format="arrow")]), overwrite=True)
        assert result.books["b"][-1].records_out == 0
        assert {account.step for account in result.books["b"]} == {account.step for account in result.books["a"]}


def test_a_split_by_number_is_over_all_sources_whatever_steps_they_have(mill, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(lines(100, start=1000 * ord(name)))
    reads = {
        "a": Source(Read(read=f"{tmp_path}/a.jsonl"), [Limit(max_records=50)]),
        "b": Source(Read(read=f"{tmp_path}/b.jsonl")),
    }
    mill.run(mill.recipe(reads, [Split(validation=20), Write(format="arrow")]))
    dataset = open_dataset(mill.output)
    assert {name: len(dataset.split(name)) for name in dataset.splits} == {"train": 130, "validation": 20}


@pytest.fixture
def unpacked_early(mill):
    mill.layout = UnitLayout(unpack_bytes=1000, cells_per_unit=1)


def long_lines(count):
    return b"".join(json.dumps({"n": n, "text": f"{n} " * 200}).encode() + b"\n" for n in range(count))


@pytest.mark.parametrize("slice_bytes", [1, 64 << 20])
def test_a_large_compressed_file_is_unpacked_and_shared(mill, tmp_path, unpacked_early, slice_bytes):
    content = long_lines(9000)
    assert len(content) > 2 * (4 << 20)
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.mkdir()
    packed.mkdir()
    half = len(content) // 2
    (packed / "a.jsonl.gz").write_bytes(gzip.compress(content[:half], 1) + gzip.compress(content[half:], 1))
    (plain / "a.jsonl").write_bytes(content)
    steps = [Write(format="jsonl")]
    mill.run(mill.recipe({"web": Read(read=str(packed))}, steps, slice_bytes=slice_bytes))
    found = open_dataset(mill.output)
    assert len(list(found.manifest.shards())) == -(-len(content) // (4 << 20))
    records = b"".join((mill.output / shard.path).read_bytes() for _, _, shard in found.manifest.shards())
    assert records == content
    assert not [path for path in mill.files() if path.endswith(".piece")]


@pytest.mark.parametrize("unpack_first", [False, True])
def test_a_truncated_compressed_file(mill, tmp_path, unpack_first):
    if unpack_first:
        mill.layout = UnitLayout(unpack_bytes=1000)
    content = long_lines(3000)
    packed = gzip.compress(content, 1, mtime=0)
    cut = packed[: len(packed) * 2 // 3]
    readable = zlib.decompressobj(31).decompress(cut)
    (tmp_path / "a.jsonl.gz").write_bytes(cut)
    result = mill.run(mill.recipe({"web": Read(read=f"{tmp_path}/*.gz")}, [Write(format="jsonl")]))
    dataset = open_dataset(mill.output)
    whole = readable.count(b"\n")
    assert 0 < whole < 3000
    assert len(dataset) == whole
    assert result.manifest.quarantine.counts == {"web": {"truncated_stream": 1}}
    [entry] = dataset.quarantine()
    assert entry["position"] >= readable.rindex(b"\n") + 1
    assert entry["file"] == "a.jsonl.gz"


@pytest.mark.parametrize("unpack_first", [False, True])
def test_a_compressed_file_that_is_none(mill, tmp_path, unpack_first):
    if unpack_first:
        mill.layout = UnitLayout(unpack_bytes=10)
    (tmp_path / "a.jsonl.gz").write_bytes(lines(100))
    (tmp_path / "b.jsonl").write_bytes(lines(100))
    sources = {"web": Read(read=f"{tmp_path}/*.jsonl*")}
    result = mill.run(mill.recipe(sources, [Write(format="jsonl")], max_quarantine=0.6))  # half of the bytes are lost
    assert len(open_dataset(mill.output)) == 100
    assert sum(result.manifest.quarantine.counts["web"].values()) == 1
