"""Input files, local or remote: opened, mapped, compared with the version of the plan; and their checksums.

Local files are read unbuffered or mapped, so that only what is used is read; those of a store are fetched. A checksum
is xxh3, 64 bits, as 16 hexadecimal digits, and as fast as the file can be read.
"""

from __future__ import annotations

import io
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import SourceChangedError
from gristmill.storage.listing import version_of
from gristmill.storage.stores.retries import wait_clock
from gristmill.storage.urls import find_protocol, local_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from numpy.typing import NDArray

    from gristmill.storage.locations import Location, StorePath

_PIECE_BYTES = 2**20
_CHECKS_AT_ONCE = _FILES_AT_ONCE = 8
_MAX_PENDING_CHECKS = 64


def open_input(path: str, start: int = 0, stop: int | None = None) -> BinaryIO:
    """Open a file for reading at byte `start`. Local files are unbuffered: read large pieces, or use `readinto`.

    Of a remote file nothing is fetched ahead beyond `stop`.
    """
    if find_protocol(path) is None:
        stream = cast("BinaryIO", io.FileIO(local_path(path)))
        if start:
            stream.seek(start)
        return stream
    from gristmill.storage.stores.open_store import open_store  # noqa: PLC0415  (local files need none of it)

    store, key = open_store(path)
    return store.open(key, start, stop)


def read_version(path: str) -> tuple[int, str]:
    """Return size and version of a file as it is now: those of `find_files`, unless it has changed since."""
    if find_protocol(path) is None:
        stat = os.stat(local_path(path))  # noqa: PTH116  (a hundred thousand small files)
        return stat.st_size, version_of(stat)
    from gristmill.storage.stores.open_store import open_store  # noqa: PLC0415

    store, key = open_store(path)
    stored = store.head(key)
    return stored.num_bytes, stored.version


def find_version(path: str | os.PathLike[str]) -> tuple[int, str] | None:
    """Like `read_version`; None if there is no such file."""
    try:
        return read_version(os.fspath(path))
    except FileNotFoundError:
        return None


def read_range(path: str, start: int, stop: int, version: str = "") -> bytes:
    """Read a range of a file, or less at its end. Of a store it is of this version, or `SourceChangedError` is raised.

    Who calls it counts the time: blocks are fetched by several threads, for one that waits.
    """
    if find_protocol(path) is None:
        with open_input(path, start) as file:
            return file.read(stop - start)
    from gristmill.storage.stores.open_store import open_store  # noqa: PLC0415

    store, key = open_store(path)
    return store.read(key, start, stop, version=version)


class VersionChecks:
    """Checks whether input files are those of the plan: of the versions that were there when they had been read.

    Before that, a file could change between the check and the first read. A request to a store takes up to 100 ms, so
    what follows from the files is made meanwhile, and `wait` comes before it counts.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()

    def add(self, path: str, num_bytes: int, version: str) -> None:
        """Check a file that has been read: a local one at once."""
        if find_protocol(path) is None:
            check_unchanged(path, num_bytes, version)
            return
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (local files need none of it)

        if self._pool is None:
            self._pool = ThreadPoolExecutor(_CHECKS_AT_ONCE, thread_name_prefix="gristmill-check")
        self._pending.append(self._pool.submit(check_unchanged, path, num_bytes, version))
        if len(self._pending) > _MAX_PENDING_CHECKS:
            self._pending.popleft().result()

    def wait(self) -> None:
        """Raise `SourceChangedError` if a file is another one."""
        if self._pool is not None:
            with wait_clock.waiting():
                self._pool.shutdown()
            self._pool = None
        while self._pending:
            self._pending.popleft().result()


def check_unchanged(path: str, num_bytes: int, version: str) -> None:
    """Raise `SourceChangedError` if an input file is not the one of the plan."""
    current = find_version(path)
    if current != (num_bytes, version):
        now = "missing" if current is None else f"{current[0]} bytes"
        raise SourceChangedError(
            f"{path} has changed since the run was planned ({num_bytes} bytes then, {now} now)",
            help="run the same command again: it makes a new plan, and keeps what has not changed",
        )


def open_stream_source(path: Location) -> pa.NativeFile:
    """Open a file for Arrow. One of a store is read in order, with ranges fetched ahead."""
    return pa.memory_map(str(path)) if isinstance(path, Path) else pa.PythonFile(path.open(), mode="r")


def map_files(paths: Sequence[Location]) -> Iterator[pa.Buffer]:
    """Map files one after the other, or fetch several at a time from a store, in order.

    The iterator raises `FileNotFoundError` where it comes to a file that is missing.
    """
    if not paths or isinstance(paths[0], Path):
        yield from map(map_file, paths)
        return
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        contents = pool.map(_fetch, paths)
        for path in paths:
            with wait_clock.waiting():
                content = next(contents)
            wait_clock.count_read(str(path), content.size)
            yield content


def _fetch(path: StorePath) -> pa.Buffer:
    store, key = path.open_store()
    return pa.py_buffer(store.read(key))


def map_file(path: Location, start: int = 0, count: int = -1) -> pa.Buffer:
    """Map or fetch `count` bytes of a file from byte `start` on, or fewer at its end; -1: all that follow."""
    if isinstance(path, Path):
        with pa.memory_map(str(path)) as mapped:
            content = mapped.read_buffer()
        return content[start : content.size if count < 0 else start + count]
    return pa.py_buffer(read_array(path, np.uint8, start, count))


def read_array(path: Location, kind: np.dtype[Any] | type, start: int = 0, count: int = -1) -> NDArray[Any]:
    """Read `count` items of a file from byte `start` on; -1: all that follow."""
    if isinstance(path, Path):
        return np.fromfile(path, dtype=kind, count=count, offset=start)
    store, key = path.open_store()
    stop = None if count < 0 else start + count * np.dtype(kind).itemsize
    with wait_clock.waiting():
        data = store.read(key, start, stop)
    wait_clock.count_read(key, len(data))
    return np.frombuffer(data, dtype=kind)


def read_bytes(path: Location, start: int, count: int) -> bytes:
    """Read a range of a file."""
    return read_array(path, np.uint8, start, count).tobytes()


def compute_file_checksum(path: str | os.PathLike[str]) -> str:
    """Compute the checksum of a file's content, in constant memory."""
    digest = xxhash.xxh3_64()
    buffer = bytearray(_PIECE_BYTES)
    view = memoryview(buffer)
    with open_input(os.fspath(path)) as stream:
        while num_bytes := stream.readinto(view):  # type: ignore[attr-defined]
            digest.update(view[:num_bytes])
    return digest.hexdigest()
