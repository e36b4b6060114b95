"""Exports to Parquet and JSON Lines: files, row groups, and what they cannot hold."""

import pyarrow.parquet as pq
import pytest
from gristmill_testing.token_datasets import write_tokens

from gristmill.core.errors import UsageError


def test_parquet_has_one_validation_file(tmp_path, run):
    """A nanochat trains all Parquet files of a folder but the last."""
    shards = [[[[n, n + 1], [n]], [[n]]] for n in range(1, 5)]
    parts = {("train", "web"): shards, ("validation", "web"): shards[:3], ("validation", "code"): shards[3:]}
    exported = run(write_tokens(tmp_path / "several", parts, row_length=4), "parquet")
    *train, validation = sorted(exported.files)
    assert len(train) == 4
    assert all("_train-" in path.name for path in train)
    rows = [table.column("input_ids").to_pylist() for table in map(pq.read_table, [*train, validation])]
    assert [row for each in rows[:4] for row in each] == rows[4]
    assert exported.rows == {"train": 8, "validation": 8}


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_row_groups_of_parquet(packed, run, rows):
    folder, expected = packed
    exported = run(folder, "parquet", row_group_rows=rows, split="train")
    groups = [pq.ParquetFile(path).metadata for path in exported.files]
    sizes = [group.row_group(n).num_rows for group in groups for n in range(group.num_row_groups)]
    assert sum(sizes) == len(expected)
    assert max(sizes) <= rows
    assert len(sizes) == sum(-(-count // rows) for count in (7, 4, 6))


@pytest.mark.parametrize("to", ["mds", "megatron-bridge"])
def test_rows_of_different_lengths_are_refused(documents, run, to):
    with pytest.raises(UsageError, match="not packed"):
        run(documents, to)


def test_what_a_format_cannot_hold_is_refused(packed, run, tmp_path):
    with pytest.raises(UsageError, match="whole documents in order"):
        run(packed[0], "olmo-core")
    with pytest.raises(UsageError, match="no row groups"):
        run(packed[0], "jsonl", row_group_rows=5)
    write_tokens(tmp_path / "chats", {("train", "web"): [[[5, 6, 7]]]}, loss_masks=True)
    with pytest.raises(UsageError, match="which tokens are trained"):
        run(tmp_path / "chats", "litdata")
