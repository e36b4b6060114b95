"""JSON with numbers of any size: a number that neither int64 nor float64 can hold becomes a `Decimal`.

msgspec refuses such numbers. Only then is a record decoded a second time, by the standard library at about 30 MB/s.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

_MAX_DIGITS = 4000
"""The limit above which whole numbers become decimals: Python refuses to convert 4,300 digits and more."""
_encoder = msgspec.json.Encoder(decimal_format="number")


def decode_json(content: bytes | str) -> Any:
    """Decode a JSON value. Raises `msgspec.DecodeError` if it is not JSON.

    >>> decode_json(b'{"n": 1e400, "m": 2}')
    {'n': Decimal('1E+400'), 'm': 2}
    """
    try:
        return msgspec.json.decode(content)
    except msgspec.ValidationError:  # the JSON is valid up to a number that is out of range
        try:
            return json.loads(content, parse_int=_parse_whole_number, parse_float=_parse_number, parse_constant=_refuse)
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


def _parse_whole_number(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _MAX_DIGITS else Decimal(digits)


def _parse_number(digits: str) -> float | Decimal:
    return number if math.isfinite(number := float(digits)) else Decimal(digits)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
