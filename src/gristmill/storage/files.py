"""Opens input files, local or remote, and reads their size and version."""

from __future__ import annotations

import io
import os
from collections import deque
from typing import TYPE_CHECKING, BinaryIO, cast

from gristmill.core.errors import SourceChangedError
from gristmill.storage.listing import local_files
from gristmill.storage.urls import find_protocol, local_path
from gristmill.storage.wait_clock import wait_clock

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_CHECKS_AT_ONCE = 8
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
        return stat.st_size, local_files.version_of(stat)
    from gristmill.storage.stores.open_store import open_store  # noqa: PLC0415

    store, key = open_store(path)
    stored = store.head(key)
    return stored.num_bytes, stored.version


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
    try:
        current: tuple[int, str] | None = read_version(path)
    except FileNotFoundError:
        current = None
    if current != (num_bytes, version):
        now = "missing" if current is None else f"{current[0]} bytes"
        raise SourceChangedError(
            f"{path} has changed since the run was planned ({num_bytes} bytes then, {now} now)",
            help="run the same command again: it makes a new plan, and keeps what has not changed",
        )
