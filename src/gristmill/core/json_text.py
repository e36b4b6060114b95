"""Values as JSON: columns of JSON text, and what Arrow values become in JSON.

Bytes become base64, times become text, and numbers that JSON does not have (NaN, infinity) become null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.json_values import count_not_finite_values
from gristmill.core.records import JSON_TEXT, TEXT_TYPE, TYPE_REASON

if TYPE_CHECKING:
    from collections.abc import Iterable

JSON_TYPE = pa.json_(TEXT_TYPE)
"""The type of a column of JSON text while columns are planned. The column itself is text, marked by its metadata."""
EXACT_FLOAT = 2**53
"""The largest whole number up to which all are exact as floats."""
NAN_AS_NULL = "nan_as_null"
"""The counter of numbers that JSON cannot hold."""


def make_field(name: str, kind: pa.DataType, why: str = "") -> pa.Field:
    """Make the field of a column of this type; `JSON_TYPE` becomes text with metadata, `why` is the reason for it."""
    if not kind.equals(JSON_TYPE):
        return pa.field(name, kind)
    return pa.field(name, TEXT_TYPE, metadata={JSON_TEXT: b"text", **({TYPE_REASON: why.encode()} if why else {})})


def is_json(field: pa.Field) -> bool:
    """Whether a column holds JSON text: text with our metadata, or Arrow's own JSON type."""
    if isinstance(field.type, pa.JsonType):
        return True
    return JSON_TEXT in (field.metadata or {}) and field.type in (pa.string(), pa.large_string())


def reason_for_json(field: pa.Field) -> str:
    """Return the reason why a column is JSON text; empty if there is none."""
    return str((field.metadata or {}).get(TYPE_REASON, b"").decode())


def to_json_values(array: pa.Array, *, holds_json: bool = False) -> list[Any]:
    """Convert a column to values that `msgspec.json.encode` accepts.

    With `holds_json` each text is JSON and becomes the value that it encodes; text that is not JSON stays a string.
    """
    values: list[Any] = _cast_for_json(array).to_pylist()
    return [_parse_json_text(value) for value in values] if holds_json else values


def to_json_text(values: Iterable[Any]) -> pa.Array:
    """Encode values as a column of JSON text; null stays null."""
    texts = [None if value is None else msgspec.json.encode(value) for value in values]
    return pa.array([None if text == b"null" else text for text in texts], pa.large_binary()).cast(TEXT_TYPE)


def count_not_finite(array: pa.Array) -> int:
    """Count the NaN and infinities in an array, at any depth.

    >>> count_not_finite(pa.array([[1.0, float("nan")], None, [float("inf")]]))
    2
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_floating(kind):
        values = (array.cast(pa.float32()) if pa.types.is_float16(kind) else array).drop_null()
        return int(np.count_nonzero(~np.isfinite(values.to_numpy(zero_copy_only=False))))
    if not has_floats(kind):
        return 0
    if pa.types.is_struct(kind):
        return sum(count_not_finite(pc.struct_field(array, index)) for index in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return count_not_finite(array.dictionary_decode())
    if pa.types.is_map(kind) or not hasattr(array, "flatten"):
        return count_not_finite_values(array.to_pylist())
    return count_not_finite(array.flatten())


def has_floats(kind: pa.DataType) -> bool:
    """Whether values of a type may hold NaN."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_floats(kind.storage_type)
    if pa.types.is_floating(kind):
        return True
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return has_floats(kind.value_type)
    return any(has_floats(kind.field(index).type) for index in range(kind.num_fields))


def _parse_json_text(text: str | None) -> Any:
    if text is None:
        return None
    try:
        value = msgspec.json.decode(text.encode(), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return text
    # Records are written one to a line, so a value may not bring line breaks of its own.
    return msgspec.Raw(msgspec.json.format(bytes(value), indent=-1)) if "\n" in text else value


def _cast_for_json(array: pa.Array) -> pa.Array:
    kind = _choose_json_type(array.type)
    return array if kind.equals(array.type) else array.cast(kind)


def _choose_json_type(kind: pa.DataType) -> pa.DataType:
    """Choose the type to convert to: text for times (some need pandas as Python objects), floats for half floats."""
    if isinstance(kind, pa.BaseExtensionType):
        return _choose_json_type(kind.storage_type)
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_map(kind):
        return pa.map_(_choose_json_type(kind.key_type), _choose_json_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_choose_json_type(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_choose_json_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_choose_json_type(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_choose_json_type(kind.value_type))
    return kind
