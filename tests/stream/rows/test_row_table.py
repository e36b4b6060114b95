"""A start costs as much as the shards' names, not their content; a far row as much as the first."""

import time

import msgspec
import pytest
from gristmill_testing.streams import with_manifest, write_packed

from gristmill.shards.manifest_file import load_manifest
from gristmill.stream import Stream


def linked(folder, num_shards):
    """One shard under many names."""
    write_packed(folder, {"web": [8]})
    [(_, _, shard)] = load_manifest(folder).shards()
    shards = []
    for number in range(num_shards):
        path = f"train/web/shard-{number:05d}.arrow"
        if number:
            (folder / path).hardlink_to(folder / shard.path)
        shards.append(msgspec.structs.replace(shard, path=path))
    return with_manifest(folder, splits={"train": {"web": shards}})


def test_only_what_is_read_is_opened(tmp_path):
    stream = Stream(linked(tmp_path / "out", 2000))
    assert stream.batch(0, 4)["input_ids"].shape == (4, 12)
    assert len(stream.reader.table._mapped) <= 4
    stream.rows(0, 16_000)
    assert len(stream.reader.table._mapped) == 2000


@pytest.mark.slow
def test_a_far_row_costs_no_more_than_the_first(tmp_path):
    folder = linked(tmp_path / "out", 200)

    def seconds(row):
        start = time.process_time()
        stream = Stream(folder, mixture={"web": 1})
        stream.load_state_dict(stream.state_dict(row=row))
        stream.batch(0, 4)
        return time.process_time() - start

    seconds(0)
    near, far = (min(seconds(row) for _ in range(5)) for row in (0, 10**12))
    assert far < near + 0.05
