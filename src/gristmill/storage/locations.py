"""Locations: a path on the disk, or one on a store, with the part of pathlib's interface that both have.

Only `storage` knows the difference, except where a file is mapped into memory: a store's is read instead.
"""

from __future__ import annotations

import io
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias, cast

from gristmill.core.errors import UsageError
from gristmill.storage.urls import find_protocol, local_path, refuse_secrets
from gristmill.storage.wait_clock import wait_clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from gristmill.storage.stores.base import Store

_BUFFER_BYTES = 2**18


class StorePath:
    """A URL as a path. It holds no connection, so it can be sent to workers."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(f"{self._url}/{name}")

    def __str__(self) -> str:
        return self._url

    def __fspath__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"StorePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    @property
    def name(self) -> str:
        """The last component of the path."""
        return PurePosixPath(self._url).name

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self._url).suffix

    @property
    def parent(self) -> StorePath:
        """The folder that contains it."""
        return StorePath(self._url.rpartition("/")[0])

    def absolute(self) -> StorePath:
        """Return the path itself: a URL is absolute."""
        return self

    def exists(self) -> bool:
        """Tell whether there is an object of this name, or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Tell whether there is an object of this name."""
        return measure_file(self) is not None

    def is_dir(self) -> bool:
        """Tell whether there is anything below."""
        store, key = self.open_store()
        try:
            return next(iter(store.list_folder(key)), None) is not None
        except FileNotFoundError:
            return False

    def read_bytes(self) -> bytes:
        """Read the whole object."""
        store, key = self.open_store()
        with wait_clock.waiting():
            data = bytes(store.read(key))
        wait_clock.count_read(key, len(data))
        return data

    def open(self, mode: str = "rb") -> BinaryIO:  # noqa: ARG002  (as pathlib has it; objects are only read like this)
        """Open the object for reading, buffered as a local file is."""
        store, key = self.open_store()
        return io.BufferedReader(cast("io.RawIOBase", store.open(key)), _BUFFER_BYTES)

    def unlink(self, *, missing_ok: bool = False) -> None:  # noqa: ARG002  (stores do not say what was missing)
        """Delete the object, if it is there."""
        store, key = self.open_store()
        store.delete([key])

    def open_store(self) -> tuple[Store, str]:
        """Return the store, and the key in it."""
        from gristmill.storage.stores.open_store import open_store  # noqa: PLC0415  (a process may need none)

        return open_store(self._url)


Location: TypeAlias = Path | StorePath


def parse_location(text: str | os.PathLike[str]) -> Location:
    """Return the location of a path or URL; `~` and `file://` are understood.

    Raises:
        UsageError: A URL without a bucket, or with a secret, which would be sent as a part of the bucket's name.
    """
    path = os.fspath(text)
    if find_protocol(path) is None:
        return Path(local_path(path)).expanduser()
    refuse_secrets(path)
    if not path.partition("://")[2].strip("/"):
        raise UsageError(f"{path} names no bucket", help="write the bucket and a folder in it: s3://bucket/folder")
    return StorePath(path)


def relative_name(path: Location, folder: Location) -> str:
    """Return the path of a file below a folder, with forward slashes."""
    return os.fspath(path)[len(os.fspath(folder)) + 1 :]


def measure_file(path: Location) -> int | None:
    """Return the size of a file; None if there is none."""
    try:
        if isinstance(path, Path):
            return path.stat().st_size
        store, key = path.open_store()
        return store.head(key).num_bytes
    except (FileNotFoundError, NotADirectoryError):
        return None


def list_names(folder: Location) -> Iterator[str]:
    """Iterate over the names in a folder."""
    if isinstance(folder, Path):
        yield from (path.name for path in folder.iterdir())
        return
    store, key = folder.open_store()
    for entry in store.list_folder(key):
        yield entry if isinstance(entry, str) else entry.key.rpartition("/")[2]


def list_files_below(folder: Location) -> Iterator[tuple[str, int]]:
    """Iterate over all files below a folder, hidden ones too: relative path and size. Links are not followed."""
    if isinstance(folder, StorePath):
        store, key = folder.open_store()
        try:
            for entry in store.list_all(key):
                yield entry.key[len(key) + 1 :], entry.num_bytes
        except FileNotFoundError:
            return
        return
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix(), path.lstat().st_size
