"""A Python dict as a line of JSON, or a line that says why this is not possible.

Numbers and arrays of numpy become plain ones, times become ISO 8601 text, bytes base64, and numbers that JSON does not
have (NaN, infinity) null; the line says how many these are. Values that JSON cannot hold (sets, objects) are never
changed to fit: the record is quarantined when its line is read. Cost: about 1 µs a value.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from gristmill.core.json_values import encode_json
from gristmill.steps.read.json_files.json_fields import NUM_NAN, REFUSED

_SHOWN_CHARACTERS = 1000
_MAX_BITS = 13_000
"""The size of whole numbers from which on Python refuses to write them: 4,300 digits."""
REFUSED_LINE = msgspec.json.encode({REFUSED: []})[:-3]
"""The beginning of a line that says why a record cannot be JSON."""
_TIMES = (dt.date, dt.time)  # a datetime is a date too


class _NotJson(Exception):
    """A record holds a value that JSON cannot hold; the message says where."""


def encode_json_line(record: object) -> bytes:
    r"""Encode a record as one line, with its line end.

    >>> encode_json_line({"text": "a", "day": dt.date(2024, 2, 29)})
    b'{"text":"a","day":"2024-02-29"}\n'
    """
    if not isinstance(record, Mapping):
        return _encode_refusal(record, "not_an_object", f"a record must be a dict, not {type(record).__name__}")
    try:
        nan: list[str] = []
        plain = _to_json_value(record, "", nan)
        return encode_json({**plain, NUM_NAN: len(nan)} if nan else plain) + b"\n"
    except UnicodeEncodeError as error:
        return _encode_refusal(record, "lone_surrogate", str(error))
    except (_NotJson, RecursionError, OverflowError, ValueError) as error:
        return _encode_refusal(record, "not_json", str(error))


def _to_json_value(value: Any, path: str, nan: list[str]) -> Any:
    """Convert a value to one that JSON can hold; `nan` gets the places of numbers that became null."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if value.bit_length() < _MAX_BITS else Decimal(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            nan.append(path)
            return None
        return float(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {
            _check_key(key, path): _to_json_value(inner, f"{path}.{key}" if path else str(key), nan)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_to_json_value(inner, f"{path}[{index}]", nan) for index, inner in enumerate(value)]
    if isinstance(value, _TIMES):
        return value.isoformat()
    if isinstance(value, (str, int)):
        return str(value) if isinstance(value, str) else int(value)
    if hasattr(value, "tolist") and not isinstance(inner := value.tolist(), kind):  # numpy's numbers and arrays
        return _to_json_value(inner, path, nan)
    raise _NotJson(f"{path} holds {kind.__name__}, which JSON cannot hold")


def _check_key(key: object, path: str) -> str:
    if isinstance(key, str):
        return key
    raise _NotJson(f"{path or 'the record'} has the key {key!r}, which is not text")


def _encode_refusal(record: object, reason: str, message: str) -> bytes:
    record_text = repr(record)[:_SHOWN_CHARACTERS].encode(errors="backslashreplace").decode()
    message = message.encode(errors="backslashreplace").decode()
    return msgspec.json.encode({REFUSED: [reason, message], "record": record_text}) + b"\n"
