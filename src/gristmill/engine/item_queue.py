"""Where the next chunk comes from: items that came back, then new ones from the input, in sizes that suit them."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from gristmill.engine.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHUNK_SECONDS = 0.05
_CHUNK_BYTES = 1 << 20
_MAX_CHUNK = 8192
_PULL_SECONDS = 0.01
_GROWTH = 16
_OBJECT_BYTES = 128


class ChunkSizer:
    """How many items make a chunk: enough that sending costs little, few enough that no worker ends late.

    Optimism is safe, since a chunk that takes too long gives its rest back; so the size follows the mean quickly.
    """

    def __init__(self, fixed: int | Literal["auto"], num_workers: int, total: int | None) -> None:
        self._fixed = None if fixed == "auto" else fixed
        self._num_workers = num_workers
        self._total = total
        self._size = 1
        self._seconds_per_item = math.inf
        self._bytes_per_item = 0.0

    def size(self, num_taken: int) -> int:
        if self._fixed is not None:
            return self._fixed
        if self._total is None:
            return self._size
        # The last chunks are small ones, so that all workers finish together.
        return max(1, min(self._size, (self._total - num_taken) // (3 * self._num_workers)))

    def observe_time(self, num_items: int, seconds: float) -> None:
        if num_items:
            recent = seconds / num_items
            known = self._seconds_per_item
            self._seconds_per_item = recent if math.isinf(known) else 0.5 * (known + recent)
            by_time = _CHUNK_SECONDS / max(self._seconds_per_item, 1e-9)
            by_bytes = _CHUNK_BYTES / max(self._bytes_per_item, 1.0)
            self._size = max(1, int(min(by_time, by_bytes, _GROWTH * self._size, _MAX_CHUNK)))

    def observe_size(self, num_items: int, num_bytes: int) -> None:
        """What a chunk took to send, or its results. The largest seen fades slowly."""
        if num_items:
            self._bytes_per_item = max(num_bytes / num_items, 0.9 * self._bytes_per_item)

    def num_items_in(self, num_bytes: int) -> int:
        """How many items or results take this much; a modest number where their size is not known."""
        if not self._bytes_per_item:
            return 1024
        # A small number takes 5 bytes in a pickle, and over 100 as an object in a dict.
        return max(4 * self._num_workers, int(num_bytes / (self._bytes_per_item + _OBJECT_BYTES)))


class ItemQueue:
    """The items still to be run. Holds no more of the input than was asked for."""

    def __init__(self, items: Iterable[Any], sizer: ChunkSizer, first_index: int) -> None:
        self._source = iter(items)
        self._sizer = sizer
        self._num_chunks = 0
        self._first_index = first_index
        self._next_index = first_index
        self._returned: deque[tuple[int, Any]] = deque()
        self._alone: set[int] = set()
        self.is_exhausted = False
        self.paused = False
        self.end = math.inf
        """Items from this number on are not wanted."""

    def __len__(self) -> int:
        """Items in hand; more may be in the input."""
        return len(self._returned)

    def put_back(self, items: list[tuple[int, Any]], *, alone: bool) -> None:
        """Items to be run (again) before all others; `alone`: each in a chunk of its own from now on."""
        wanted = [entry for entry in items if not self.is_past_end(entry[0])]
        self._returned.extendleft(reversed(wanted))
        if alone:
            self._alone.update(index for index, _ in wanted)

    def prefetch(self, num_items: int) -> None:
        """Have this many items in hand, if the input gives them without delay."""
        if num_items > len(self._returned):
            self._returned.extend(self._pull_numbered(num_items - len(self._returned)))

    def end_at(self, index: int) -> None:
        """Forget all items from this one on."""
        self.is_exhausted = True
        self.end = min(self.end, index)
        self._returned = deque(entry for entry in self._returned if entry[0] < self.end)

    def is_past_end(self, index: int) -> bool:
        return index >= self.end

    def next_chunk(self, max_items: int | None) -> Chunk | None:
        size = self._sizer.size(self._next_index - self._first_index)
        if max_items is not None:
            size = min(size, max_items)
        if self._returned and self._returned[0][0] in self._alone:
            return self.make_chunk([self._returned.popleft()])
        if self._returned:
            entries = self._take_returned(size)
            if not self._returned:
                entries += self._pull_numbered(size - len(entries))
            return self.make_chunk(entries)
        items = self._pull(size)
        if not items:
            return None
        self._num_chunks += 1
        return Chunk(self._num_chunks, range(self._next_index - len(items), self._next_index), items)

    def make_chunk(self, entries: list[tuple[int, Any]]) -> Chunk:
        self._num_chunks += 1
        return Chunk(self._num_chunks, [index for index, _ in entries], [item for _, item in entries])

    def _take_returned(self, size: int) -> list[tuple[int, Any]]:
        taken: list[tuple[int, Any]] = []
        while self._returned and len(taken) < size:
            if self._returned[0][0] in self._alone:
                break
            taken.append(self._returned.popleft())
        return taken

    def _pull_numbered(self, size: int) -> list[tuple[int, Any]]:
        items = self._pull(size)
        return list(enumerate(items, self._next_index - len(items)))

    def _pull(self, size: int) -> list[Any]:
        if self.is_exhausted or self.paused or size < 1:
            return []
        pulled: list[Any] = []
        deadline = monotonic() + _PULL_SECONDS
        # Twice as many each time: the clock is read 13 times for 8,192 items.
        while len(pulled) < size and not self.is_exhausted and monotonic() < deadline:
            wanted = min(len(pulled) + 1, size - len(pulled))
            more = list(islice(self._source, wanted))
            pulled += more
            self.is_exhausted = len(more) < wanted
        self._next_index += len(pulled)
        return pulled
