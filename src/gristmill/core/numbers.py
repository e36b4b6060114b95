"""Checks of numbers that callers pass: integers of any library become ints, and lookalikes are refused.

To Python `True` is an int and 7.0 equals 7, and NumPy truncates 1.9 to 1: each would select a row that nobody meant.
"""

from __future__ import annotations

import math
import numbers
import operator
import re
from typing import Any

from gristmill.core.errors import UsageError

MAX_COUNT = 1 << 62
"""The largest number of rows, tokens or steps. The sum of two still fits 64 bits."""


def check_whole_number(name: str, value: Any, *, least: int = 0, most: int = MAX_COUNT) -> int:
    """Return an integer, also one of NumPy or torch, as an int.

    >>> import numpy as np
    >>> check_whole_number("rows", np.uint8(7))
    7
    """
    try:
        if isinstance(value, bool) or getattr(value, "ndim", None):
            raise TypeError
        number = operator.index(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be a whole number, not {value!r:.80}") from None
    if not least <= number <= most:
        bounds = f"at least {least}" if number < least else f"at most {most:,}"
        raise UsageError(f"{name} must be {bounds}, not {number}")
    return number


def check_seed(value: Any) -> int:
    """Return a seed: any 64-bit integer."""
    return check_whole_number("seed", value, least=-(1 << 63), most=(1 << 63) - 1)


def check_real_number(name: str, value: Any, *, least: float = 0.0) -> float:
    """Return a finite number that is at least `least`."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:
        raise UsageError(f"{name} must be a number, at least {least:g}, not {value!r:.80}")
    return float(value)


_SIZES = {
    "": 1,
    **{
        f"{letter}{unit}": base**power
        for power, letter in enumerate("KMGTP", 1)
        for unit, base in (("", 1000), ("I", 1024))
    },
}


def parse_byte_size(name: str, value: Any) -> int:
    """Return a number of bytes from an integer or from text such as `64MiB`, `1.5 GB`, `500k`.

    >>> [parse_byte_size("slice_bytes", value) for value in (7, "1MiB", "1 MB", "1.5GiB", "500k")]
    [7, 1048576, 1000000, 1610612736, 500000]
    """
    if not isinstance(value, str):
        return check_whole_number(name, value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]?I?)B?", value.strip().upper())
    if match is None or match[2] not in _SIZES:
        raise UsageError(f"{name} must be a number of bytes, not {value!r:.80}", help="write 1048576, 1MiB or 1MB")
    return check_whole_number(name, round(float(match[1]) * _SIZES[match[2]]))


def is_share(value: Any) -> bool:
    """Whether the value is a number from 0 to 1; NaN, bools and text are not.

    >>> [is_share(value) for value in (0, 0.5, 1.5, float("nan"), "0.5", True)]
    [True, True, False, False, False, False]
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and bool(0 <= value <= 1)


def check_positive_number(name: str, value: Any) -> float:
    """Return a finite number above 0."""
    number = check_real_number(name, value)
    if number == 0:
        raise UsageError(f"{name} must be above 0, not {value!r:.80}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return a bool. Nothing else is accepted: the text "False" counts as true in Python."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, not {value!r:.80}")
    return value
