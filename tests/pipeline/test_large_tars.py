"""A large tar is cut by an index of its members: for all workers, in units of one size, into the same bytes."""

import gzip
import io
import json
import os
import tarfile

import pytest

from gristmill.core.errors import SourceChangedError
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.readers import webdataset
from gristmill.shards.dataset import open_dataset
from gristmill.steps import Deduplicate, Read, Shuffle, Write

JSONL = Write(format="jsonl")
NUM_SAMPLES = 600


def members(number):
    key = f"{'long/' * 25 if number % 50 == 0 else ''}{number:06d}"
    yield f"{key}.txt", f"text {number} ".encode() * (number % 40 + 1)
    yield f"{key}.json", json.dumps({"n": number}).encode()
    yield f"{key}.jpg", bytes(number % 3 * 700)


def make_tar(path, *, damage=0):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number in range(NUM_SAMPLES):
            for name, content in members(number):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    data = sink.getvalue()[: -damage or None]
    path.write_bytes(gzip.compress(data, 1, mtime=0) if path.name.endswith(".gz") else data)
    return path


@pytest.fixture(autouse=True)
def small_cells(mill):
    """Some hundred units of a megabyte."""
    mill.layout = UnitLayout(cell_bytes=4000, unit_bytes=64_000, unpack_bytes=1000)


def source(path):
    return {"web": Read(read=str(path), text="txt", columns=["json.n", "__key__"])}


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize(
    "steps",
    [[], [Shuffle()], [Deduplicate(kind="exact", max_source_loss=1)]],
    ids=["plain", "shuffle", "deduplicate"],
)
def test_the_same_bytes_for_any_workers_and_slices(mill, tmp_path, name, steps):
    path = make_tar(tmp_path / name)
    found = []
    for slice_bytes, options in [(1 << 26, {"backend": "serial"}), (9000, {"backend": "threads", "workers": 3})]:
        recipe = mill.recipe(source(path), [*steps, JSONL], slice_bytes=slice_bytes)
        files = mill.fresh_files(recipe, **options)
        found.append({name: data for name, data in files.items() if name != "manifest.json"})
    assert found[0] == found[1]
    dataset = open_dataset(mill.output)
    assert sum(shard.rows for _, _, shard in dataset.manifest.shards()) == NUM_SAMPLES
    assert sorted(record["json.n"] for record in dataset) == list(range(NUM_SAMPLES))
    assert len([*dataset.manifest.shards()]) > 1 or steps
    assert [path.name] == [found.name for found in tmp_path.iterdir() if found.is_file()]  # nothing beside the tar


def test_units_are_bounded_and_positions_are_members(mill, tmp_path):
    mill.run(mill.recipe(source(make_tar(tmp_path / "x.tar")), [JSONL]))
    dataset = open_dataset(mill.output)
    shards = [shard for _, _, shard in dataset.manifest.shards()]
    assert len(shards) > 5
    assert max(shard.rows for shard in shards) < NUM_SAMPLES / 4
    for row in (0, 77, NUM_SAMPLES - 1):
        assert dataset.origins(row)[0].position == 3 * dataset[row]["json.n"]


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_a_tar_that_is_cut_short_gives_what_it_has(mill, tmp_path, name):
    path = make_tar(tmp_path / name, damage=60_000)
    result = mill.run(mill.recipe(source(path), [JSONL]))
    numbers = [record["json.n"] for record in result.dataset()]
    assert numbers == list(range(len(numbers)))
    assert 500 < len(numbers) < NUM_SAMPLES
    assert result.books["web"][0].quarantined == {"truncated_stream": 1}


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_damage_in_the_middle_costs_one_sample(mill, tmp_path, name):
    path = make_tar(tmp_path / "whole.tar")
    data = path.read_bytes()
    start = data.index(b"000301.json")
    data = data[:start] + bytes(512) + data[start + 512 :]
    (tmp_path / name).write_bytes(gzip.compress(data, 1, mtime=0) if name.endswith(".gz") else data)
    result = mill.run(mill.recipe(source(tmp_path / name), [JSONL]))
    numbers = [record["json.n"] for record in result.dataset()]
    assert numbers == [number for number in range(NUM_SAMPLES) if number != 301]
    assert result.books["web"][0].quarantined == {"invalid_tar": 2}  # its members before and after


def test_a_limit_reads_no_more_than_it_needs(mill, tmp_path):
    result = mill.run(mill.recipe(source(make_tar(tmp_path / "x.tar")), [JSONL]), limit=5)
    assert [record["json.n"] for record in result.dataset()] == list(range(5))
    assert result.books["web"][0].records_in < NUM_SAMPLES / 4


def test_a_tar_that_changes_is_indexed_again(mill, tmp_path):
    path = make_tar(tmp_path / "x.tar")
    recipe = mill.recipe(source(path), [JSONL])
    mill.run(recipe, keep_work=True)
    data = path.read_bytes().replace(b"text 1 ", b"TEXT 1 ")
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    mill.run(recipe, update=True)
    assert open_dataset(mill.output)[1]["text"].startswith("TEXT 1 ")


def test_a_tar_that_changes_between_index_and_reading_is_noticed(mill, tmp_path, monkeypatch):
    path = make_tar(tmp_path / "x.tar")
    index_cells = webdataset.index_cells

    def change_after(*arguments):
        found = index_cells(*arguments)
        os.utime(path, ns=(1, 1))
        return found

    monkeypatch.setattr(webdataset, "index_cells", change_after)
    with pytest.raises(SourceChangedError):
        mill.run(mill.recipe(source(path), [JSONL]))


def test_tiny_members_do_not_share_one_cell(tmp_path):
    """The content of a million members may be less than a cell, but not their headers and what they take in memory."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for number in range(60):
            archive.addfile(tarfile.TarInfo(f"{number:06d}.npy"))
    index, starts = webdataset.index_cells(str(tmp_path / "x.tar"), None, cell_bytes=10 * 512)
    assert len(index) == 60
    assert starts == [0, 10, 20, 30, 40, 50]
