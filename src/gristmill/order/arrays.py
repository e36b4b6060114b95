"""Checks of rows and indices that callers pass, as arrays of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.numbers import MAX_COUNT, check_whole_number

if TYPE_CHECKING:
    from numpy.typing import NDArray


def check_whole_numbers(name: str, values: Any) -> NDArray[np.int64]:
    """Return one integer or many as an array. Anything that would have to be rounded is refused.

    >>> check_whole_numbers("rows", range(3))
    array([0, 1, 2])
    """
    if isinstance(values, list | tuple) and not any(isinstance(value, list | tuple) for value in values):
        # One by one: NumPy would treat True as 1, and turn 1 and an unsigned 1 together into a float.
        values = np.array([check_whole_number(name, value, least=-MAX_COUNT) for value in values], dtype=np.int64)
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and array.size and int(array.max()) >> 63):
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} must be whole numbers below 2^63, not {values!r:.80}") from None
    return array.astype(np.int64, copy=False)
