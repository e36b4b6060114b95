"""The laws that every encoder keeps: blocks join in any grouping, equal records give equal bytes, and all come back."""

import io

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.core.records import ORIGIN_TYPE, SPLIT
from gristmill.shards.formats.shard_format import open_encoder, open_shard, write_shard
from gristmill.steps.write import Write

FORMATS = [
    Write(format="arrow"),
    *(Write(format="jsonl", compression=codec) for codec in ("none", "gzip", "zstd", "bz2", "xz", "lz4")),
    Write(format="webdataset"),
]
PARQUETS = [Write(format="parquet", compression=codec) for codec in (None, "snappy", "gzip", "lz4", "none")]
LAW = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

SCHEMA = pa.schema(
    [
        ("origin", ORIGIN_TYPE),
        ("text", pa.large_string()),
        ("score", pa.float64()),
        ("tags", pa.list_(pa.string())),
        (SPLIT, pa.string()),
    ]
)
TEXTS = st.text('a é\n\0{"\\', max_size=20)
ROWS = st.builds(
    dict,
    text=TEXTS,
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    tags=st.none() | st.lists(st.none() | TEXTS, max_size=3),
    **{SPLIT: st.just("train")},
)
BATCHES = st.lists(st.lists(ROWS, max_size=4), max_size=5)


def _batches(rows_by_batch):
    position = 0
    for rows in rows_by_batch:
        for row in rows:
            row["origin"] = {"file": 2**63 + 1, "position": position, "part": 0}
            position += 1
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _whole(write, batches, schema=SCHEMA):
    sink = io.BytesIO()
    write_shard(write.shard_format, schema, batches, sink)
    return sink.getvalue()


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.suffix)
@LAW
@given(rows=BATCHES, cut=st.integers(0, 5))
def test_blocks_join_in_any_grouping(write, rows, cut):
    batches = list(_batches(rows))
    # Two workers, each with an encoder of its own.
    first, second = open_encoder(write.shard_format, SCHEMA), open_encoder(write.shard_format, SCHEMA)
    blocks = [b"".join(map(first.block, batches[:cut])), b"".join(map(second.block, batches[cut:]))]
    assert first.header() + b"".join(blocks) + second.footer() == _whole(write, batches)


@pytest.mark.parametrize("write", FORMATS + PARQUETS, ids=lambda write: write.suffix + str(write.compression))
@LAW
@given(rows=BATCHES)
def test_equal_records_give_equal_bytes(write, rows):
    batches = list(_batches(rows))
    if not batches:
        return
    # The same records as slices of one array, with the columns in another order and tags as a dictionary.
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    whole = joined[0] if joined else batches[0]
    starts = [sum(len(batch) for batch in rows[:number]) for number in range(len(rows))]
    slices = [whole.slice(start, len(part)) for start, part in zip(starts, rows, strict=True)]
    slices = [batch.select([SPLIT, "tags", "score", "text", "origin"]) for batch in slices]
    assert _whole(write, slices) == _whole(write, batches)


@pytest.mark.every_case
@pytest.mark.parametrize("write", FORMATS + PARQUETS, ids=lambda write: write.suffix + str(write.compression))
@LAW
@given(rows=BATCHES)
def test_all_records_come_back(tmp_path, write, rows):
    path = tmp_path / f"shard{write.suffix}"
    path.write_bytes(_whole(write, _batches(rows)))
    expected = [{name: row[name] for name in ("text", "score", "tags")} for batch in rows for row in batch]
    found = list(open_shard(path, write.format).rows())
    if open_encoder(write.shard_format, SCHEMA).holds_origins:
        assert [row.pop("origin")["position"] for row in found] == list(range(len(found)))
    assert found == expected
    assert open_shard(path, write.format).count_rows() == len(expected)


@pytest.mark.parametrize("write", FORMATS + PARQUETS, ids=lambda write: write.suffix + str(write.compression))
def test_a_shard_without_records_is_a_readable_file(tmp_path, write):
    path = tmp_path / f"shard{write.suffix}"
    path.write_bytes(_whole(write, []))
    assert list(open_shard(path, write.format).rows()) == []


@pytest.mark.parametrize("write", FORMATS + PARQUETS[:1], ids=lambda write: write.suffix)
def test_the_schema_is_what_a_reader_finds(write):
    with_record = SCHEMA.append(pa.field("record", pa.large_binary()))
    for schema in (SCHEMA, with_record):
        assert open_encoder(write.shard_format, schema).schema.names == ["origin", "text", "score", "tags"]
