"""Files that appear complete or not at all.

The protocol: write under a temporary name in the same folder, sync the file, rename it, sync the folder. The order
matters. Without the first sync a power cut can leave the final name with half of the content, because a file system may
write the rename before the data. Without the second, the rename itself can be lost after `commit` has returned. A
temporary name holds the run's id, so that the remains of a dead run can be recognized and removed.

Files of the work folder have no meaning before the receipt that names them. A sync takes as long as the disk needs for
the data, 0.1 to 0.5 s for the shards of a unit, and no processor. So workers give their files names without waiting
(`PendingFile.commit(sync=False)`), and one thread of the parent process waits for the disk (`SyncThread`). Only when
the files and their folders are synced does the owner hear of it, and may write the receipt. Everything that is waiting
is synced together: one commit of the file system's journal serves many files.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import xxhash

from gristmill.core.errors import UsageError
from gristmill.storage.locations import Location, StorePath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Buffer

    from gristmill.storage.stores.uploads import Upload


_GATHER_BYTES = 2**18
"""The size up to which writes are buffered."""
_TEMPORARY = re.compile(r"\.gristmill-([A-Za-z0-9_.-]+)-[0-9a-f]{16}\.tmp")
_EPOCH = re.compile(r"\d{8}")
_OUTPUT_MARKS = (".gristmill", ".gristmill-lock")
"""What a run has in its output while it works: its work folder, and on a local disk a lock."""
_MAX_WAITING = 256
"""How many items may wait before `add` waits too: a disk that is too slow must slow down the work."""

Item = TypeVar("Item")


def is_lease_epoch(run_id: str) -> bool:
    """Whether a run is named by the epoch of its lease: then other runs may write to its output, too."""
    return _EPOCH.fullmatch(run_id) is not None


class PendingFile:
    """A file that is being written. `commit` gives it its name; without `commit` nothing remains.

    On a store the data is uploaded while it is written, and `commit` completes the upload.

    >>> with PendingFile("out/part.bin", "run7") as file:   # doctest: +SKIP
    ...     file.write(b"data")
    ...     file.commit()
    """

    def __init__(self, path: str | Location, run_id: str) -> None:
        self.path = Path(path) if isinstance(path, str) else path
        self.num_bytes = 0
        self._digest = xxhash.xxh3_64()
        self._gathered = bytearray()
        self._target: _TemporaryFile | Upload
        if isinstance(self.path, StorePath):
            from gristmill.storage.stores.uploads import Upload  # noqa: PLC0415  (most outputs are local)

            self._target = Upload(*self.path.open_store())
        else:
            self._target = _TemporaryFile(self.path, run_id)
        self._synced = False

    def __enter__(self) -> Self:
        with _annotate_errors(self.path):
            self._target.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._target.discard()

    @property
    def checksum(self) -> str:
        """The xxh3 of everything written so far."""
        return self._digest.hexdigest()

    def write(self, data: Buffer) -> None:
        """Append data. Small pieces are buffered, so that a record is not a system call."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self.num_bytes += len(view)
        self._synced = False
        with _annotate_errors(self.path):
            if len(self._gathered) + len(view) < _GATHER_BYTES:
                self._gathered += view
            else:
                self._flush()
                self._target.write(view)

    def sync(self) -> None:
        """Wait until the content is on the disk. `commit` calls it; call it earlier to check something in between."""
        with _annotate_errors(self.path):
            self._flush()
            self._target.sync()
        self._synced = True

    def commit(self, *, sync: bool = True) -> None:
        """Give the file its name and replace any older file. When this returns, the file survives a power cut.

        With `sync=False` it does not yet: nothing may rely on the file before `sync_files` has returned, or, on a
        store, before what `collect_uploads` has collected is complete.
        """
        if sync and not self._synced:
            self.sync()
        with _annotate_errors(self.path):
            self._flush()
            self._target.commit(sync=sync)

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._target.write(memoryview(gathered))


class _TemporaryFile:
    """A local file under a temporary name, in the folder of its final one."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._path = path
        temporary = f".gristmill-{run_id}-{secrets.token_hex(8)}.tmp"
        if not _TEMPORARY.fullmatch(temporary):
            raise UsageError(f"a run id consists of letters, digits, `_`, `.` and `-`, not {run_id!r}")
        self._temporary = path.with_name(temporary)
        self._fd: int | None = None

    def open(self) -> None:
        make_folder(self._path.parent)
        # In the folder of the final name: a rename is atomic only within one file system.
        self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, view: memoryview) -> None:
        fd = self._open_fd()
        # One call may write less than it was given: near 2 GiB, on a full disk, or after a signal.
        while view:
            view = view[os.write(fd, view) :]

    def sync(self) -> None:
        os.fsync(self._open_fd())

    def commit(self, *, sync: bool) -> None:
        fd = self._open_fd()
        self._temporary.replace(self._path)
        # Renamed: `discard` has nothing left to remove, and must not close the descriptor a second time.
        self._fd = None
        os.close(fd)
        if sync:
            sync_folder(self._path.parent)

    def discard(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                os.close(fd)
            finally:
                self._temporary.unlink(missing_ok=True)

    def _open_fd(self) -> int:
        if self._fd is None:
            raise ValueError(f"{self._path} is not open for writing")
        return self._fd


def write_file(path: str | Location, data: Buffer, run_id: str) -> str:
    """Write a complete file or nothing; return its checksum."""
    with PendingFile(path, run_id) as file:
        file.write(data)
        file.commit()
    return file.checksum


def sync_files(paths: Iterable[Location]) -> None:
    """Wait until files that were committed without a sync, and their names, are on the disk.

    What was committed to a store is there.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        if isinstance(path, StorePath):
            continue
        with _annotate_errors(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        folders[path.parent] = None
    for folder in folders:
        sync_folder(folder)


def remove_temporaries(folder: Location, run_id: str | None) -> list[str]:
    """Remove the temporary files of a killed run (None: of any run) below a folder; return the removed paths.

    Only files with the temporary names of this module are removed. Links are not followed. Stores have none. Folders in
    it that are outputs themselves are left alone: a run may be writing there.
    """
    if isinstance(folder, StorePath):
        return []
    removed = []
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not any(Path(parent, name, mark).exists() for mark in _OUTPUT_MARKS)]
        for name in names:
            match = _TEMPORARY.fullmatch(name)
            if match and run_id in (None, match.group(1)):
                path = Path(parent, name)
                path.unlink(missing_ok=True)
                removed.append(str(path))
    return removed


def make_folder(folder: str | Location) -> None:
    """Create a folder and its parents so that they survive a power cut. One `stat` if it exists already.

    Stores have no folders: their names are parts of keys.
    """
    if isinstance(folder, StorePath):
        return
    path = Path(folder)
    if path.is_dir():
        return
    make_folder(path.parent)
    # Another worker may create it between the check above and here.
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Wait until the names in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def count_free_bytes(folder: Location) -> int:
    """Count the bytes that this user can still write there. The folder need not exist yet; a store is never full."""
    if isinstance(folder, StorePath):
        return sys.maxsize
    path = Path(folder).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


@contextmanager
def _annotate_errors(path: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.add_note(f"while writing {path}")
        raise


def _raise(error: OSError) -> None:
    raise error


class SyncThread(Generic[Item]):
    """Syncs the files of items, then calls `on_synced` with each item, in order, in a separate thread.

    Leaving the context waits for all items. An error of the disk is raised by the next `add`, or on leaving.
    """

    def __init__(self, on_synced: Callable[[Item], None]) -> None:
        self._on_synced = on_synced
        self._changed = threading.Condition()
        self._waiting: list[tuple[Item, Sequence[Location]]] = []
        self._is_closing = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            self._raise_error()

    def add(self, item: Item, paths: Sequence[Location]) -> None:
        """Sync these files soon; they must not change any more."""
        with self._changed:
            while len(self._waiting) >= _MAX_WAITING and self._error is None:
                self._changed.wait()
            self._raise_error()
            self._waiting.append((item, paths))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gristmill-sync")
                self._thread.start()

    def _run(self) -> None:
        while batch := self._take_waiting():
            try:
                sync_files(path for _, paths in batch for path in paths)
                for item, _ in batch:
                    self._on_synced(item)
            except BaseException as error:  # it is raised where the run can end
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return

    def _take_waiting(self) -> list[tuple[Item, Sequence[Location]]]:
        """Wait for items; none are left only at the end."""
        with self._changed:
            while not self._waiting and not self._is_closing:
                self._changed.wait()
            batch, self._waiting = self._waiting, []
            self._changed.notify_all()
            return batch

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
