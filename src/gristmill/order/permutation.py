"""A shuffle of 0..n-1 that is computed, not stored: O(1) memory, about 0.1 µs a number, any n up to 2^62.

A balanced Feistel network over the smallest even number of bits that can hold n-1. A result outside of 0..n-1 is sent
through again until it falls inside (cycle walking: at most 4 times on average, since the domain is below 4n). Each
round replaces (left, right) by (right, left XOR F(right)), which can be undone for any F: hence a bijection.
F takes the *high* bits of a 64-bit hash. A product whose low bits are taken never carries high bits downward, and then
all of the first thousand outputs can be odd.

`BlockOrder` reads blocks of consecutive rows once: it shuffles their order, then the rows of n blocks at a time.

    epoch e of a lane:   blocks ─permutation─▶ windows of n blocks ─permutation of the window's rows─▶ rows

Every row is read once an epoch, and a reader holds n blocks. With n = all blocks this is a full shuffle. Row p is a
pure function: a permutation of the blocks (O(blocks), kept for the epochs in use), two binary searches, and a
permutation of the window's rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, overload

import numpy as np

from gristmill.core.checks import MAX_COUNT, check_whole_number
from gristmill.core.errors import OutOfRangeError, UsageError
from gristmill.core.seeds import derive_key
from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


_ROUNDS = 6
_ONE = np.uint64(1)
_WORD_BITS = np.uint64(64)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1 = np.uint64(30)
_SHIFT_2 = np.uint64(27)
_SHIFT_3 = np.uint64(31)


class Permutation:
    """A shuffle of the numbers below `n`, one for each 64-bit `key`.

    >>> Permutation(5, key=1)([0, 1, 2, 3, 4]).tolist()
    [0, 1, 4, 2, 3]
    >>> Permutation(10**12, key=1)(0)
    46820101469
    """

    def __init__(self, n: int, key: int) -> None:
        self.n = check_whole_number("the size of a permutation", n, least=1, most=MAX_COUNT)
        self.key = check_whole_number("key", key, least=-(2**64), most=2**64) % 2**64

    @overload
    def __call__(self, indices: SupportsIndex) -> int: ...
    @overload
    def __call__(self, indices: ArrayLike) -> NDArray[np.int64]: ...
    def __call__(self, indices: SupportsIndex | ArrayLike) -> int | NDArray[np.int64]:
        """Return the position of each index in the shuffle; a number for a number, an array for an array."""
        array = check_whole_numbers("indices", indices)
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < self.n:
            raise OutOfRangeError(f"indices of a permutation of {self.n} numbers are from 0 to {self.n - 1}")
        positions = np.empty(array.size, dtype=np.int64)
        _permute(
            array.ravel().astype(np.uint64), np.uint64(self.n), count_half_bits(self.n), np.uint64(self.key), positions
        )
        return positions.reshape(array.shape) if array.ndim else int(positions[0])


def count_half_bits(n: int) -> np.uint64:
    """Count the bits of each half in the network's domain, at least 1. A rounded logarithm could be one off."""
    return np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))


def make_source_key(seed: int, source: str) -> int:
    """Derive the 64-bit key of a source under a seed; each epoch has its own key (`make_epoch_key`)."""
    return derive_key(seed, f"order/{source}")


def make_epoch_key(seed: int, source: str, epoch: int) -> int:
    """Derive the key of the permutation in which a source is read in its `epoch`-th pass.

    A hash, not a sum: with seed + epoch, seed 7 in its second epoch would be seed 8 in its first.
    """
    return int(_mix(np.uint64((make_source_key(seed, source) + epoch * int(_GOLDEN)) % 2**64)))


def make_window_key(epoch_key: int, window: int) -> int:
    """Derive the key of the permutation of the rows in a window of blocks; `epoch_key` is that of the blocks."""
    return int(_mix(np.uint64(Permutation(1 << 62, derive_key(epoch_key, "windows"))(window))))


@kernel
def _mix(value: np.uint64) -> np.uint64:
    """Mix the bits with the finaliser of splitmix64: every output bit depends on every input bit."""
    value = (value ^ (value >> _SHIFT_1)) * _MIX_1
    value = (value ^ (value >> _SHIFT_2)) * _MIX_2
    return value ^ (value >> _SHIFT_3)


@kernel
def _place(value: np.uint64, size: np.uint64, half: np.uint64, key: np.uint64) -> np.uint64:
    """Send a value through the network until the result is below `size`."""
    mask = (_ONE << half) - _ONE
    shift = _WORD_BITS - half
    # It ends: the network is a bijection, so the cycle that began at a value below `size` must return below `size`.
    while True:
        left = value >> half
        right = value & mask
        round_seed = key
        for _ in range(_ROUNDS):
            round_seed += _GOLDEN
            left, right = right, left ^ (_mix(right ^ _mix(round_seed)) >> shift)
        value = (left << half) | right
        if value < size:
            return value


@kernel
def _permute(
    indices: NDArray[np.uint64], size: np.uint64, half: np.uint64, key: np.uint64, positions: NDArray[np.int64]
) -> None:
    for number in range(len(indices)):
        positions[number] = np.int64(_place(indices[number], size, half, key))


@kernel
def place_draws(
    sources: NDArray[np.int64],
    draws: NDArray[np.int64],
    sizes: NDArray[np.int64],
    halves: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    positions: NDArray[np.int64],
) -> None:
    """Find the row of each draw in its source. Draw k belongs to epoch k // size, which is shuffled by its own key."""
    for number in range(len(sources)):
        source = sources[number]
        size = sizes[source]
        epoch = draws[number] // size
        index = draws[number] - epoch * size
        key = _mix(keys[source] + np.uint64(epoch) * _GOLDEN)
        positions[number] = np.int64(_place(np.uint64(index), np.uint64(size), halves[source], key))


@kernel
def _find_first_above(ends: NDArray[np.int64], value: np.int64) -> int:
    start, stop = 0, len(ends)
    while start < stop:
        middle = (start + stop) // 2
        if ends[middle] > value:
            stop = middle
        else:
            start = middle + 1
    return start


@kernel
def place_in_windows(
    places: NDArray[np.int64],
    window_ends: NDArray[np.int64],
    keys: NDArray[np.uint64],
    block_ends: NDArray[np.int64],
    shifts: NDArray[np.int64],
    indices: NDArray[np.int64],
) -> None:
    """Find the stored row of each place of an epoch: shuffled in its window, and shifted as the block that it is in."""
    start, end, half, key = 0, 0, _ONE, np.uint64(0)
    for number in range(len(places)):
        place = places[number]
        if not start <= place < end:  # consecutive places are mostly in one window
            window = _find_first_above(window_ends, place)
            start, end = window_ends[window - 1] if window else 0, window_ends[window]
            key = _mix(keys[window])
            half = _ONE  # as `count_half_bits`
            while np.uint64(end - start - 1) >> (half + half):
                half += _ONE
        place = start + np.int64(_place(np.uint64(place - start), np.uint64(end - start), half, key))
        indices[number] = place + shifts[_find_first_above(block_ends, place)]


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


class _EpochOrder(NamedTuple):
    """The blocks of one epoch in their order."""

    window_ends: NDArray[np.int64]
    """The rows until the end of each window."""
    keys: NDArray[np.uint64]
    """The key of each window's permutation."""
    ends: NDArray[np.int64]
    """The rows until the end of each block, in this order."""
    shifts: NDArray[np.int64]
    """What is added to a place in a block to get the stored row."""


class BlockOrder:
    """The order of one lane.

    >>> order = BlockOrder([3, 2, 4], window=2, seed=7, name="web")
    >>> sorted(order(np.arange(9)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    def __init__(self, rows: list[int] | NDArray[np.int64], window: int, seed: int, name: str) -> None:
        self._rows = np.asarray(rows, dtype=np.int64)
        self._starts = np.cumsum(self._rows) - self._rows
        self.num_rows = int(self._rows.sum())
        self._window = window
        self._seed = seed
        self._name = name
        self._order_epoch = lru_cache(maxsize=4)(self._compute_epoch)

    def __call__(self, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored row of each draw."""
        epochs, places = np.divmod(draws, self.num_rows)
        indices = np.empty(len(draws), dtype=np.int64)
        if len(draws) and (epochs == epochs[0]).all():
            place_in_windows(places, *self._order_epoch(int(epochs[0])), indices)
            return indices
        for epoch in np.unique(epochs).tolist():
            is_chosen = epochs == epoch
            indices[is_chosen] = self(draws[is_chosen])
        return indices

    @property
    def window_rows(self) -> float:
        """The mean number of rows in a window."""
        return self._window * self.num_rows / max(len(self._rows), 1)

    def _compute_epoch(self, epoch: int) -> _EpochOrder:
        key = make_epoch_key(self._seed, f"blocks/{self._name}", epoch)
        blocks = np.asarray(Permutation(len(self._rows), key)(np.arange(len(self._rows))))
        ends = np.cumsum(self._rows[blocks])
        last = np.minimum(np.arange(self._window, len(blocks) + self._window, self._window), len(blocks)) - 1
        window_keys = np.asarray(Permutation(1 << 62, derive_key(key, "windows"))(np.arange(len(last))))
        shifts = self._starts[blocks] - (ends - self._rows[blocks])
        return _EpochOrder(ends[last], window_keys.astype(np.uint64), ends, shifts)
