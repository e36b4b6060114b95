"""Dictionaries of string views, as polars writes categories: pyarrow can neither make nor decode them.

Their values become plain strings, so that no other module has to handle them.
"""

from __future__ import annotations

import pyarrow as pa

_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def remove_views_from_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with dictionaries of views replaced by dictionaries of plain values.

    >>> remove_views_from_type(pa.dictionary(pa.uint32(), pa.string_view()))
    DictionaryType(dictionary<values=large_string, indices=uint32, ordered=0>)
    """
    types = pa.types
    if types.is_dictionary(kind) and kind.value_type in _PLAIN:
        return pa.dictionary(kind.index_type, _PLAIN[kind.value_type], kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(remove_views_from_type(field.type)) for field in kind])
    for test, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if test(kind):
            return make(kind.value_field.with_type(remove_views_from_type(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(remove_views_from_type(kind.value_type)), kind.list_size)
    return kind


def remove_views_from_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(remove_views_from_type(field.type)) for field in schema], schema.metadata)


def remove_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the columns of `remove_views_from_schema`."""
    schema = remove_views_from_schema(batch.schema)
    if schema.equals(batch.schema):
        return batch
    arrays = [_decode_views(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _decode_views(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    column.validate(full=True)  # in a damaged file, views may point anywhere
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind.value_type))
    return pa.array(column.to_pylist(), kind)  # inside lists and objects, value by value
