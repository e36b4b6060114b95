"""A stream put together from blocks is the stream that pyarrow would write."""

import pyarrow as pa

from gristmill.core.records import make_origins
from gristmill.shards import arrow_stream


def _batch(rows):
    return pa.record_batch({"origin": make_origins(7, pa.array(range(rows))), "text": ["a"] * rows})


def test_the_bytes_are_those_of_a_stream_writer():
    batches = [_batch(3), _batch(1)]
    schema = batches[0].schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    blocks = b"".join(arrow_stream.stream_block(batch, schema) for batch in batches)
    assert arrow_stream.stream_header(schema) + blocks + arrow_stream.STREAM_END == sink.getvalue().to_pybytes()
    assert b"".join(piece for batch in batches for piece in arrow_stream.stream_pieces(batch, schema)) == blocks


def test_pieces_are_the_buffers_of_a_batch():
    batch = _batch(3).slice(1)
    pieces = arrow_stream.stream_pieces(batch, batch.schema)
    assert b"".join(pieces) == arrow_stream.stream_block(batch, batch.schema)
    addresses = {piece.address for piece in pieces if isinstance(piece, pa.Buffer)}
    assert batch.column("origin").field("position").buffers()[1].address + 8 in addresses


def test_no_rows_no_bytes():
    assert arrow_stream.stream_block(_batch(0), _batch(0).schema) == b""
    assert arrow_stream.stream_pieces(_batch(0), _batch(0).schema) == []
    assert arrow_stream.origins_block(_batch(0)) == b""


def test_origins_alone(tmp_path):
    path = tmp_path / "origins.arrow"
    blocks = b"".join(map(arrow_stream.origins_block, [_batch(2), _batch(0), _batch(3)]))
    path.write_bytes(arrow_stream.origins_header() + blocks + arrow_stream.origins_footer())
    read = list(arrow_stream.read_mapped_batches(path))
    assert [batch.num_rows for batch in read] == [2, 3]
    assert read[1].column("origin").to_pylist()[2] == {"file": 7, "position": 2, "part": 0}
