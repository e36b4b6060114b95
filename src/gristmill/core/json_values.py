"""JSON in records and columns: numbers of any size, Arrow values as JSON, and changes of a few values of a record.

A number that neither int64 nor float64 can hold becomes a `Decimal`. msgspec refuses it, and only then is the value
decoded a second time, by the standard library at about 30 MB/s. Of Arrow values bytes become base64, times text, and
numbers that JSON does not have (NaN, infinity) null. A change of some values of a record keeps the bytes of all others.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import JSON_TEXT, TEXT, TEXT_TYPE, TYPE_REASON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

JSON_TYPE = pa.json_(TEXT_TYPE)
"""The type of a column of JSON text while columns are planned. The column itself is text, marked by its metadata."""
EXACT_FLOAT = 2**53
"""The largest whole number up to which all are exact as floats."""
NAN_AS_NULL = "nan_as_null"
"""The counter of numbers that JSON cannot hold."""
_MAX_DIGITS = 4000
"""The limit above which whole numbers become decimals: Python refuses to convert 4,300 digits and more."""
_encoder = msgspec.json.Encoder(decimal_format="number")
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def decode_json(content: bytes | str) -> Any:
    """Decode a JSON value. Raises `msgspec.DecodeError` if it is not JSON.

    >>> decode_json(b'{"n": 1e400, "m": 2}')
    {'n': Decimal('1E+400'), 'm': 2}
    """
    try:
        return msgspec.json.decode(content)
    except msgspec.ValidationError:  # the JSON is valid up to a number that is out of range
        try:
            return json.loads(
                content,
                parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else Decimal(digits),
                parse_float=lambda digits: number if math.isfinite(number := float(digits)) else Decimal(digits),
                parse_constant=_refuse,
            )
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from None


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON, decimals as numbers.

    >>> encode_json({"n": Decimal("1e400")})
    b'{"n":1E+400}'
    """
    return _encoder.encode(value)


def is_huge(value: object) -> bool:
    """Whether a decoded number is outside int64 and float64."""
    return isinstance(value, Decimal) or (type(value) is int and not -(2**63) <= value < 2**63)


def count_not_finite_values(value: Any) -> int:
    """Count the NaN and infinities in a value, at any depth: JSON writes null for them.

    >>> count_not_finite_values({"a": [1.0, math.nan], "b": math.inf})
    2
    """
    if isinstance(value, float):
        return int(not math.isfinite(value))
    if isinstance(value, dict):
        return sum(map(count_not_finite_values, value.values()))
    return sum(map(count_not_finite_values, value)) if isinstance(value, (list, tuple)) else 0


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


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
    kind = _choose_json_type(array.type)
    values: list[Any] = (array if kind.equals(array.type) else array.cast(kind)).to_pylist()
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
    # Records are written one to a line, so a value may not bring line breaks.
    return msgspec.Raw(msgspec.json.format(bytes(value), indent=-1)) if "\n" in text else value


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


def with_values(line: bytes | memoryview, changes: Iterable[tuple[Sequence[str], Any]]) -> bytes:
    """Return the record with these values at their paths.

    >>> with_values(b'{"id": 1.50, "body": {"text": "a"}}', [(("body", "text"), "b")])
    b'{"id":1.50,"body":{"text":"b"}}'
    """
    record = _decode(line)
    for path, value in changes:
        _set_value(record, path, value)
    return msgspec.json.encode(record)


def with_new_value(line: bytes, name: str, value: Any) -> bytes:
    """Return the record with a new key; `ValueError` if it has the key already.

    >>> with_new_value(b'{"id": 1.50}', "n", 2)
    b'{"id":1.50,"n":2}'
    """
    record = _decode(line)
    if name in record:
        raise ValueError(f"a record already has the key {name}")
    _set_value(record, (name,), value)
    return msgspec.json.encode(record)


def with_text(line: bytes, text: str) -> bytes:
    """Return the record with its text under `text`; `ValueError` if another value is there.

    >>> with_text(b'{"id": 1.50}', "a"), with_text(b'{"text": "a", "id": 1.50}', "a")
    (b'{"id":1.50,"text":"a"}', b'{"text": "a", "id": 1.50}')
    """
    record = _decode(line)
    if TEXT not in record:
        return with_values(line, [((TEXT,), text)])
    if msgspec.json.decode(record[TEXT]) != text:
        raise ValueError("the record has another value under text: name the field that holds the text, `text: ...`")
    return line


def with_names(line: bytes, names: Mapping[str, str]) -> bytes:
    """Return the record with keys renamed in place; `ValueError` if it has a new name already.

    >>> with_names(b'{"id": 1.50, "url": "a"}', {"url": "link"})
    b'{"id":1.50,"link":"a"}'
    """
    record = _decode(line)
    renamed = {names.get(key, key): value for key, value in record.items()}
    if len(renamed) < len(record):
        clashes = sorted(new for old, new in names.items() if old in record and new in record and new not in names)
        raise ValueError(f"the record already has {', '.join(clashes)}")
    return msgspec.json.encode(renamed)


def _set_value(record: dict[str, msgspec.Raw], path: Sequence[str], value: Any) -> None:
    key, *rest = path
    if rest:
        inner = _decode(record.get(key, msgspec.Raw(b"{}")))
        _set_value(inner, rest, value)
        value = inner
    record[key] = msgspec.Raw(msgspec.json.encode(value))
