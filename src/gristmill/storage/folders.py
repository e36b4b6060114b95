"""Folders of files, on a disk or on a store, as one protocol: callers never ask which of the two they have.

Paths are relative to the folder, with forward slashes, as manifests and receipts name them. They are untrusted: each
goes through `path_below` before it is moved, measured or removed, and all of a call before the first one is touched.

What differs is told by two flags. `is_remote`: a request takes milliseconds, so that few and large ones are better, and
a listing is better than a request for each file. `can_rename`: a file can be written under one name and published under
another; where it cannot, it is copied, so large files are written where they stay.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from gristmill.core.errors import StoreRefusedError
from gristmill.storage.commit import make_folder, sync_folder
from gristmill.storage.files import find_version
from gristmill.storage.locations import Location, StorePath, measure_file, path_below
from gristmill.storage.lock import FolderLock, is_shared_file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gristmill.storage.stores.base import Store

_log = logging.getLogger("gristmill")


class FileState(NamedTuple):
    """A file as it is now."""

    num_bytes: int
    version: str


class Folder(Protocol):
    """A folder, which need not exist yet."""

    is_remote: ClassVar[bool]
    can_rename: ClassVar[bool]

    def list_below(self) -> Iterator[tuple[str, int]]:
        """Iterate over all files, hidden ones too: path and size. Links are not followed."""

    def measure(self, paths: Iterable[str]) -> dict[str, FileState]:
        """Return the state of those files that are there: a `stat` for each, or one listing of a store."""

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        """Give files other names, which survive a power cut. Where files cannot be renamed, the old names stay."""

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and the folders that this leaves empty. Those that are not there are no error."""

    def remove_tree(self, keeps: Callable[[str], bool] = lambda _: False) -> None:
        """Remove everything but the files to keep; without any, the folder too. Links are removed, never followed."""

    def abort_uploads(self, is_ours: Callable[[str], bool] = lambda _: True) -> None:
        """Abort what killed processes were uploading: parts of files, which no listing shows."""

    def find_obstacle(self) -> str | None:
        """Return why this process cannot make or write the folder. On a store the first request to write tells."""

    def lock(self) -> FolderLock | None:
        """Return the lock that keeps other processes out; None where several machines may write: a lease does."""

    def open_store(self) -> tuple[Store, str]:
        """Return the folder as a store for conditional writes, and the folder's own key in it."""


def open_folder(location: Location) -> Folder:
    """Return the folder at a location. Nothing is opened, made or requested."""
    return StoreFolder(location) if isinstance(location, StorePath) else LocalFolder(location)


class LocalFolder:
    """A folder on a disk, or on a file system that is mounted."""

    is_remote: ClassVar[bool] = False
    can_rename: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def list_below(self) -> Iterator[tuple[str, int]]:
        for path in sorted(self._path.rglob("*")):
            if path.is_symlink() or not path.is_dir():
                yield path.relative_to(self._path).as_posix(), path.lstat().st_size

    def measure(self, paths: Iterable[str]) -> dict[str, FileState]:
        states = ((path, find_version(path_below(self._path, path))) for path in paths)
        return {path: FileState(*state) for path, state in states if state is not None}

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        pairs = [(path_below(self._path, path), path_below(self._path, target)) for path, target in moves]
        folders = {target.parent for _, target in pairs}
        for folder in folders:
            make_folder(folder)
        for path, target in pairs:
            path.replace(target)
        for folder in folders:
            sync_folder(folder)

    def remove(self, paths: Iterable[str]) -> None:
        folders: set[Path] = set()
        for file in [path_below(self._path, path) for path in paths]:
            file.unlink(missing_ok=True)
            folders.update(parent for parent in file.parents if parent != self._path and self._path in parent.parents)
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            _remove_if_empty(folder)

    def remove_tree(self, keeps: Callable[[str], bool] = lambda _: False) -> None:
        for path in sorted(self._path.rglob("*"), reverse=True):
            if keeps(path.relative_to(self._path).as_posix()):
                continue
            if path.is_dir() and not path.is_symlink():
                _remove_if_empty(path)
            else:
                path.unlink()
        _remove_if_empty(self._path)

    def abort_uploads(self, is_ours: Callable[[str], bool] = lambda _: True) -> None:
        pass

    def find_obstacle(self) -> str | None:
        folder = self._path
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            return f"{folder} is a file"
        return None if os.access(folder, os.W_OK) else f"no permission in {folder}"

    def lock(self) -> FolderLock | None:
        return None if is_shared_file_system(self._path) else FolderLock(self._path)

    def open_store(self) -> tuple[Store, str]:
        from gristmill.storage.stores.posix_store import PosixStore  # noqa: PLC0415  (most folders are not shared)

        return PosixStore(self._path), ""


class StoreFolder:
    """A folder on a store: what the keys of its objects begin with."""

    is_remote: ClassVar[bool] = True
    can_rename: ClassVar[bool] = False

    def __init__(self, path: StorePath) -> None:
        self._path = path

    def list_below(self) -> Iterator[tuple[str, int]]:
        for path, state in self._list_states():
            yield path, state.num_bytes

    def measure(self, paths: Iterable[str]) -> dict[str, FileState]:
        states = dict(self._list_states())
        return {path: states[path] for path in paths if path in states}

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        store, prefix = self._open()
        for source, copy in moves:
            store.copy(f"{prefix}{source}", f"{prefix}{copy}")

    def remove(self, paths: Iterable[str]) -> None:
        store, prefix = self._open()
        store.delete([f"{prefix}{path}" for path in paths])

    def remove_tree(self, keeps: Callable[[str], bool] = lambda _: False) -> None:
        self.remove([path for path, _ in self.list_below() if not keeps(path)])

    def abort_uploads(self, is_ours: Callable[[str], bool] = lambda _: True) -> None:
        store, prefix = self._open()
        try:
            store.abort_uploads(prefix, lambda upload: is_ours(upload.removeprefix(prefix)))
        except StoreRefusedError as error:  # some may write to a bucket, but not list its uploads
            _log.warning("parts of unfinished uploads may be left: %s", error.message)

    def find_obstacle(self) -> str | None:
        return None

    def lock(self) -> FolderLock | None:
        return None

    def open_store(self) -> tuple[Store, str]:
        return self._path.open_store()

    def _list_states(self) -> Iterator[tuple[str, FileState]]:
        store, prefix = self._open()
        try:
            for entry in store.list_all(prefix.rstrip("/")):
                yield entry.key[len(prefix) :], FileState(entry.num_bytes, entry.version)
        except FileNotFoundError:
            return

    def _open(self) -> tuple[Store, str]:
        """Return the store, and what all keys in the folder begin with: nothing, if it is the whole bucket."""
        store, key = self.open_store()
        return store, f"{key}/" if key else ""


class KnownFiles:
    """The sizes of the files of a folder. A local file is looked at each time.

    A store is listed once, at first use. Files that are added later are believed to be there: a lost one is found when
    it is read. Memory: about 250 bytes for each file of a store.
    """

    def __init__(self, root: Location) -> None:
        self._root = root
        self._folder = open_folder(root)
        self._listed: dict[str, int] | None = None
        self._added: dict[str, int] = {}

    def find_size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        if not self._folder.is_remote:
            return measure_file(path_below(self._root, path))
        size = self._added.get(path)
        if size is not None:
            return size
        if self._listed is None:
            self._listed = dict(self._folder.list_below())
        return self._listed.get(path)

    def add(self, path: str, num_bytes: int) -> None:
        """Note a file that was written."""
        if self._folder.is_remote:
            self._added[path] = num_bytes


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
