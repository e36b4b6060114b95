"""JSON with numbers of any size: what int64 and float64 cannot hold is a `Decimal`, and written as a number again.

msgspec refuses such numbers where it must build them. Only then is a record decoded a second time, by the standard
library; in that case about 30 MB/s.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

_MAX_DIGITS = 4000
"""Longer whole numbers are decimals: Python refuses to convert 4,300 digits and more."""
_encoder = msgspec.json.Encoder(decimal_format="number")


def decode_json(content: bytes | str) -> Any:
    """A JSON value; raises `msgspec.DecodeError` if it is none.

    >>> decode_json(b'{"n": 1e400, "m": 2}')
    {'n': Decimal('1E+400'), 'm': 2}
    """
    try:
        return msgspec.json.decode(content)
    except msgspec.ValidationError:  # the grammar holds up to a number that is out of range
        try:
            return json.loads(content, parse_int=_parse_whole_number, parse_float=_parse_number, parse_constant=_refuse)
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from None


def encode_json(value: Any) -> bytes:
    """A value as JSON, decimals as numbers.

    >>> encode_json({"n": Decimal("1e400")})
    b'{"n":1E+400}'
    """
    return _encoder.encode(value)


def is_huge(value: object) -> bool:
    """Whether a decoded number is outside int64 and float64."""
    return isinstance(value, Decimal) or (type(value) is int and not -(2**63) <= value < 2**63)


def count_not_finite_values(value: Any) -> int:
    """How many NaN and infinities a value holds, at any depth: JSON has null for them.

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
