"""Locations: a path on the disk, or one on a store, with the part of pathlib's interface that both have.

Only `storage` knows the difference, except where a file is mapped into memory: a store's is read instead.

Paths and counts in stored files are untrusted until they are checked. A manifest, a journal or a receipt names files of
its own folder, and a run reads, moves and deletes what it names. Anyone may have written it. So every such path has the
type `StoredPath`, which refuses absolute paths and `..` when the file is decoded (`decode_stored`). It becomes a path
on the disk only through `path_below`, which also refuses symbolic links that leave the folder and everything that is
neither a file nor a folder: opening a pipe would wait forever. Cost: one `lstat` for each component of the path.
"""

from __future__ import annotations

import io
import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar, cast, overload

import msgspec

from gristmill.core.checks import describe_type
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.storage.stores.retries import wait_clock
from gristmill.storage.urls import find_protocol, local_path, refuse_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from gristmill.storage.stores.base import Store

_BUFFER_BYTES = 2**18
_DEFAULT_HELP = "nothing was deleted; check what is in the folder, or choose another one"
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\0]+"
_PATH = rf"\A{_PART}(?:/{_PART})*\Z"
_is_path = re.compile(_PATH).search

T = TypeVar("T")
StoredPath = Annotated[str, msgspec.Meta(pattern=_PATH)]
"""A path relative to the folder of the file that names it, with forward slashes; also a key of an object store."""
StoredName = Annotated[str, msgspec.Meta(pattern=rf"\A{_PART}\Z")]
"""One component of such a path, such as the name of a split or source, which is a folder."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
"""A number of rows, tokens or bytes. Sums fit into 64 bits."""


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

    def resolve(self) -> StorePath:
        """Return the path itself: there are no links on a store."""
        return self

    def is_symlink(self) -> bool:
        """Whether it is a link, which no object is."""
        return False

    def exists(self) -> bool:
        """Whether there is an object of this name, or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        return measure_file(self) is not None

    def is_dir(self) -> bool:
        """Whether there is anything below."""
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


def parse_location(text: str | os.PathLike[str], base: str | os.PathLike[str] = "") -> Location:
    """Return the location of a path, relative to `base`, or a URL; `~` and `file://` are understood.

    Raises:
        UsageError: A URL without a bucket, or with a secret, which would be sent as a part of the bucket's name.
    """
    path = os.fspath(text)
    if find_protocol(path) is None:
        return Path(base, Path(local_path(path)).expanduser())
    refuse_secrets(path)
    if not path.partition("://")[2].strip("/"):
        raise UsageError(f"{path} names no bucket", help="write the bucket and a folder in it: s3://bucket/folder")
    return StorePath(path)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a file or folder is on a store, where a request takes milliseconds and nothing is mapped or appended."""
    return find_protocol(os.fspath(path)) is not None


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


def decode_stored(data: bytes, kind: type[T], path: str | os.PathLike[str], *, help: str = _DEFAULT_HELP) -> T:
    """Decode the content of the file at `path`.

    Raises:
        DamagedDatasetError: It is not JSON of this kind, or names a path outside of its folder.
    """
    try:
        return msgspec.json.decode(data, type=describe_type(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error)
        if repr(_PART)[1:-1] in problem:
            problem = f"it names a file outside of its folder, at {problem.rpartition(' - at ')[2]}"
        raise DamagedDatasetError(f"{os.fspath(path)} is damaged: {problem}", help=help) from error


@overload
def path_below(folder: str | Path, stored: str) -> Path: ...
@overload
def path_below(folder: StorePath, stored: str) -> StorePath: ...
@overload
def path_below(folder: Location, stored: str) -> Location: ...
def path_below(folder: str | Location, stored: str) -> Location:
    """Return a stored path as a path on the disk or a store, below its folder.

    Raises:
        DamagedDatasetError: It is not below the folder, a symbolic link on the way leaves the folder, or it is no file.
    """
    if not _is_path(stored):
        raise DamagedDatasetError(
            f"{stored!r} is not a path inside {os.fspath(folder)}", help="nothing was read, moved or deleted there"
        )
    if isinstance(folder, StorePath):  # a key has no links
        return folder / stored
    path = str(folder)
    for part in stored.split("/"):
        path = f"{path}/{part}"
        try:
            mode = os.lstat(path).st_mode
        except OSError:  # opening it will raise a better error
            break
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise _make_not_a_file_error(path)
        if stat.S_ISLNK(mode) and not os.path.realpath(path).startswith(os.path.realpath(folder).rstrip("/") + "/"):
            raise DamagedDatasetError(
                f"{path} is a symbolic link that leaves {os.fspath(folder)}",
                help="copy the folder with its links followed, for example with `cp -rL`",
            )
    return Path(folder, stored)


def open_stored(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a file of an output folder, and return its descriptor. What is no file is refused, and never waited for.

    Raises:
        DamagedDatasetError: It is a pipe or the like. Or it is to be written in place, and has another name: a hard
            link, which may be the name of a file elsewhere.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _make_not_a_file_error(path)
        if flags & os.O_RDWR and status.st_nlink > 1:
            raise DamagedDatasetError(
                f"{os.fspath(path)} is a hard link: what a run writes there would change a file elsewhere",
                help="nothing was written; remove it, or copy the folder without links, for example with `cp -r`",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_stored(path: Location) -> bytes:
    """Read a small file of an output folder, as `open_stored` opens it."""
    if isinstance(path, StorePath):
        return path.read_bytes()
    with os.fdopen(open_stored(path), "rb") as file:
        return file.read()


def _make_not_a_file_error(path: str | Path) -> DamagedDatasetError:
    return DamagedDatasetError(
        f"{os.fspath(path)} is not a regular file", help="nothing was read or written; remove it"
    )
