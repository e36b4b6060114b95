"""What is missing or damaged is named, before a row of it is given out."""

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.streams import write_packed

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.shards.dataset import open_dataset
from gristmill.stream import Stream


@pytest.fixture
def folder(tmp_path):
    return write_packed(tmp_path / "out", {"web": [6, 6], "code": [6]})


SECOND = "train/web/shard-00001.arrow"


def test_a_missing_shard(folder):
    (folder / SECOND).unlink()
    with pytest.raises(DamagedDatasetError, match=f"{SECOND} is missing"):
        Stream(folder)


def test_a_shard_cut_short(folder):
    content = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(content[:-20])
    with pytest.raises(DamagedDatasetError, match=rf"{SECOND} has \d+ bytes, but \d+ were written"):
        Stream(folder)


def test_a_shard_that_went_after_the_start(folder):
    stream = Stream(folder)
    (folder / SECOND).unlink()
    with pytest.raises(DamagedDatasetError, match=SECOND) as error:
        stream.rows(0, 18)
    assert "gristmill verify" in error.value.help


def test_a_shard_of_another_content(folder):
    """Any one byte changed gives rows or an error that names the shard: never a crash."""
    content = bytearray((folder / SECOND).read_bytes())
    named = 0
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        (folder / SECOND).write_bytes(damaged)
        try:
            Stream(folder).rows(0, 18)
        except DamagedDatasetError as error:
            named += SECOND in error.message
    assert named > 20


@pytest.mark.parametrize("wrong", [-5, 100])
def test_lengths_that_cannot_be_are_noticed(folder, wrong):
    path = folder / SECOND
    content = bytearray(path.read_bytes())
    whole = pa.py_buffer(bytes(content))
    lengths = next(iter(pa.ipc.open_stream(pa.BufferReader(whole)))).column("lengths")
    place = lengths.buffers()[3].address - whole.address
    content[place : place + 4] = np.array([wrong], dtype=np.int32).tobytes()
    path.write_bytes(content)
    with pytest.raises(DamagedDatasetError, match=f"{SECOND} is damaged"):
        Stream(folder).rows(0, 18)


def test_a_shard_that_is_back_is_read(tmp_path):
    """What was opened before the damaged one stays in use."""
    folder = write_packed(tmp_path / "out", {"web": [140, 4]})
    stream = Stream(folder, shuffle=False, rows=144)
    shard = folder / "train/web/shard-00001.arrow"
    shard.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(DamagedDatasetError):
            stream.rows(0, 144)
    (tmp_path / "away").rename(shard)
    assert len(stream.rows(0, 144)["input_ids"]) == 144


def test_rows_with_masks_can_be_opened(tmp_path):
    folder = write_packed(tmp_path / "out", {"web": [6]}, loss_masks=True)
    assert open_dataset(folder)[0]["loss_mask"].dtype == bool
    assert len(Stream(folder, rows=6).where(0, 2)) == 2


def test_two_sources_of_one_name_are_refused(tmp_path):
    two = write_packed(tmp_path / "two", {"x": [4], "y": [4]}, mixture={"x": 0.5, "y": 0.5})
    one = write_packed(tmp_path / "one", {"z": [4]})
    with pytest.raises(UsageError, match='called "a/x"'):
        Stream({"a": (two, 0.5), "a/x": (one, 0.5)}, rows=4)
