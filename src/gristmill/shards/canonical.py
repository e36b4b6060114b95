"""Canonical batches: equal records give equal bytes.

Two equal Arrow arrays may differ in memory: slices start at an offset, null slots hold arbitrary values, bitmaps end in
arbitrary bits, a dictionary has its own order. Here each array is rebuilt in the one form that its values define:
offset 0, exact buffers, zeros under nulls, no bitmap if nothing is null, no dictionaries, views, runs or extension
types, and sorted metadata.

Cost: without nulls the value buffers are only sliced; a column with nulls is copied once.

Canonical batches are stored as Arrow IPC streams: a header, one message for each batch, and an end mark. A message
depends on its batch alone, so blocks can be encoded anywhere and joined in any grouping. Streams are memory-mapped for
reading: opening a stream of k batches reads k small message headers, and a row is read from the disk when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.records import ORIGIN, ORIGIN_TYPE
from gristmill.storage.files import open_stream_source

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gristmill.storage.locations import Location


# Metadata of the program that wrote the input. It does not describe the output, but readers would rely on it.
_STALE_METADATA = (b"ARROW:extension:", b"PARQUET:", b"huggingface", b"pandas")
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

ORIGINS_SCHEMA = pa.schema([(ORIGIN, ORIGIN_TYPE)])
SAMPLE_BYTES = "bytes"
SAMPLES_SCHEMA = ORIGINS_SCHEMA.append(pa.field(SAMPLE_BYTES, pa.uint64()))
"""The columns of a side file of samples: it is also the index of the shard, by the bytes of each sample."""


def canonicalize_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain types and sorted metadata.

    All fields are nullable, so that the schema does not depend on whether the data holds nulls.

    >>> canonicalize_schema(pa.schema([pa.field("tag", pa.dictionary(pa.int8(), pa.string()), nullable=False)]))
    tag: string
    """
    return pa.schema([_canonicalize_field(field) for field in schema], metadata=_sort_metadata(schema.metadata))


def canonicalize_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rebuild the columns of a canonical `schema`; other columns of the batch are left out."""
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise UsageError(
                f"column {field.name!r} was planned but is not in the batch",
                help="every step must return the columns that it declared",
                columns=batch.schema.names,
            )
        array = canonicalize_array(batch.column(index))
        if not array.type.equals(field.type):
            raise UsageError(
                f"column {field.name!r} has type {array.type}, but {field.type} was planned",
                help="a function must return each column with the same type in every batch",
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def canonicalize_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of `kind` are stored."""
    if isinstance(kind, pa.BaseExtensionType):
        return canonicalize_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return canonicalize_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_map(kind):
        return pa.map_(
            canonicalize_type(kind.key_type), canonicalize_type(kind.item_type), keys_sorted=kind.keys_sorted
        )
    if pa.types.is_struct(kind):
        return pa.struct([_canonicalize_field(field) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(canonicalize_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(canonicalize_type(kind.value_type))
    if pa.types.is_large_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(canonicalize_type(kind.value_type))
    if pa.types.is_union(kind):
        raise UsageError(f"columns of type {kind} cannot be written", help="use a struct with one field for each case")
    return kind


def canonicalize_array(array: pa.Array) -> pa.Array:
    """Rebuild an array with its `canonicalize_type`, in the one form that its values define."""
    array = _to_plain(array)
    kind = canonicalize_type(array.type)
    if pa.types.is_null(kind):
        return pa.nulls(len(array))
    valid: NDArray[np.bool_] | None = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_nested(kind) or _is_binary(kind):
            array = _clear_nulls(array, valid)
    buffers, children = _storage(array, kind, valid)
    validity = None if valid is None else pack_bits(valid)
    num_nulls = 0 if valid is None else int(len(valid) - np.count_nonzero(valid))
    return pa.Array.from_buffers(kind, len(array), [validity, *buffers], num_nulls, children=children)


def _storage(
    array: pa.Array, kind: pa.DataType, valid: NDArray[np.bool_] | None
) -> tuple[list[pa.Buffer], list[pa.Array] | None]:
    """Return the buffers after the validity bitmap, and the children."""
    if pa.types.is_struct(kind):
        return [], [canonicalize_array(array.field(index)) for index in range(kind.num_fields)]
    if pa.types.is_fixed_size_list(kind):
        items = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        if valid is not None:  # for fixed-size lists `take` does not clear the items of a null
            items = _clear_nulls(items, np.repeat(valid, kind.list_size))
        return [], [canonicalize_array(items)]
    if pa.types.is_map(kind):
        offsets, start, stop = _offsets(array, np.dtype(np.int32))
        entries = array.values.slice(start, stop - start)
        key_value = [canonicalize_array(entries.field(index)) for index in range(2)]
        return [offsets], [pa.StructArray.from_arrays(key_value, fields=[kind.key_field, kind.item_field])]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets, start, stop = _offsets(array, _choose_offset_dtype(kind))
        return [offsets], [canonicalize_array(array.values.slice(start, stop - start))]
    if _is_binary(kind):
        offsets, start, stop = _offsets(array, _choose_offset_dtype(kind))
        data = array.buffers()[2]
        return [offsets, pa.py_buffer(b"") if data is None else data.slice(start, stop - start)], None
    if pa.types.is_boolean(kind):
        return [pack_bits(array.fill_null(False).to_numpy(zero_copy_only=False))], None
    return [_canonicalize_fixed_width(array, kind.bit_width // 8, valid)], None


def _clear_nulls(array: pa.Array, valid: NDArray[np.bool_]) -> pa.Array:
    """Clear the slots that are not valid, in children, too: `take` of a null index makes an empty slot."""
    return array.take(pa.array(np.arange(len(array)), mask=~valid))


def _canonicalize_fixed_width(array: pa.Array, width: int, valid: NDArray[np.bool_] | None) -> pa.Buffer:
    data = array.buffers()[1]
    if data is None or not len(array):
        return pa.py_buffer(b"")
    exact = data.slice(array.offset * width, len(array) * width)
    if valid is None:
        return exact
    values = np.frombuffer(exact, dtype=np.uint8).reshape(len(array), width).copy()
    values[~valid] = 0
    return pa.py_buffer(values)


def _offsets(array: pa.Array, dtype: np.dtype[np.signedinteger]) -> tuple[pa.Buffer, int, int]:
    """Return offsets that start at 0, and the range of values that the old ones covered."""
    data = array.buffers()[1]
    if data is None or not len(array):
        return pa.py_buffer(np.zeros(1, dtype=dtype)), 0, 0
    old = np.frombuffer(data, dtype=dtype, count=len(array) + 1, offset=array.offset * dtype.itemsize)
    return pa.py_buffer(old - old[0]), int(old[0]), int(old[-1])


def _choose_offset_dtype(kind: pa.DataType) -> np.dtype[np.signedinteger]:
    large = pa.types.is_large_list(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return np.dtype(np.int64 if large else np.int32)


def _is_binary(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def pack_bits(bits: NDArray[np.bool_]) -> pa.Buffer:
    """Pack bits into a bitmap whose last byte is filled up with zeros."""
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def _to_plain(array: pa.Array) -> pa.Array:
    """Remove extension, dictionary, runs or views at the outermost level."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _to_plain(array.storage)
    if pa.types.is_dictionary(kind):
        return _to_plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return _to_plain(pc.run_end_decode(array))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return array.cast(canonicalize_type(kind))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        # `cast` takes the offsets of views for those of lists, which fails or gives the values of other rows.
        stops = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()))
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), stops])
        return pa.LargeListArray.from_arrays(
            offsets, array.flatten(), mask=array.is_null() if array.null_count else None
        )
    return array


def _canonicalize_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, canonicalize_type(field.type), metadata=_sort_metadata(field.metadata))


def _sort_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    remaining = {key: value for key, value in sorted((metadata or {}).items()) if not key.startswith(_STALE_METADATA)}
    return remaining or None


def stream_header(schema: pa.Schema) -> bytes:
    """Encode the header of a stream with a canonical schema."""
    return bytes(schema.serialize())


def stream_block(batch: pa.RecordBatch, schema: pa.Schema) -> bytes | pa.Buffer:
    """Encode a batch as one message; a batch without rows as nothing."""
    return canonicalize_batch(batch, schema).serialize() if batch.num_rows else b""


def stream_pieces(batch: pa.RecordBatch, schema: pa.Schema) -> list[bytes | pa.Buffer]:
    """Encode a batch as the pieces of one message, which are the batch's own buffers: only small ones are copies."""
    if not batch.num_rows:
        return []
    stream = _PieceStream()
    pa.ipc.new_stream(pa.PythonFile(stream, mode="w"), schema).write_batch(canonicalize_batch(batch, schema))
    num_left = len(stream_header(schema))  # the stream begins with another header
    first = 0
    while num_left > 0:
        num_left -= len(stream.pieces[first])
        first += 1
    return stream.pieces[first:]


class _PieceStream:
    """A minimal in-memory file for Arrow's writer, which keeps the pieces."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[bytes | pa.Buffer] = []

    def write(self, piece: bytes | pa.Buffer) -> None:
        self.pieces.append(piece)


def origins_header(*, has_sizes: bool = False) -> bytes:
    """Encode the header of a side file of origins, for shards in formats that cannot hold them."""
    return stream_header(SAMPLES_SCHEMA if has_sizes else ORIGINS_SCHEMA)


def origins_block(batch: pa.RecordBatch, sizes: list[int] | None = None) -> bytes | pa.Buffer:
    """Encode the origins of the records in a batch, and the bytes of each in its shard if they are an index of it."""
    if sizes is None:
        return stream_block(batch, ORIGINS_SCHEMA)
    columns = [batch.column(ORIGIN), pa.array(sizes, pa.uint64())]
    return stream_block(pa.RecordBatch.from_arrays(columns, schema=SAMPLES_SCHEMA), SAMPLES_SCHEMA)


def origins_footer() -> bytes:
    return STREAM_END


def read_mapped_batches(path: Location, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Read the batches of a stream on disk, as views of the mapped file: nothing is copied.

    Each batch is checked completely before it is yielded (1 GB/s for texts, far more for numbers). Arrow itself checks
    no buffer when it reads a stream: a buffer that is too short, or offsets beyond its end, would be read past the end.

    Raises:
        ArrowInvalid: A batch is damaged.
        ValueError: The columns differ from `schema`.
    """
    for batch in read_unchecked_batches(path, schema):
        batch.validate(full=True)
        yield batch


def read_unchecked_batches(path: Location, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Like `read_mapped_batches`, but only the sizes of buffers are checked, not their values: no row is read."""
    with open_stream_source(path) as mapped, pa.ipc.open_stream(mapped) as stream:
        is_index = schema is ORIGINS_SCHEMA and stream.schema.equals(SAMPLES_SCHEMA)  # has the origins too
        if schema is not None and not is_index and not stream.schema.equals(schema):
            raise ValueError("its columns are not those in the manifest")
        for batch in stream:
            batch.validate()
            yield batch


def make_damage_error(
    path: str | os.PathLike[str], problem: str, folder: str | os.PathLike[str] | None = None
) -> DamagedDatasetError:
    """Make the error for a damaged file; `folder` is the dataset that it belongs to, where it is known.

    >>> print(make_damage_error("train/web/shard-00001.arrow", "is missing", "out"))
    train/web/shard-00001.arrow is missing
      help: run `gristmill verify out` to list all damage
    """
    command = "gristmill verify" if folder is None else f"gristmill verify {folder}"
    return DamagedDatasetError(f"{path} {problem}", help=f"run `{command}` to list all damage", shard=str(path))
