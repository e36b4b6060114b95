"""An object that is being written: small ones by one request, others in parts while the data comes.

Memory: four parts that wait, eight that are sent, and one that is filled, 8 MiB each. The rows of most units fit into
those that wait, so that their worker does not. The etag of an object on S3 ends with the number of its parts, each of
which was compared with its checksum. Where the answer has no such number, the size of the object is checked.

On a store 50 ms away the last parts of an upload and its completion take as long as computing for 10 MB of text. So a
worker that calls `collect_uploads` runs its next task meanwhile.
"""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from gristmill.core.errors import RemoteStoreError
from gristmill.storage.stores.base import PIECE_BYTES
from gristmill.storage.stores.retries import wait_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.stores.base import Store

_WAITING_PIECES = 4
_COMPLETED_AT_ONCE = 8


class _AbandonedError(Exception):
    """The writer has given up; the upload is aborted."""


class Upload:
    """The target of a `PendingFile` on a store. Nothing is visible there before `commit` has returned."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._data = bytearray()
        self._num_bytes = self._num_pieces = 0
        self._version = ""
        self._pieces: queue.Queue[bytes | _AbandonedError | None] = queue.Queue(_WAITING_PIECES)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    def write(self, view: memoryview) -> None:
        """Append data; waits while the store is slower than the writer."""
        if not self._is_open:
            raise ValueError(f"{self._store.url(self._key)} is not open for writing")
        self._num_bytes += len(view)
        self._data += view
        while len(self._data) >= PIECE_BYTES:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="gristmill-upload", daemon=True)
                self._thread.start()
            piece = bytes(memoryview(self._data)[:PIECE_BYTES])
            del self._data[:PIECE_BYTES]
            with wait_clock.waiting():
                self._hand_over(piece)

    def sync(self) -> None:
        """Do nothing: `commit` returns when the store has everything."""

    def commit(self, *, sync: bool) -> None:
        """Complete the upload: the object becomes visible. Without `sync` the collector of uploads completes it."""
        if sync or not collect_upload(self):
            with wait_clock.waiting():
                self.complete()
        self._is_open = False

    def complete(self) -> None:
        """Wait until the store has everything; the object is then visible."""
        if self._thread is None:
            self._store.put(self._key, self._data)
            return
        if self._data:
            self._hand_over(bytes(self._data))
        self._hand_over(None)
        self._thread.join()
        self._raise_error()
        if not self._version.endswith(f"-{self._num_pieces}"):
            self._check_size()

    def discard(self) -> None:
        """Abort the upload, unless it was committed."""
        if self._is_open:
            self.abort()
        self._is_open = False

    def abort(self) -> None:
        """Abort an upload that is not complete."""
        if self._thread is not None:
            self._hand_over(_AbandonedError(), raises=False)
            self._thread.join()

    def _send(self) -> None:
        try:
            self._version = self._store.put_stream(self._key, self._take_pieces())
        except BaseException as error:  # it is raised where the writer is
            self._error = error
            while self._thread is not None and not self._pieces.empty():
                self._pieces.get_nowait()

    def _take_pieces(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, _AbandonedError):
                raise piece
            self._num_pieces += 1
            yield piece

    def _hand_over(self, piece: bytes | _AbandonedError | None, *, raises: bool = True) -> None:
        while self._thread is not None and self._thread.is_alive():
            try:
                self._pieces.put(piece, timeout=0.1)
            except queue.Full:
                continue
            break
        if raises:
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_size(self) -> None:
        stored = self._store.head(self._key).num_bytes
        if stored != self._num_bytes:
            raise RemoteStoreError(
                f"{self._store.url(self._key)} has {stored} bytes after the upload of {self._num_bytes}",
                help="run the same command again; if it happens again, the store is at fault",
            )


_collected: ContextVar[list[Upload] | None] = ContextVar("collected_uploads", default=None)


class CollectedUploads:
    """Uploads that were committed and are not complete yet: nothing may rely on their objects."""

    def __init__(self, uploads: list[Upload]) -> None:
        self._uploads = uploads

    def __bool__(self) -> bool:
        return bool(self._uploads)

    def complete(self) -> None:
        """Wait until all objects are visible; raise the first error when none is under way any more."""
        if not self._uploads:
            return
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (local files need none of it)

        with ThreadPoolExecutor(min(len(self._uploads), _COMPLETED_AT_ONCE)) as pool:
            for future in [pool.submit(upload.complete) for upload in self._uploads]:
                future.result()


@contextmanager
def collect_uploads() -> Iterator[CollectedUploads]:
    """Let `PendingFile.commit(sync=False)` return in this block before the store has everything.

    An object that is committed in the block cannot be read in it. An error in the block aborts what was collected.
    """
    uploads: list[Upload] = []
    token = _collected.set(uploads)
    try:
        yield CollectedUploads(uploads)
    except BaseException:
        for upload in uploads:
            upload.abort()
        raise
    finally:
        _collected.reset(token)


def collect_upload(upload: Upload) -> bool:
    """Leave the end of an upload to `collect_uploads`; returns false if no one collects."""
    uploads = _collected.get()
    if uploads is None:
        return False
    uploads.append(upload)
    return True
