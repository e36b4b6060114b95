"""Equal values give equal bytes, however they lie in memory; and nothing but the memory changes.

A stream put together from blocks is the stream that pyarrow would write.
"""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.records import make_origins
from gristmill.shards import canonical
from gristmill.shards.canonical import canonicalize_array, canonicalize_batch, canonicalize_schema

LAW = settings(deadline=None)  # the first example pays for imports
_small = st.integers(-100, 100)
FLAT = [
    (pa.int8(), _small),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text("aé\0", max_size=5)),
    (pa.large_string(), st.text("aé\0", max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.timestamp("us"), st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2090, 1, 1))),  # noqa: DTZ001
    (pa.decimal128(10, 2), st.decimals(-1000, 1000, places=2).map(lambda value: decimal.Decimal(f"{value:.2f}"))),
]


def _nested(inner):
    def lists(pair):
        kind, values = pair
        values = st.none() | values
        return st.sampled_from(
            [
                (pa.list_(kind), st.lists(values, max_size=3)),
                (pa.large_list(kind), st.lists(values, max_size=3)),
                (pa.list_(kind, 2), st.lists(values, min_size=2, max_size=2)),
                (pa.struct([("a", kind), ("b", pa.int32())]), st.fixed_dictionaries({"a": values, "b": _small})),
                (pa.map_(pa.string(), kind), st.lists(st.tuples(st.text("aé\0", max_size=2), values), max_size=3)),
            ]
        )

    return inner.flatmap(lists)


TYPES = st.recursive(st.sampled_from(FLAT), _nested, max_leaves=3)


@st.composite
def columns(draw):
    """A type, values of it, and for each whether it is null."""
    kind, values = draw(TYPES)
    rows = draw(st.lists(st.tuples(values, st.booleans()), max_size=12))
    return kind, [value for value, _ in rows], [valid for _, valid in rows]


def _with_nulls(full, valid):
    """The array with some values declared null in place: they stay in memory, and so do stray bits behind the end."""
    if not len(full):
        return full
    bits = np.packbits([*valid, *[True] * (-len(valid) % 8)], bitorder="little")
    kind = full.type
    own, children = full.buffers()[1:3], None
    if pa.types.is_struct(kind):
        own, children = [], [full.field(index) for index in range(kind.num_fields)]
    elif pa.types.is_fixed_size_list(kind):
        own, children = [], [full.values]
    elif pa.types.is_nested(kind):
        own, children = full.buffers()[1:2], [full.values]
    elif len(full.buffers()) == 2:
        own = full.buffers()[1:]
    return pa.Array.from_buffers(kind, len(full), [pa.py_buffer(bits), *own], children=children)


def _bytes(array):
    schema = canonicalize_schema(pa.schema([("column", array.type)]))
    return canonicalize_batch(pa.record_batch([array], names=["column"]), schema).serialize().to_pybytes()


@LAW
@given(columns())
def test_leftovers_under_nulls_and_stray_bits_do_not_show(column):
    kind, values, valid = column
    clean = pa.array([value if is_valid else None for value, is_valid in zip(values, valid, strict=True)], type=kind)
    dirty = _with_nulls(pa.array(values, type=kind), valid)
    assert dirty.to_pylist() == clean.to_pylist()
    assert _bytes(dirty) == _bytes(clean)


@LAW
@given(columns(), st.integers(0, 9), st.integers(0, 9))
def test_a_slice_is_as_good_as_a_copy(column, before, after):
    kind, values, valid = column
    padded = pa.array([*values[:before], *values, *values[:after]], type=kind)
    padded = _with_nulls(padded, [*[True] * len(values[:before]), *valid, *[False] * len(values[:after])])
    clean = pa.array([value if is_valid else None for value, is_valid in zip(values, valid, strict=True)], type=kind)
    assert _bytes(padded.slice(len(values[:before]), len(values))) == _bytes(clean)


@LAW
@given(columns(), st.integers(0, 12))
def test_chunks_do_not_show(column, cut):
    kind, values, _ = column
    pieces = pa.chunked_array([pa.array(values[:cut], type=kind), pa.array(values[cut:], type=kind)])
    joined = pa.concat_arrays(pieces.chunks)
    assert _bytes(joined) == _bytes(pa.array(values, type=kind))


@LAW
@given(columns())
def test_values_stay_and_the_form_is_stable(column):
    kind, values, valid = column
    array = _with_nulls(pa.array(values, type=kind), valid)
    canonical = canonicalize_array(array)
    canonical.validate(full=True)
    assert canonical.to_pylist() == array.to_pylist()
    assert canonical.null_count == array.null_count
    assert _bytes(canonical) == _bytes(array)


@LAW
@given(st.lists(st.none() | st.text("aé\0", max_size=3), max_size=20), st.randoms())
def test_encodings_do_not_show(values, random):
    plain = pa.array(values, type=pa.large_string())
    expected = _bytes(plain)
    words = sorted({value for value in values if value is not None})
    random.shuffle(words)
    indices = [None if value is None else words.index(value) for value in values]
    dictionary = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int16()), pa.array(words, pa.large_string()))
    assert _bytes(dictionary) == expected
    assert _bytes(plain.cast(pa.string_view())) == expected


@LAW
@given(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=3), max_size=8), st.randoms(), st.integers(0, 3))
def test_views_of_lists_do_not_show(values, random, skipped):
    """Their values may be in any order, overlap, and have gaps."""
    order = random.sample(range(len(values)), len(values))
    starts, items = [0] * len(values), [99]
    for index in order:
        starts[index] = len(items)
        items += [*(values[index] or []), 99]
    sizes = [len(value or []) for value in values]
    column = pa.ListViewArray.from_arrays(
        pa.array(starts, pa.int32()),
        pa.array(sizes, pa.int32()),
        pa.array(items, pa.int64()),
        mask=pa.array([value is None for value in values], pa.bool_()),
    )
    assert _bytes(column[skipped:]) == _bytes(pa.array(values[skipped:], pa.large_list(pa.int64())))


def test_leftovers_in_lists_of_fixed_size_do_not_show():
    full = pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))
    dirty, clean = _with_nulls(full, [True, False]), pa.array([[1, 2], None], full.type)
    assert _bytes(dirty) == _bytes(clean)
    inside = [pa.StructArray.from_arrays([column], ["a"]) for column in (dirty, clean)]
    assert _bytes(inside[0]) == _bytes(inside[1])


def test_leftovers_of_numbers_do_not_show():
    full = pa.array([1, 2, 3])
    assert _bytes(_with_nulls(full, [True, False, True])) == _bytes(pa.array([1, None, 3]))


def test_dictionaries_inside_nested_columns_are_unfolded():
    inner = pa.array(["a", "b", "a"]).dictionary_encode()
    column = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), inner)
    assert canonicalize_array(column).to_pylist() == [["a", "b"], ["a"]]
    assert _bytes(column) == _bytes(pa.array([["a", "b"], ["a"]]))


def test_metadata_is_sorted_and_stale_descriptions_go():
    def schema(order):
        entries = {b"b": b"2", b"a": b"1", b"huggingface": b"{}", b"pandas": b"{}"}
        metadata = {key: entries[key] for key in order}
        field = pa.field("x", pa.struct([pa.field("y", pa.int8(), metadata=metadata)]), nullable=False)
        return canonicalize_schema(pa.schema([field], metadata=metadata))

    one = schema([b"b", b"a", b"huggingface", b"pandas"])
    other = schema([b"pandas", b"a", b"huggingface", b"b"])
    assert one.serialize().equals(other.serialize())
    assert list(one.metadata.items()) == [(b"a", b"1"), (b"b", b"2")]


def test_names_of_list_items_do_not_show():
    # Parquet files call them "element", Arrow "item"; pyarrow holds the types equal.
    parquet = pa.array([[1]], type=pa.list_(pa.field("element", pa.int64(), nullable=False)))
    assert _bytes(parquet) == _bytes(pa.array([[1]]))


def test_extension_types_are_stored_as_what_they_are_made_of():
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16)))
    assert _bytes(uuids) == _bytes(uuids.storage)


def test_a_union_is_refused():
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(UsageError, match="struct"):
        canonicalize_schema(pa.schema([("u", union.type)]))


def test_a_batch_that_is_not_as_planned_is_refused_by_the_column():
    schema = canonicalize_schema(pa.schema([("text", pa.large_string()), ("n", pa.int64())]))
    with pytest.raises(UsageError, match=r"'n'.*not in the batch"):
        canonicalize_batch(pa.record_batch({"text": pa.array(["a"], pa.large_string())}), schema)
    with pytest.raises(UsageError, match="'n' has type string"):
        canonicalize_batch(pa.record_batch({"text": pa.array(["a"], pa.large_string()), "n": pa.array(["1"])}), schema)


def _batch(rows):
    return pa.record_batch({"origin": make_origins(7, pa.array(range(rows))), "text": ["a"] * rows})


def test_the_bytes_are_those_of_a_stream_writer():
    batches = [_batch(3), _batch(1)]
    schema = batches[0].schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    blocks = b"".join(canonical.stream_block(batch, schema) for batch in batches)
    assert canonical.stream_header(schema) + blocks + canonical.STREAM_END == sink.getvalue().to_pybytes()
    assert b"".join(piece for batch in batches for piece in canonical.stream_pieces(batch, schema)) == blocks


def test_pieces_are_the_buffers_of_a_batch():
    batch = _batch(3).slice(1)
    pieces = canonical.stream_pieces(batch, batch.schema)
    assert b"".join(pieces) == canonical.stream_block(batch, batch.schema)
    addresses = {piece.address for piece in pieces if isinstance(piece, pa.Buffer)}
    assert batch.column("origin").field("position").buffers()[1].address + 8 in addresses


def test_no_rows_no_bytes():
    assert canonical.stream_block(_batch(0), _batch(0).schema) == b""
    assert canonical.stream_pieces(_batch(0), _batch(0).schema) == []
    assert canonical.origins_block(_batch(0)) == b""


def test_origins_alone(tmp_path):
    path = tmp_path / "origins.arrow"
    blocks = b"".join(map(canonical.origins_block, [_batch(2), _batch(0), _batch(3)]))
    path.write_bytes(canonical.origins_header() + blocks + canonical.origins_footer())
    read = list(canonical.read_mapped_batches(path))
    assert [batch.num_rows for batch in read] == [2, 3]
    assert read[1].column("origin").to_pylist()[2] == {"file": 7, "position": 2, "part": 0}
