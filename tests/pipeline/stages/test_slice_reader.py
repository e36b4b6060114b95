"""Many small files: they share cells and blocks, and nothing else changes for them."""

import io
import json
import os
import uuid

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.core.errors import SourceChangedError
from gristmill.pipeline.inspecting.trace import trace
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Length, Map, Read, Shuffle, Split, Write

NUM_FILES = 300
FUNCTION = """
def fails(record):
    if record["text"] == "record 1 of 42":
        raise ValueError("no")
    return record
"""


@pytest.fixture
def small(tmp_path):
    """Files of two records; every tenth has bad lines and a blank one too, and every 25th is larger than a cluster."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(NUM_FILES):
        lines = [json.dumps({"text": f"record {n} of {number}", "n": n}) for n in range(200 if number % 25 == 7 else 2)]
        extra = ["", "{broken"] if number % 10 == 3 else []
        (folder / f"part-{number:03d}.jsonl").write_text("\n".join([*lines, *extra]))
    return folder


@pytest.fixture
def small_clusters(mill):
    """Several clusters and units from a few kilobytes."""
    mill.layout = UnitLayout(cell_bytes=1000, unit_bytes=12_000, min_group_bytes=4000, file_open_bytes=50)


@pytest.mark.parametrize(
    "steps",
    [
        [Write(format="jsonl", compression="zstd")],
        [Split(validation=0.2), Write(format="arrow")],
        [Shuffle(), Write(format="parquet")],
    ],
    ids=["jsonl", "arrow", "shuffled parquet"],
)
def test_the_same_bytes_however_tasks_are_cut(mill, small, small_clusters, steps):
    def recipe(slice_bytes):
        return mill.recipe(
            {"web": Read(read=f"{small}/*")}, [Length(min_chars=12), *steps], slice_bytes=slice_bytes, max_quarantine=1
        )

    expected = mill.fresh_files(recipe(64 << 20))
    assert sum(path.startswith("train") for path in expected) >= (1 if Shuffle() in steps else 3)
    for slice_bytes in (1, 1500, 5000):
        found = mill.fresh_files(recipe(slice_bytes), backend="threads", workers=3)
        assert {path: data for path, data in found.items() if expected.get(path) != data} == {}
        assert found.keys() == expected.keys()


def test_one_block_holds_many_files(mill, small):
    mill.run(mill.recipe({"web": Read(read=f"{small}/*")}, [Write(format="arrow")], max_quarantine=1))
    [(_, _, shard)] = open_dataset(mill.output).manifest.shards()
    with pa.memory_map(str(mill.output / shard.path)) as mapped:
        batches = list(pa.ipc.open_stream(mapped))
    assert len(batches) == 1
    assert len(pa.compute.unique(batches[0].column("origin").field("file"))) == NUM_FILES


def test_books_quarantine_and_traces_know_the_single_file(mill, small):
    recipe = mill.recipe({"web": Read(read=f"{small}/*")}, [Write(format="jsonl")], max_quarantine=1)
    result = mill.run(recipe)
    [account] = result.books["web"]
    num_records = 12 * 200 + (NUM_FILES - 12) * 2
    assert (account.records_in, account.records_out, account.quarantined) == (
        num_records + 30,
        num_records,
        {"invalid_json": 30},
    )
    dataset = open_dataset(mill.output)
    entries = list(dataset.quarantine())
    assert [entry["file"] for entry in entries] == [f"part-{number:03d}.jsonl" for number in range(3, NUM_FILES, 10)]
    for entry in entries:
        assert (small / entry["file"]).read_bytes()[entry["position"] :] == b"{broken"
    for number in (0, 1, 5, num_records - 1):
        [place] = trace(dataset, number).places
        assert json.loads(place.original) == dataset[number]


def test_a_file_of_a_cluster_that_changes_while_the_run_goes_on(mill, small, monkeypatch):
    from gristmill.pipeline.stages.runner import StageRunner

    real = StageRunner.run

    def touching(*arguments):
        os.utime(small / "part-042.jsonl", ns=(1, 1))
        return real(*arguments)

    monkeypatch.setattr(StageRunner, "run", touching)
    with pytest.raises(SourceChangedError, match="part-042"):
        mill.run(mill.recipe({"web": Read(read=f"{small}/*")}, [Write(format="jsonl")], max_quarantine=1))


def make_table(number):
    return pa.table({"text": [f"record {n} of {number}" for n in range(2)]})


def encode_parquet(number):
    pq.write_table(make_table(number), sink := io.BytesIO())
    return sink.getvalue()


def encode_lines(number):
    return b"".join(json.dumps(row).encode() + b"\n" for row in make_table(number).to_pylist())


@pytest.mark.parametrize("change", ["removed", "truncated", "rewritten"])
@pytest.mark.parametrize(("ending", "encode"), [("jsonl", encode_lines), ("parquet", encode_parquet)])
def test_a_remote_file_of_a_cluster_that_changes(mill, monkeypatch, ending, encode, change):
    """Its version is looked up while it is read: an error of the reader is not the one that is told."""
    from gristmill.pipeline.stages.runner import StageRunner

    memory = fsspec.filesystem("memory")
    folder = f"/{uuid.uuid4().hex}"
    for number in range(4):
        memory.pipe(f"{folder}/part-{number}.{ending}", encode(number))
    changed = f"{folder}/part-2.{ending}"
    real = StageRunner.run

    def change_file(*arguments):
        if change == "removed":
            memory.rm(changed)
        else:
            memory.pipe(changed, encode(2)[:40] if change == "truncated" else encode(7) + b"\n")
        return real(*arguments)

    monkeypatch.setattr(StageRunner, "run", change_file)
    recipe = mill.recipe({"web": Read(read=f"memory:/{folder}/*")}, [Write(format="jsonl")], max_quarantine=1)
    with pytest.raises(SourceChangedError, match="part-2"):
        mill.run(recipe)


def test_a_function_sees_one_batch_and_its_errors_name_the_file(mill, small, tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTION)
    steps = [Map(call=f"{tmp_path}/functions.py:fails"), Write(format="jsonl")]
    mill.run(mill.recipe({"web": Read(read=f"{small}/*")}, steps, max_quarantine=1))
    [entry] = [entry for entry in open_dataset(mill.output).quarantine() if entry["step"] == "map"]
    assert (entry["file"], entry["reason"]) == ("part-042.jsonl", "exception")
