"""All other stores through fsspec: the Hub, web servers, FTP, and the memory of the process.

They are read, by streams that open a file again at the same position when the connection fails. Only `memory://` can be
written conditionally, for tests and small jobs in one process; where fsspec's file systems write to a network, no two
of them agree on what happens if two writers come at once.
"""

from __future__ import annotations

import io
import logging
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

from gristmill.core.errors import UsageError
from gristmill.storage.stores.base import ObjectChangedError, ObjectExistsError, StoredObject
from gristmill.storage.stores.credentials import is_distrusted
from gristmill.storage.stores.retries import ask_store, make_changed_error
from gristmill.storage.urls import find_bucket, find_protocol, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from typing_extensions import Buffer

_SKIP_BYTES = 1 << 20
_BLOCK_BYTES = 8 * 2**20
_VERSION_KEYS = ("ETag", "etag", "blob_id", "generation", "md5Hash", "mtime", "LastModified", "modified", "created")
_WITHOUT_KEYS = ("http", "https", "memory")
_memory_lock = Lock()

_log = logging.getLogger("gristmill")


class FsspecStore:
    """The file system of a URL. Keys are its paths."""

    lists_flat: ClassVar[bool] = False

    def __init__(self, url: str) -> None:
        """Open the file system; `opened_key` is the URL's key in it."""
        import fsspec  # noqa: PLC0415  (local files need none of it)

        self._protocol = find_protocol(url)
        settings = self._choose_settings(url)
        try:
            self._fs, self.opened_key = fsspec.core.url_to_fs(url, **settings)
        except ImportError as error:
            raise UsageError(
                f"{redact(url)}: reading {self._protocol}:// needs a package: {error}",
                help="install the fsspec implementation for it",
            ) from error
        except ValueError as error:
            raise UsageError(
                f"{redact(url)}: {error}", help="use a local path or a URL that fsspec knows, such as s3://…"
            ) from error
        except OSError:  # some file systems connect when they are opened
            self._fs, self.opened_key = ask_store(url, lambda: fsspec.core.url_to_fs(url, **settings))

    def _choose_settings(self, url: str) -> dict[str, Any]:
        """Choose what fsspec is told. A URL that a third-party file names is read without the user's keys, or not."""
        if not is_distrusted(url) or self._protocol in _WITHOUT_KEYS:
            return {}
        if self._protocol == "hf":
            return {"token": False}
        raise UsageError(
            f"{redact(url)}: {self._protocol}:// may use your keys, and only the manifest names this file",
            help=f"name it, if you trust the dataset: --bucket {redact(find_bucket(url))}",
        )

    def url(self, key: str) -> str:
        if self._protocol == "hf":  # some versions of its own function ask the Hub
            return f"hf://{key}"
        return cast("str", self._fs.unstrip_protocol(key))

    def head(self, key: str) -> StoredObject:
        info = ask_store(self.url(key), partial(self._find_info, key))
        if info["type"] == "directory":
            raise FileNotFoundError(f"{self.url(key)} is a folder")
        return self._to_object(info)

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str = "") -> bytes:
        data = cast("bytes", ask_store(self.url(key), lambda: self._fs.cat_file(key, start=start, end=stop)))
        if version and self.head(key).version != version:  # after the read: it could change before
            raise make_changed_error(self.url(key))
        return data

    def open(self, key: str, start: int = 0, stop: int | None = None) -> BinaryIO:  # noqa: ARG002
        open_file = partial(self._fs.open, key, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
        stream = ReopenedStream(self.url(key), open_file)
        if start:
            stream.seek(start)
        return cast("BinaryIO", stream)

    def put(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> str:
        self._check_writable()
        with _memory_lock:
            if create and self._fs.exists(key):
                raise ObjectExistsError(f"{self.url(key)} exists already")
            if replaces is not None and (not self._fs.exists(key) or self.head(key).version != replaces):
                raise ObjectChangedError(f"{self.url(key)} was changed by another writer")
            self._fs.pipe_file(key, bytes(data))
            return self.head(key).version

    def put_stream(self, key: str, pieces: Iterator[bytes]) -> str:
        return self.put(key, b"".join(pieces))

    def copy(self, key: str, target: str) -> None:
        self.put(target, self.read(key))

    def delete(self, keys: Sequence[str]) -> None:
        self._check_writable()
        for key in keys:
            try:
                self._fs.rm_file(key)
            except FileNotFoundError:
                pass

    def list_all(self, prefix: str) -> Iterator[StoredObject]:
        # Folder by folder: fsspec's own `find` and `walk` silently skip folders that they cannot read.
        waiting = [prefix.rstrip("/")]
        while waiting:
            folder = waiting.pop()
            below = []
            for entry in self.list_folder(folder):
                if isinstance(entry, str):
                    below.append(f"{folder}/{entry}")
                else:
                    yield entry
            waiting += reversed(below)

    def list_folder(self, prefix: str) -> Iterator[StoredObject | str]:
        folder = prefix.rstrip("/")
        for info in ask_store(self.url(folder), partial(self._list, folder or prefix)):
            name = info["name"].rstrip("/")
            if not name.startswith(f"{folder}/") or len(name) <= len(folder) + 1:
                continue  # the marker object of the folder itself
            if info["type"] == "directory":
                yield name[len(folder) + 1 :]
            elif not info["name"].endswith("/"):
                yield self._to_object(info)

    def abort_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> list[str]:  # noqa: ARG002
        return []

    def _find_info(self, key: str) -> dict[str, Any]:
        self._fs.invalidate_cache(key)  # this asks the Hub too
        return cast("dict[str, Any]", self._fs.info(key))

    def _list(self, folder: str) -> list[dict[str, Any]]:
        self._fs.invalidate_cache(folder)
        try:
            return list(self._fs.ls(folder, detail=True))
        except FileNotFoundError:
            return []  # an empty or absent prefix

    def _check_writable(self) -> None:
        if self._protocol != "memory":
            raise UsageError(
                f"{self._protocol}:// can be read, but not written safely",
                help="write to a local or shared folder, or to s3://, gs:// or az://",
            )

    def _to_object(self, info: Mapping[str, Any]) -> StoredObject:
        size = info.get("size")
        if size is None:
            raise UsageError(
                f"{redact(self.url(info['name']))}: the server does not say how large it is", help="download it first"
            )
        return StoredObject(info["name"], int(size), _find_version(info))


def _find_version(info: Mapping[str, Any]) -> str:
    """Return the store's version of a file, which changes with the content; empty if there is none."""
    for key in _VERSION_KEYS:
        if (value := info.get(key)) is not None:
            # The memory store returns a number in a listing and a date for a single file.
            return str(value.timestamp() if isinstance(value, datetime) else value).strip('"')
    return ""


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
