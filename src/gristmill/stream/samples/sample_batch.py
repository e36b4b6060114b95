"""Batches of samples: arrays of equal shapes and numbers become one array, everything else a list.

Each sample is copied once, into its place in the array of the batch, which a trainer may want in pinned memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def join_samples(samples: Sequence[dict[str, Any]], new: Callable[..., Any]) -> dict[str, Any]:
    """Join samples into a batch, column by column. In a column that some samples lack, None stands for them.

    >>> batch = join_samples([{"x": np.zeros(2), "n": 1}, {"x": np.ones(2), "n": 2}], np.empty)
    >>> batch["x"].shape, batch["n"].tolist()
    ((2, 2), [1, 2])
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: _join_values([sample.get(name) for sample in samples], new) for name in names}


def _join_values(values: list[Any], new: Callable[..., Any]) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray) and all(_is_array(value, first.shape) for value in values):
        kind = np.result_type(*{value.dtype for value in values})
        joined = new((len(values), *first.shape), str(kind))
        for number, value in enumerate(values):
            joined[number] = value
        return joined
    if hasattr(first, "new_empty") and all(_is_like(value, first) for value in values):
        joined = first.new_empty((len(values), *first.shape))  # tensors, without importing torch
        for number, value in enumerate(values):
            joined[number] = value
        return joined
    if all(isinstance(value, (int, float, np.number, np.bool_)) for value in values):
        return np.array(values)
    return list(map(_make_writable, values))


def _is_array(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is an array of numbers, of this shape; of texts there are no tensors."""
    return isinstance(value, np.ndarray) and value.shape == shape and value.dtype.kind in "biufc"


def _make_writable(value: Any) -> Any:
    """Copy an array that is a view of a decoded image: torch warns of tensors that must not be written."""
    is_view = isinstance(value, np.ndarray) and not value.flags.writeable
    return value.copy() if is_view else value


def _is_like(value: Any, tensor: Any) -> bool:
    """Whether a value is a tensor of the same shape and type as another one."""
    return type(value) is type(tensor) and value.shape == tensor.shape and value.dtype == tensor.dtype


def make_blank(sample: dict[str, Any]) -> dict[str, Any]:
    """Make a sample that only fills up a batch: the shapes of another one, and zeros."""
    return {name: _make_blank_value(value) for name, value in sample.items()}


def _make_blank_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    if hasattr(value, "new_zeros"):
        return value.new_zeros(value.shape)
    if isinstance(value, (str, bytes, int, float, bool, list, dict)):
        return type(value)()
    if hasattr(value, "point"):  # a Pillow image
        return value.point(lambda _: 0)
    return value
