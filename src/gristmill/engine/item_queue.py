"""The source of the next chunk: first the items that were put back, then new ones from the input."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from gristmill.engine.worker.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHUNK_SECONDS = 0.05
"""The time that a chunk should take: long compared with the cost of sending it, short compared with a job."""
_AHEAD_SECONDS = 0.5
"""The longest chunk after which another one may wait: compared with it, the milliseconds of a message do not count."""
_CHUNK_BYTES = 1 << 20
_MAX_CHUNK = 8192
_PULL_SECONDS = 0.01
_GROWTH = 16
"""How much larger than the last a chunk may be: the first measurements are of a few items."""
_OBJECT_BYTES = 128


class NotReady:
    """The answer of an input whose next item depends on results still to come. It is asked again later."""


NOT_READY = NotReady()


class ChunkSizer:
    """Chooses the number of items in a chunk: enough that sending costs little, few enough that no worker ends late.

    A size that is too large does little harm, because a chunk that takes too long returns its unstarted items. So the
    size follows the mean time quickly.
    """

    def __init__(self, fixed: int | Literal["auto"], num_workers: int, total: int | None) -> None:
        self._fixed = None if fixed == "auto" else fixed
        self._num_workers = num_workers
        self._total = total
        self._size = 1
        self._seconds_per_item = math.inf
        self._bytes_per_item = 0.0

    def choose_size(self, num_pulled: int) -> int:
        """Choose the size of the next chunk, after `num_pulled` items were read from the input."""
        if self._fixed is not None:
            return self._fixed
        if self._total is None:
            return self._size
        # The last chunks are small, so that all workers finish together.
        return max(1, min(self._size, (self._total - num_pulled) // (3 * self._num_workers)))

    def can_send_ahead(self, num_pulled: int, num_workers: int) -> bool:
        """Whether chunks are short, and every worker will get another one after the next."""
        size = self.choose_size(num_pulled)
        has_more = self._total is None or self._total - num_pulled > size * num_workers
        return has_more and size * self._seconds_per_item < _AHEAD_SECONDS

    def observe_time(self, num_items: int, seconds: float) -> None:
        """Learn from the time that items took."""
        if num_items:
            latest = seconds / num_items
            mean = self._seconds_per_item
            self._seconds_per_item = latest if math.isinf(mean) else 0.5 * (mean + latest)
            by_time = _CHUNK_SECONDS / max(self._seconds_per_item, 1e-9)
            by_bytes = _CHUNK_BYTES / max(self._bytes_per_item, 1.0)
            self._size = max(1, int(min(by_time, by_bytes, _GROWTH * self._size, _MAX_CHUNK)))

    def observe_size(self, num_items: int, num_bytes: int) -> None:
        """Learn from the size of a message with items or results. The largest size is forgotten slowly."""
        if num_items:
            self._bytes_per_item = max(num_bytes / num_items, 0.9 * self._bytes_per_item)

    def num_items_in(self, num_bytes: int) -> int:
        """Estimate how many items or results take this many bytes; a modest number if their size is not known."""
        if not self._bytes_per_item:
            return 1024
        # A small number takes 5 bytes in a pickle, and over 100 as an object in a dict.
        return max(4 * self._num_workers, int(num_bytes / (self._bytes_per_item + _OBJECT_BYTES)))


class ItemQueue:
    """The items still to be run. It reads no more of the input than it is asked for, so the input may be endless."""

    def __init__(self, items: Iterable[Any], sizer: ChunkSizer, first_index: int) -> None:
        self._source = iter(items)
        self._sizer = sizer
        self._num_chunks = 0
        self._first_index = first_index
        self._next_index = first_index
        self._front: deque[tuple[int, Any]] = deque()
        """Items that go before the rest of the input: put back after a failure, or prefetched."""
        self._alone: set[int] = set()
        """Numbers of items that share no chunk with others."""
        self.is_exhausted = False
        self.is_waiting = False
        """Whether the next item of the input depends on results still to come."""
        self.is_paused = False
        self.end = math.inf
        """Items from this number on are not wanted."""

    def __len__(self) -> int:
        """Return the number of items at hand; the input may have more."""
        return len(self._front)

    def put_back(self, items: list[tuple[int, Any]], *, alone: bool) -> None:
        """Put items before all others; with `alone`, each of them gets a separate chunk from now on.

        The items of a chunk in which something went wrong run alone: the next failure then names its item.
        """
        wanted_items = [entry for entry in items if not self.is_past_end(entry[0])]
        self._front.extendleft(reversed(wanted_items))
        if alone:
            self._alone.update(index for index, _ in wanted_items)

    def prefetch(self, num_items: int) -> None:
        """Read from the input until this many items are at hand, if it delivers them without delay."""
        if num_items > len(self._front):
            self._front.extend(self._pull_numbered(num_items - len(self._front)))

    def end_at(self, index: int) -> None:
        """Drop all items from this one on."""
        self.is_exhausted = True
        self.end = min(self.end, index)
        self._front = deque(entry for entry in self._front if entry[0] < self.end)

    def is_past_end(self, index: int) -> bool:
        """Whether the item is no longer wanted."""
        return index >= self.end

    def take_next_chunk(self, max_items: int | None) -> Chunk | None:
        """Take the next chunk; None if no item is at hand. A later call may find one unless `is_exhausted`."""
        size = self._sizer.choose_size(self._next_index - self._first_index)
        if max_items is not None:
            size = min(size, max_items)
        if self._front and self._front[0][0] in self._alone:
            return self.make_chunk([self._front.popleft()])
        if self._front:
            entries = self._take_front(size)
            if not self._front:
                entries += self._pull_numbered(size - len(entries))
            return self.make_chunk(entries)
        items = self._pull(size)
        if not items:
            return None
        self._num_chunks += 1
        # A range, not a list: the scheduler then passes the results on as one run, without looking at each.
        return Chunk(self._num_chunks, range(self._next_index - len(items), self._next_index), items)

    def can_send_ahead(self, num_workers: int) -> bool:
        """Whether the next chunk may be sent to a worker that is busy: never one that is to run by itself."""
        if self._front:
            return False  # what was put back is rare, and does not wait
        return not self.is_exhausted and self._sizer.can_send_ahead(self._next_index - self._first_index, num_workers)

    def make_chunk(self, entries: list[tuple[int, Any]]) -> Chunk:
        """Make a chunk of these numbered items."""
        self._num_chunks += 1
        return Chunk(self._num_chunks, [index for index, _ in entries], [item for _, item in entries])

    def _take_front(self, size: int) -> list[tuple[int, Any]]:
        entries: list[tuple[int, Any]] = []
        while self._front and len(entries) < size:
            if self._front[0][0] in self._alone:
                break
            entries.append(self._front.popleft())
        return entries

    def _pull_numbered(self, size: int) -> list[tuple[int, Any]]:
        items = self._pull(size)
        return list(enumerate(items, self._next_index - len(items)))

    def _pull(self, size: int) -> list[Any]:
        """Read up to `size` items of the input, as many as it delivers within 10 ms, but one if there is one.

        The input is the caller's own iterator and may be slow. The scheduler must not wait for it while workers have
        results, so it takes what it can get and asks again later.
        """
        if self.is_exhausted or self.is_paused or size < 1:
            return []
        items: list[Any] = []
        deadline = monotonic() + _PULL_SECONDS
        # Twice as many each time: the clock is read 13 times for 8,192 items.
        while len(items) < size and not self.is_exhausted and (not items or monotonic() < deadline):
            num_requested = min(len(items) + 1, size - len(items))
            new_items = list(islice(self._source, num_requested))
            self.is_exhausted = len(new_items) < num_requested
            ready_items = [item for item in new_items if item is not NOT_READY]
            items += ready_items
            self.is_waiting = len(ready_items) < len(new_items)
            if self.is_waiting:
                break
        self._next_index += len(items)
        return items
