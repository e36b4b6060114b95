"""Merged streams: any grouping gives partitions the same records, and pieces are as large as the plan says."""

import doctest
import uuid
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.seeds import find_ranges
from gristmill.pipeline.barriers.merge import (
    MergePlan,
    make_merge_tasks,
    plan_join,
    plan_merge,
    run_join,
    run_merge,
)
from gristmill.pipeline.barriers.record_files import (
    KEY,
    NUMBER,
    PartitionedFile,
    PartitionWriter,
    make_records,
    scatter_records,
)
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.shards.stored_files import StoredFile
from gristmill.steps.deduplicate import partitions as partition_sizes
from gristmill.storage.locations import StorePath
from gristmill.storage.stores.retries import wait_clock

MIB = 1 << 20


def test_examples():
    assert doctest.testmod(partition_sizes).attempted


def count_pieces(plan):
    return len(plan.groups) * plan.num_partitions


@given(st.lists(st.integers(0, 1 << 34), min_size=1, max_size=40), st.integers(1, 1 << 14), st.integers(20, 30))
@example([0, 1], 2, 20)
@example([1 << 30, 0], 1 << 14, 20)
def test_a_plan_has_all_streams_in_order_and_large_pieces(sizes, num_partitions, partition_bits):
    partition_bytes = 1 << partition_bits
    plan = plan_merge(sizes, num_partitions, partition_bytes, UnitLayout(), on_store=True)
    if plan is None:
        assert num_partitions == 1 or sum(sizes) >= len(sizes) * num_partitions * MIB
        return
    assert [stream for group in plan.groups for stream in group] == list(range(len(sizes)))
    limit = 16 * partition_bytes
    assert sum(sizes) <= plan.num_partitions * limit
    if sum(sizes) <= limit * limit // MIB:
        assert count_pieces(plan) * MIB <= max(sum(sizes), plan.num_partitions * MIB)


@pytest.mark.parametrize("record_bytes", [216, 20])  # keys of bands, and digests
def test_one_level_is_enough_for_a_billion_documents(record_bytes):
    sizes = [35_714 * record_bytes] * 28_000  # units of 64 MiB
    num_partitions = 1 << (-(-sum(sizes) // (32 * MIB)) - 1).bit_length()
    assert sum(sizes) / (len(sizes) * num_partitions) < 2000  # as it would be without
    plan = plan_merge(sizes, num_partitions, 32 * MIB, UnitLayout(), on_store=True)
    assert sum(sizes) >= count_pieces(plan) * MIB
    assert max(sum(sizes[group.start : group.stop]) for group in plan.groups) < 512 * MIB
    assert sum(sizes) / plan.num_partitions < 512 * MIB
    assert plan_merge(sizes, num_partitions, 32 * MIB, UnitLayout(), on_store=False) == plan  # more than 10^6 pieces
    assert plan_merge(sizes[:1000], 256, 32 * MIB, UnitLayout(), on_store=False) is None


@settings(max_examples=40)
@given(st.data())
def test_any_grouping_gives_partitions_the_same_records(data):
    work = StorePath(f"memory://{uuid.uuid4().hex}/.gristmill/stored")
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    num_rows = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=8))
    cuts = data.draw(st.sets(st.integers(1, len(num_rows))))
    num_partitions = data.draw(st.integers(1, 9))
    starts = np.cumsum([0, *num_rows])[:-1]
    streams, everything = [], []
    for number, rows in enumerate(num_rows):
        keys = rng.integers(0, 1 << 64, 3 * rows, np.uint64)
        records = make_records(KEY, key=keys, row=np.repeat(np.arange(rows), 3))
        stem = open_stem(work, f"stream-{number}", "run")
        streams.append(scatter_records(stem, ".keys", records, find_ranges(keys, 16), 16))
        everything += zip(keys.tolist(), (starts[number] + records["row"]).tolist(), strict=True)
    borders = sorted({0, *cuts, len(num_rows)})
    plan = MergePlan(num_partitions, tuple(map(range, borders[:-1], borders[1:])))
    stage = SimpleNamespace(work=work, kind=KEY, num_partitions=num_partitions, run_id="run")
    state = SimpleNamespace(state=stage, count=lambda **_: None, at=lambda _: None)
    merged = [run_merge(task, state).scattered["merged"] for task in make_merge_tasks(plan, streams, starts, "keys")]
    found = []
    before = wait_clock.show(0)
    for partition in range(num_partitions):
        for group, file in zip(plan.groups, merged, strict=True):
            for records in file.read(work, KEY, partition):
                assert (find_ranges(records["key"], num_partitions) == partition).all()
                found += zip(records["key"].tolist(), (starts[group.start] + records["row"]).tolist(), strict=True)
    assert sorted(found) == sorted(everything)
    after = wait_clock.show(0)
    num_reads = after.intermediate_reads - before.intermediate_reads
    assert bool(found) <= num_reads <= count_pieces(plan)  # none to look up where a piece begins


@settings(max_examples=40)
@given(st.data())
def test_joined_files_have_the_records_of_each_partition_in_order(data):
    """The members of clusters and their sets are told apart by order alone."""
    work = StorePath(f"memory://{uuid.uuid4().hex}/work")
    num_partitions = data.draw(st.integers(1, 5))
    partitions = st.lists(st.integers(0, num_partitions - 1), max_size=12)
    files, next_document = [], 0
    for number, in_blocks in enumerate(data.draw(st.lists(st.lists(partitions, max_size=3), min_size=1, max_size=6))):
        stem = open_stem(work, f"file-{number}", "run")
        notes_bounds = data.draw(st.booleans())
        with PartitionWriter(stem, ".n", num_partitions, notes_bounds=notes_bounds, block_bytes=1) as writer:
            for block in in_blocks:
                numbers = np.arange(next_document, next_document + len(block))
                writer.scatter(make_records(NUMBER, document=numbers), np.array(block, np.int64))
                next_document += len(block)
            files.append(writer.close())
    borders = sorted({0, *data.draw(st.sets(st.integers(1, len(files)))), len(files)})
    plan = MergePlan(num_partitions, tuple(map(range, borders[:-1], borders[1:])))
    stage = SimpleNamespace(work=work, kind=NUMBER, num_partitions=num_partitions, run_id="run")
    state = SimpleNamespace(state=stage, count=lambda **_: None, at=lambda _: None)
    tasks = make_merge_tasks(plan, files, np.zeros(len(files), np.int64), "numbers")
    joined = [run_join(task, state).scattered["merged"] for task in tasks]
    num_documents = 0
    for partition in range(num_partitions):
        before, after = (
            [number for file in each for records in file.read(work, NUMBER, partition) for number in records.tolist()]
            for each in (files, joined)
        )
        assert after == before == sorted(before)
        num_documents += len(after)
    assert num_documents == next_document


def test_tasks_have_other_names_if_streams_are_cut_otherwise():
    def name_tasks(num_rows):
        files = [StoredFile(path=f"{number}", bytes=0, xxh3="0" * 16) for number in range(len(num_rows))]
        streams = [
            PartitionedFile(file=file, num_records=rows, num_partitions=16, checksums=b"")
            for file, rows in zip(files, num_rows, strict=True)
        ]
        plan = MergePlan(4, (range(2), range(2, 4)))
        starts = np.cumsum([0, *num_rows])[:-1]
        return [task.id for task in make_merge_tasks(plan, streams, starts, "keys")]

    assert name_tasks([1, 2, 3, 4]) == name_tasks([2, 1, 4, 3])
    assert not set(name_tasks([1, 2, 3, 4])) & set(name_tasks([1, 3, 2, 4]))


def test_files_are_joined_where_that_saves_reads():
    assert plan_join([100] * 3, 2, 32 * MIB, UnitLayout(), on_store=True) == MergePlan(2, (range(3),))
    assert plan_join([100] * 2, 2, 32 * MIB, UnitLayout(), on_store=True) is None
    assert plan_join([100] * 300, 1, 32 * MIB, UnitLayout(), on_store=True) is None
    assert plan_join([100] * 300, 200, 32 * MIB, UnitLayout(), on_store=False) is None
    removals = plan_join([15 * 10**6] * 1100, 256, 32 * MIB, UnitLayout(), on_store=True)
    assert len(removals.groups) == 61
    assert sum([15 * 10**6] * 1100) >= count_pieces(removals) * MIB


def test_bounds_in_a_receipt_are_checked():
    file = {"path": "a", "bytes": 0, "xxh3": "0" * 16}
    content = msgspec.json.encode(
        {"file": file, "num_records": 1, "num_partitions": 2, "checksums": b"", "bounds": b"12345678"}
    )
    with pytest.raises(msgspec.ValidationError, match="no bounds of 2 partitions"):
        msgspec.json.decode(content, type=PartitionedFile)
