"""A Python dict as a line of JSON, or a line that says why it cannot be one.

Numbers of numpy and its arrays become plain ones, times become ISO 8601 text. What JSON has no form for (bytes, NaN,
sets, objects) is never bent: the record is set aside when its line is read. Cost: about 1 µs a value.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from gristmill.steps.read.json_fields import REFUSED

_SHOWN_CHARACTERS = 1000
_TIMES = (dt.date, dt.time)  # a datetime is a date, too


class _NotJson(Exception):
    """What stands where."""


def json_line(record: object) -> bytes:
    r"""One line, with its end.

    >>> json_line({"text": "a", "day": dt.date(2024, 2, 29)})
    b'{"text":"a","day":"2024-02-29"}\n'
    """
    if not isinstance(record, Mapping):
        return _refused(record, "not_an_object", f"a record must be a dict, not {type(record).__name__}")
    try:
        return msgspec.json.encode(_plain(record, "")) + b"\n"
    except UnicodeEncodeError as error:
        return _refused(record, "lone_surrogate", str(error))
    except (_NotJson, RecursionError, OverflowError, ValueError) as error:
        return _refused(record, "not_json", str(error))


def _plain(value: Any, place: str) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NotJson(f"{place} is {value}, which JSON cannot hold")
        return float(value)
    if isinstance(value, Mapping):
        return {
            _key(key, place): _plain(inner, f"{place}.{key}" if place else str(key)) for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(inner, f"{place}[{index}]") for index, inner in enumerate(value)]
    if isinstance(value, _TIMES):
        return value.isoformat()
    if isinstance(value, (str, int)):
        return str(value) if isinstance(value, str) else int(value)
    if hasattr(value, "tolist") and not isinstance(inner := value.tolist(), kind):  # numpy's numbers and arrays
        return _plain(inner, place)
    raise _NotJson(f"{place} holds {kind.__name__}, which JSON cannot hold")


def _key(key: object, place: str) -> str:
    if isinstance(key, str):
        return key
    raise _NotJson(f"{place or 'the record'} has the key {key!r}, which is not text")


def _refused(record: object, reason: str, message: str) -> bytes:
    shown = repr(record)[:_SHOWN_CHARACTERS].encode(errors="backslashreplace").decode()
    message = message.encode(errors="backslashreplace").decode()
    return msgspec.json.encode({REFUSED: [reason, message], "record": shown}) + b"\n"
