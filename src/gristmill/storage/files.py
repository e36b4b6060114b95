"""Opens input files, local or remote, and reads their size and version."""

from __future__ import annotations

import io
import os
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, cast

from gristmill.core.errors import SourceChangedError
from gristmill.storage.listing import local_files
from gristmill.storage.urls import find_protocol, local_path

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Self


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


class VersionCheck:
    """A check whether an input file is the one of the plan, made while its first bytes are read.

    A request to a store takes up to 100 ms. Leaving the block waits for the answer, also after an error: an error of a
    reader may be the effect of another version.
    """

    def __init__(self, path: str, num_bytes: int, version: str) -> None:
        self._check = partial(check_unchanged, path, num_bytes, version)
        self._is_remote = find_protocol(path) is not None
        self._future: Future[None] | None = None

    def __enter__(self) -> Self:
        if not self._is_remote:
            self._check()
            return self
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (local files need none of it)

        pool = ThreadPoolExecutor(1, thread_name_prefix="gristmill-check")
        self._future = pool.submit(self._check)
        pool.shutdown(wait=False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.wait()

    def wait(self) -> None:
        """Raise `SourceChangedError` if the file is another one."""
        if self._future is not None:
            self._future.result()


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
