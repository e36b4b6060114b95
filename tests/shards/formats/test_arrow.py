"""Arrow shards: streams that any reader of Arrow opens, and rows by number."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.shards.formats.arrow import ArrowEncoder, ArrowShard

SCHEMA = pa.schema([("text", pa.large_string()), ("n", pa.int64())])
BLOCKS = st.lists(st.lists(st.tuples(st.text(max_size=5), st.integers(0, 99)), min_size=1, max_size=5), max_size=4)


def write_shard(path, blocks):
    encoder = ArrowEncoder(SCHEMA)
    batches = [pa.record_batch([list(column) for column in zip(*block, strict=True)], SCHEMA) for block in blocks]
    path.write_bytes(b"".join(map(bytes, [encoder.header(), *map(encoder.block, batches), encoder.footer()])))
    assert [b"".join(map(bytes, encoder.pieces(batch))) for batch in batches] == [
        bytes(encoder.block(batch)) for batch in batches
    ]
    return path


@given(BLOCKS)
def test_rows_are_those_that_were_written(tmp_path_factory, blocks):
    path = write_shard(tmp_path_factory.mktemp("shard") / "a.arrow", blocks)
    expected = [{"text": text, "n": n} for block in blocks for text, n in block]
    assert pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist() == expected
    shard = ArrowShard(path, SCHEMA)
    assert list(shard.rows()) == expected
    assert shard.count_rows() == len(expected)
    assert [shard.row(index) for index in range(len(expected))] == expected


def test_a_damaged_batch_is_found_when_it_is_read(tmp_path):
    path = write_shard(tmp_path / "a.arrow", [[("größe", 1)]])
    path.write_bytes(path.read_bytes().replace("ö".encode(), b"\xff\xff"))
    shard = ArrowShard(path, SCHEMA)
    with pytest.raises(pa.ArrowInvalid):
        shard.row(0)
