"""The types of columns that the recipe does not name.

For JSON they come from a sample of the records: strings, booleans, whole numbers, numbers, lists of one of these,
objects. For tables they come from the files. If two values or two files disagree, the column is JSON text, which holds
any value exactly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from gristmill.core.json_values import EXACT_FLOAT, JSON_TYPE
from gristmill.core.records import INPUT_IDS, LITERALS, LOSS_MASK, ORIGIN, OTHER_FIELDS, RECORD, SPLIT, TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gristmill.core.records import SourceFile


RESERVED = frozenset((ORIGIN, TEXT, RECORD, SPLIT, INPUT_IDS, LOSS_MASK, LITERALS, OTHER_FIELDS))
"""Names with a meaning in the pipeline: a field of a file with such a name goes to `other_fields`."""
MAX_COLUMNS = 256
"""How many keys become columns: beyond that, the keys in the fewest records go to `other_fields`."""
_MAX_KEYS = 64
"""How many different keys objects may have to be a struct: with more they are mappings."""
_MAX_DEPTH = 8
_INT64 = range(-(2**63), 2**63)
_SCALARS = {str: pa.large_string(), bool: pa.bool_(), float: pa.float64()}
_IN_WORDS = {str: "strings", bool: "booleans", int: "whole numbers", float: "numbers", list: "lists", dict: "objects"}


class FieldType(NamedTuple):
    """The type of a column, and the reason if it is JSON text."""

    type: pa.DataType
    why: str = ""


REST = FieldType(JSON_TYPE, "what has no column")
"""The type of `other_fields`, for the plan."""


class WantedColumns(NamedTuple):
    """The uses that the columns of a source are planned for."""

    keeps_record: bool
    """Whether documents keep all fields of their records."""
    has_text: bool
    carries_members: bool
    """Whether all members of samples become columns."""
    is_text_optional: bool


@dataclass(frozen=True, slots=True)
class PlannedColumns:
    """The columns of a source besides `origin` and its text."""

    columns: dict[str, FieldType]
    members: dict[str, str] = field(default_factory=dict)
    """The extension of each column that is a separate member of a sample."""
    labels: dict[str, bytes] = field(default_factory=dict)
    """The features of columns with names of labels."""
    has_text: bool = True


_MAX_SAMPLED = 16


def choose_spread(files: Sequence[SourceFile], most: int = _MAX_SAMPLED) -> list[SourceFile]:
    """Choose up to `most` of the files, evenly spread, including the first and the last."""
    count = min(len(files), most)
    return [files[index * (len(files) - 1) // max(1, count - 1)] for index in range(count)]


def infer_field_types(records: Sequence[Mapping[str, Any]]) -> dict[str, FieldType]:
    """Return a type for each key of decoded records, in the order of their first occurrence; `null` for nulls only.

    >>> infer_field_types([{"id": 1, "tags": ["a"]}, {"id": "b", "score": 0.5}])["tags"].type
    LargeListType(large_list<item: large_string>)
    """
    values: dict[str, list[Any]] = {}
    for record in records:
        for key, value in record.items():
            values.setdefault(key, []).append(value)
    counts = Counter({key: len(field_values) for key, field_values in values.items() if is_column_name(key)})
    columns = {key for key, _ in counts.most_common(MAX_COLUMNS)}
    return {key: _infer_field_type(field_values, 0) for key, field_values in values.items() if key in columns}


def is_column_name(key: str) -> bool:
    """Whether a key can be a column: it is not reserved, and decoders accept it as a name."""
    return key not in RESERVED and is_plain_key(key)


def is_plain_key(key: str) -> bool:
    return bool(key) and all(character >= " " and character not in '\\"' for character in key)


def _infer_field_type(values: Iterable[Any], depth: int) -> FieldType:
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if not kinds:
        return FieldType(pa.null())
    if Decimal in kinds:
        return FieldType(JSON_TYPE, "numbers outside int64 and float64")
    if kinds <= {int, float} and int in kinds:
        return _number_type(present, kinds)
    if len(kinds) > 1:
        return FieldType(JSON_TYPE, " and ".join(sorted(_IN_WORDS[kind] for kind in kinds)))
    if depth >= _MAX_DEPTH:
        return FieldType(JSON_TYPE, f"more than {_MAX_DEPTH} levels")
    if kinds == {list}:
        inner, why = _infer_field_type((item for value in present for item in value), depth + 1)
        return FieldType(JSON_TYPE, f"lists of {why}") if inner.equals(JSON_TYPE) else FieldType(pa.large_list(inner))
    return _infer_object_type(present, depth) if kinds == {dict} else FieldType(_SCALARS[kinds.pop()])


def _number_type(values: Sequence[Any], kinds: set[type]) -> FieldType:
    whole = [value for value in values if type(value) is int]
    if kinds == {int}:
        fits = min(whole) in _INT64 and max(whole) in _INT64
        return FieldType(pa.int64()) if fits else FieldType(JSON_TYPE, "whole numbers outside int64")
    if max(map(abs, whole)) > EXACT_FLOAT:
        return FieldType(JSON_TYPE, "numbers, and whole numbers that are not exact as float64")
    return FieldType(pa.float64())


def _infer_object_type(objects: Sequence[dict[str, Any]], depth: int) -> FieldType:
    values: dict[str, list[Any]] = {}
    for item in objects:
        for key, value in item.items():
            values.setdefault(key, []).append(value)
    if not values:
        return FieldType(JSON_TYPE, "objects without keys")
    if len(values) > _MAX_KEYS:
        return FieldType(JSON_TYPE, f"objects with more than {_MAX_KEYS} different keys")
    if not all(map(is_plain_key, values)):
        return FieldType(JSON_TYPE, "objects with keys that are not names")
    fields = {key: _infer_field_type(field_values, depth + 1) for key, field_values in values.items()}
    for key, (kind, why) in fields.items():
        if kind.equals(JSON_TYPE):
            return FieldType(JSON_TYPE, f"objects whose {key} is {why}")
    return FieldType(pa.struct([(key, kind) for key, (kind, _) in fields.items()]))


def without_nulls(kind: pa.DataType) -> pa.DataType:
    """Replace null types of sampled JSON by text: a value that was always null may become text.

    >>> without_nulls(pa.large_list(pa.null()))
    LargeListType(large_list<item: large_string>)
    """
    if pa.types.is_null(kind):
        return pa.large_string()
    if pa.types.is_large_list(kind):
        return pa.large_list(without_nulls(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, without_nulls(field.type)) for field in kind])
    return kind


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return a type without its encoding. All texts get one type, so that sources fit together."""
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        return plain_type(arrow_type.value_type)
    if pa.types.is_string(arrow_type) or pa.types.is_string_view(arrow_type):
        return pa.large_string()
    if pa.types.is_binary(arrow_type) or pa.types.is_binary_view(arrow_type):
        return pa.large_binary()
    if pa.types.is_list(arrow_type):
        return pa.list_(plain_type(arrow_type.value_type))
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(plain_type(arrow_type.value_type))
    if pa.types.is_struct(arrow_type):
        return pa.struct([(field.name, plain_type(field.type)) for field in arrow_type])
    return arrow_type


def join_types(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type that holds every value of both types exactly; None if there is none.

    >>> join_types(pa.int32(), pa.int64()), join_types(pa.uint32(), pa.int32()), join_types(pa.int64(), pa.float64())
    (DataType(int64), DataType(int64), None)
    """
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    for wider in _WIDER:
        if left in wider and right in wider:
            return max(left, right, key=wider.index)
    types = pa.types
    if types.is_integer(left) and types.is_integer(right):  # one with a sign, one without
        signed, unsigned = (left, right) if types.is_signed_integer(left) else (right, left)
        width = max(signed.bit_width, 2 * unsigned.bit_width)
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(width)
    for test, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if test(left) and test(right):
            inner = join_types(left.value_type, right.value_type)
            return None if inner is None else make(inner)
    return None


_WIDER = (
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    (pa.float16(), pa.float32(), pa.float64()),
)
"""Groups of types: each type of a group holds all values of the types before it."""


def unite_types(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Like `join_types`, for unnamed columns: objects get the fields of both, and all kinds of lists fit together.

    >>> unite_types(pa.struct({"a": pa.int8()}), pa.struct({"b": pa.int8()}))
    StructType(struct<a: int8, b: int8>)
    """
    joined = join_types(left, right)
    if joined is not None:
        return joined
    types = pa.types
    if types.is_struct(left) and types.is_struct(right):
        fields: dict[str, pa.DataType] = {}
        for field in (*left, *right):
            both = unite_types(fields[field.name], field.type) if field.name in fields else field.type
            if both is None:
                return None
            fields[field.name] = both
        return pa.struct(list(fields.items()))
    if all(types.is_list(kind) or types.is_large_list(kind) for kind in (left, right)):
        inner = unite_types(left.value_type, right.value_type)
        is_large = types.is_large_list(left) or types.is_large_list(right)
        return None if inner is None else (pa.large_list if is_large else pa.list_)(inner)
    return None


def is_storable(kind: pa.DataType) -> bool:
    """Whether every format can hold values of a type; others become JSON text."""
    types = pa.types
    if types.is_union(kind) or types.is_interval(kind):
        return False
    if types.is_struct(kind) and not kind.num_fields:
        return False
    return all(is_storable(kind.field(index).type) for index in range(kind.num_fields))
