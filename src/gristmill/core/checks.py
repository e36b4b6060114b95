"""Checks of what callers pass: names against the valid ones, numbers of any library as Python's, data against types.

A wrong name is refused with the nearest valid one. Lookalikes of numbers are refused: to Python `True` is an int and
7.0 equals 7, and NumPy truncates 1.9 to 1. Each would select a row that no one meant.
"""

from __future__ import annotations

import math
import numbers
import operator
import re
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_COUNT = 1 << 62
"""The largest number of rows, tokens or steps. The sum of two still fits 64 bits."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What may control a terminal, or turn the direction of the text around it; not line ends and tabs."""
T = TypeVar("T")
_FIRST_USE = Lock()
_SIZES = {"": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("KMGTP", 1)
    for unit, base in (("", 1000), ("I", 1024))
}


def escape_controls(text: str) -> str:
    r"""Write out the characters of a text that would control a terminal: names and data may come from anyone.

    >>> print(escape_controls("a\x1b[2J.jsonl"))
    a\x1b[2J.jsonl
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def describe_type(kind: type[T]) -> type[T]:
    """Let msgspec work out the fields of a type, in one thread at a time, and return the type.

    msgspec does so when it first decodes or converts to a type, and keeps the result with its structs. A second thread
    that needs one of them meanwhile reads what is not complete, which ends the process (msgspec 0.22).
    """
    import msgspec  # noqa: PLC0415  (`gristmill --help` needs none)

    with _FIRST_USE:
        msgspec.json.Decoder(kind)
    return kind


def find_nearest(name: str, valid_names: Iterable[str]) -> str | None:
    """Return the valid name that was probably meant, or None.

    >>> find_nearest("proceses", ["serial", "threads", "processes"])
    'processes'
    """
    import difflib  # noqa: PLC0415  (only needed after a mistake)

    matches = difflib.get_close_matches(name, list(valid_names), n=1)
    return matches[0] if matches else None


def check_choice(key: str, name: object, valid_names: Iterable[str]) -> None:
    """Raise `UsageError` unless the name, the value of the option or recipe key `key`, is valid."""
    names = list(valid_names)
    if name in names:
        return
    suggestion = find_nearest(name, names) if isinstance(name, str) else None
    hint = f'did you mean "{suggestion}"?' if suggestion else None
    raise UsageError(f"{key} must be one of {join_names(names)}, not {name!r:.80}", help=hint)


def join_names(names: Iterable[str], max_names: int = 20) -> str:
    """Join names for a message: the first ones, and the number of the rest.

    >>> join_names("abc"), join_names("abcde", 2)
    ('a, b, c', 'a, b and 3 more')
    """
    all_names = list(names)
    num_more = len(all_names) - max_names
    return f"{', '.join(all_names[:max_names])} and {num_more:,} more" if num_more > 1 else ", ".join(all_names)


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


_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


def parse_count(name: str, value: Any) -> int:
    """Return a whole number from an integer or from text such as `300M`, `1.5B`, `20G`.

    >>> [parse_count("size", value) for value in (7, "5_000", "300M", "1.5B", "20G")]
    [7, 5000, 300000000, 1500000000, 20000000000]
    """
    if not isinstance(value, str):
        return check_whole_number(name, value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBGT]?)", value.replace("_", "").replace(",", "").strip().upper())
    number = float(match[1]) * _COUNTS[match[2]] if match else 0.5
    if number != round(number):
        raise UsageError(f"{name} must be a whole number, not {value!r:.80}", help="write 5000, 300M or 1.5B")
    return round(number)


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
