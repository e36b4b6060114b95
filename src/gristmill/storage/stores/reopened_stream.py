"""A file of an fsspec store for reading, opened again at the same position when the connection fails."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any

from gristmill.storage.stores.requests import ask_store, make_changed_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Buffer

_SKIP_BYTES = 1 << 20

_log = logging.getLogger("gristmill")


class ReopenedStream(io.RawIOBase):
    """A remote file for reading; `open_file` opens it, as often as needed.

    A read returns as much as was asked for, except at the end.
    """

    def __init__(self, url: str, open_file: Callable[[], Any]) -> None:
        super().__init__()
        self._url = url
        self._open_file = open_file
        self._file: Any = ask_store(url, open_file)
        self._details = _describe_version(self._file)
        self._size: int | None = getattr(self._file, "size", None)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._size is not None)

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            if self._size is None:
                raise io.UnsupportedOperation("the server does not say how large the file is")
            offset += self._size
        self._position = max(0, offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        num_bytes = None if size is None or size < 0 else size
        data = ask_store(self._url, lambda: self._read_here(num_bytes), has_answered=True)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._drop()
            super().close()

    def _read_here(self, num_bytes: int | None) -> bytes:
        try:
            if self._file is None:
                self._file = self._reopen()
            self._move_file()
            data: bytes = self._file.read(-1 if num_bytes is None else num_bytes)
        except Exception:
            self._drop()  # it may have buffered half of a block
            raise
        end = self._size if num_bytes is None or self._size is None else min(self._position + num_bytes, self._size)
        if end is not None and self._position + len(data) < end:
            self._drop()
            raise ConnectionError(f"the connection ended after {self._position + len(data)} of {end} bytes")
        return data

    def _move_file(self) -> None:
        if self._file.tell() == self._position:
            return
        try:
            self._file.seek(self._position)
        except ValueError:  # a server without range requests: read everything before the position again
            if self._file.tell() > self._position:
                self._file = self._reopen()
            while (missing := self._position - self._file.tell()) > 0 and self._file.read(min(missing, _SKIP_BYTES)):
                pass

    def _reopen(self) -> Any:
        file = self._open_file()
        if _describe_version(file) != self._details:
            raise make_changed_error(self._url)
        return file

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except Exception as error:  # the file is not used any more
                _log.debug("%s: closing failed: %s", self._url, error)


def _describe_version(file: Any) -> tuple[object, ...]:
    """Return what distinguishes one version of a file from another, if the store says it."""
    details: Mapping[str, Any] = getattr(file, "details", None) or {}
    return tuple(details.get(key) for key in ("size", "ETag", "etag", "blob_id", "generation"))
