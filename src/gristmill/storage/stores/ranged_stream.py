"""A stream over ranges of an object: where it is read in order, the next ranges are fetched ahead, in parallel.

A request takes 5 to 100 ms at any size. With `AHEAD` pieces of `PIECE_BYTES` on their way, a worker at 300 MB/s
does not wait for a store that takes 100 ms. Memory: at most `AHEAD + 1` pieces. A reader that jumps (Parquet) gets what
it asks for and no more.
"""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from gristmill.storage.stores.retries import wait_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

PIECE_BYTES = 4 * 2**20
AHEAD = 8
_FIRST_BYTES = 2**20
"""The least that is fetched at a new position."""


class RangedStream(io.RawIOBase):
    """An object for reading; `read_range(start, stop)` returns its bytes. A read returns as much as was asked for.

    `find_size` is called after the first read, whose answer may have told the size, or by a seek from the end.
    A reader that names a `stop` reads in order up to there, so the first ranges are fetched in parallel too.
    """

    def __init__(
        self,
        read_range: Callable[[int, int], bytes],
        find_size: Callable[[], int],
        start: int = 0,
        stop: int | None = None,
        *,
        key: str = "",
    ) -> None:
        super().__init__()
        self._key = key
        self._read_range = read_range
        self._find_size = find_size
        self._known_size: int | None = None
        self._position = start
        self._stop = stop
        self._data = memoryview(b"")
        self._data_start = start
        self._expected = -1
        """Where a reader continues that reads in order."""
        self._pieces: dict[int, Future[bytes]] = {}
        self._pool: ThreadPoolExecutor | None = None

    @property
    def _size(self) -> int:
        if self._known_size is None:
            self._known_size = self._find_size()
        return self._known_size

    @property
    def _ahead_stop(self) -> int:
        if self._stop is None:
            return self._size
        return self._stop if self._known_size is None else min(self._stop, self._known_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = self._size if whence == io.SEEK_END else self._position if whence == io.SEEK_CUR else 0
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        if size == 0:
            return b""
        self._fetch_first(0 if size is None else size)
        left = max(0, self._size - self._position)
        num_bytes = left if size is None or size < 0 else min(size, left)
        pieces = []
        while num_bytes:
            piece = self._take(num_bytes)
            pieces.append(piece)
            num_bytes -= len(piece)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        if not view:
            return 0
        self._fetch_first(len(view))
        if self._position >= self._size:
            return 0
        piece = self._take(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._drop_pieces()
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
            super().close()

    def _take(self, num_bytes: int) -> memoryview:
        """Take some of the next bytes, at least one; the position is inside of the object."""
        offset = self._position - self._data_start
        if not 0 <= offset < len(self._data):
            self._fetch(num_bytes)
            offset = self._position - self._data_start
        piece = self._data[offset : offset + num_bytes]
        self._position += len(piece)
        return piece

    def _fetch_first(self, num_bytes: int) -> None:
        """Fetch the first bytes before the size is known: one request less than to ask for it."""
        if self._known_size is not None:
            return
        start = self._position
        if self._stop is not None and start < self._stop:
            self._keep(start, self._take_piece(start))
        else:
            self._keep(start, self._wait_for(lambda: self._read_range(start, start + max(num_bytes, _FIRST_BYTES))))

    def _fetch(self, num_bytes: int) -> None:
        start = self._position
        if start != self._expected or start >= self._ahead_stop:
            self._drop_pieces()
            stop = min(self._size, start + max(num_bytes, _FIRST_BYTES))
            data = self._wait_for(lambda: self._read_range(start, stop))
        else:
            data = self._take_piece(start)
        self._keep(start, data)

    def _take_piece(self, start: int) -> bytes:
        self._request_pieces(start)
        return self._wait_for(self._pieces.pop(start).result)

    def _keep(self, start: int, data: bytes) -> None:
        self._data, self._data_start = memoryview(data), start
        self._expected = start + len(data)

    def _request_pieces(self, start: int) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="gristmill-read")
        first = start
        while len(self._pieces) < AHEAD + 1 and first < self._ahead_stop:
            stop = min(first + PIECE_BYTES, self._ahead_stop)
            if first not in self._pieces:
                self._pieces[first] = self._pool.submit(self._read_range, first, stop)
            first = stop

    def _drop_pieces(self) -> None:
        for piece in self._pieces.values():
            piece.cancel()
        self._pieces.clear()

    def _wait_for(self, fetch: Callable[[], bytes]) -> bytes:
        with wait_clock.waiting():
            data = fetch()
        wait_clock.count_read(self._key, len(data))
        return data
