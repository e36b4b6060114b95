"""Shards mapped for random access, and rows of batches to come asked for while the disk is cold."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from gristmill_testing.streams import ids_of

from gristmill.stream import Stream, mapped_memory
from gristmill.stream.mapped_memory import map_file
from gristmill.stream.rows import row_table
from gristmill.stream.torch import TorchDataset, TorchLoader

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def mappings(path):
    """The flags of this process's mappings of a file, by the kernel."""
    found, is_its = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_its = line.endswith(str(path))
        elif is_its and line.startswith("VmFlags:"):
            found.append(line.split()[1:])
    return found


@linux_only
def test_a_mapping_lives_as_long_as_its_buffer_and_holds_no_descriptor(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    descriptors = os.listdir("/proc/self/fd")
    buffer = map_file(str(path), 25_600, at_random=True)
    part = buffer.slice(5, 10)
    assert buffer.to_pybytes() == path.read_bytes()
    assert os.listdir("/proc/self/fd") == descriptors
    assert len(mappings(path)) == 1
    del buffer
    assert part.to_pybytes() == bytes(range(5, 15))
    del part
    assert not mappings(path)
    assert map_file(str(path), 0, at_random=False).size == 0
    with pytest.raises(FileNotFoundError):
        map_file(str(tmp_path / "none"), 5, at_random=False)
    with pytest.raises(OSError, match="device"):
        map_file(str(tmp_path), 5, at_random=False)


@linux_only
@pytest.mark.parametrize("shuffle", [True, False])
def test_only_shuffled_shards_are_mapped_for_random_access(packed, shuffle, tmp_path):
    copied = shutil.copytree(packed, tmp_path / "copied")  # a loader of an earlier test may still hold the other
    stream = Stream(copied, shuffle=shuffle)
    stream.rows(0, 53)
    for shard in stream.reader.table.shards:
        [flags] = mappings(shard.path)
        assert ("rr" in flags) == shuffle


@pytest.fixture
def asked(monkeypatch):
    """The addresses of rows that were asked for, on a disk that is always cold."""
    addresses = []
    monkeypatch.setattr(mapped_memory.ReadAhead, "num_faults", staticmethod(iter(range(10**9)).__next__))
    monkeypatch.setattr(row_table, "request_pages", lambda address, _: addresses.append(address))
    return addresses


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
@pytest.mark.parametrize("kind", ["batches", "loader", "dataset"])
def test_rows_are_asked_for_before_they_are_read(packed, asked, kind, rank, world_size):
    stream = Stream(packed, seed=7, epochs=1)
    batches = {
        "batches": lambda: stream.batches(2, rank, world_size),
        "loader": lambda: TorchLoader(stream, 2, rank=rank, world_size=world_size, num_threads=0),
        "dataset": lambda: TorchDataset(stream, 2, rank=rank, world_size=world_size),
    }[kind]()
    read, known = [], []
    for batch in batches:
        read.append(batch)
        known.append(set(asked))
    assert ids_of(read) == ids_of(Stream(packed, seed=7, epochs=1).batches(2, rank, world_size))
    for before, batch in zip(known, read[1:], strict=False):
        start = batch.first_row + 2 * rank
        rows = [row for row in (start, start + 1) if row < 53]
        addresses, _ = stream.reader.table.find_addresses(stream.order(rows_array(rows)).indices)
        assert set(addresses[:, row_table.A_IDS].tolist()) <= before


def rows_array(rows):
    import numpy as np

    return np.array(rows, dtype=np.int64)


def test_rows_in_memory_are_not_asked_for(packed, monkeypatch):
    monkeypatch.setattr(mapped_memory.ReadAhead, "num_faults", staticmethod(lambda: 5))
    monkeypatch.setattr(row_table.RowTable, "request_rows", lambda *_: pytest.fail("asked"))
    assert len(list(Stream(packed, epochs=1).batches(4))) == 14


def test_asking_ends_when_the_disk_is_no_longer_read():
    reader = mapped_memory.ReadAhead()
    assert not reader.is_cold
    assert reader.note(reader.num_faults() - 1)
    assert reader.is_cold
    assert not reader.note(reader.num_faults() - 1)
    for _ in range(1000):
        reader.note(reader.num_faults())
    assert not reader.is_cold
