"""The files of a folder or a store that match a pattern: links checked, nothing skipped silently.

Locally one `scandir` a folder and one `stat` a file: a million files take a few seconds and about 500 bytes of memory
each. On a store each folder is listed once, or a thousand names a request where a pattern matches at any depth.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import dataclass, field
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.storage.stores.open_store import open_store
from gristmill.storage.urls import find_protocol

RemoteFile = tuple[str, int, str]
"""URL, size and version of a file."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.patterns import PathPattern
    from gristmill.storage.stores.base import Store, StoredObject


@dataclass(slots=True)
class LocalListing:
    """The result of listing a folder."""

    files: list[tuple[str, str, int, str]] = field(default_factory=list)
    """Path, real path, size and version of each file."""
    folders: list[str] = field(default_factory=list)
    """Folders that match a pattern of files."""
    links: list[tuple[str, str, int, str]] = field(default_factory=list)
    """Links to files, with the same four values. They are also in `files`, sorted and after all others, so that the
    name of a file does not depend on the order of the listing."""
    links_outside: list[str] = field(default_factory=list)
    """Symbolic links to folders outside of the listed one, which are not followed."""


@dataclass(frozen=True, slots=True)
class _Visit:
    """A folder to list, and the states of the pattern there."""

    folder: str
    real: str
    states: frozenset[int]


def version_of(stat: os.stat_result) -> str:
    """Return the version of a file: its modification time in nanoseconds."""
    return str(stat.st_mtime_ns)


def stat_path(path: str) -> os.stat_result | None:
    """Return the status of a path that was named without wildcards, links followed; None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116  (a million names)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _make_unreadable_error(path, error) from error
    if not S_ISREG(status.st_mode) and not S_ISDIR(status.st_mode):
        raise _make_not_a_file_error(path)
    return status


def list_local(root: str, pattern: PathPattern) -> LocalListing:
    """List all files below `root` that match.

    Links to files are always followed, links to folders only if they stay below `root`. A link to a folder that
    contains the link is refused.
    """
    listing = LocalListing()
    real_root = os.path.realpath(root)
    direct = deque([_Visit(root, real_root, pattern.start())])
    # Linked folders wait until all others are listed, so that a file keeps its own name if it has one. A real folder is
    # entered once for each state of the pattern, so links that lead to each other end.
    linked: deque[_Visit] = deque()
    entered: set[tuple[str, frozenset[int]]] = set()
    while direct or linked:
        visit = (direct or linked).popleft()
        if (visit.real, visit.states) in entered:
            continue
        entered.add((visit.real, visit.states))
        _list_folder(visit, pattern, real_root, listing, direct, linked)
    listing.links.sort()
    listing.files += listing.links
    return listing


def _list_folder(
    visit: _Visit,
    pattern: PathPattern,
    real_root: str,
    listing: LocalListing,
    direct: deque[_Visit],
    linked: deque[_Visit],
) -> None:
    states, step = visit.states, pattern.step
    add_file = listing.files.append
    real_prefix = visit.real.rstrip("/") + "/"
    path = visit.folder
    try:
        with os.scandir(visit.folder) as entries:
            for entry in entries:
                name = entry.name
                below, matched = step(states, name)
                if not below and not matched:
                    continue
                path = entry.path
                if entry.is_symlink():
                    _follow(path, below, real_root, listing, linked, matched=matched)
                elif entry.is_dir(follow_symlinks=False):
                    if below:
                        direct.append(_Visit(path, real_prefix + name, below))
                    elif matched:
                        listing.folders.append(path)
                elif matched:
                    if not entry.is_file(follow_symlinks=False):
                        raise _make_not_a_file_error(path)
                    stat = entry.stat(follow_symlinks=False)
                    add_file((path, real_prefix + name, stat.st_size, str(stat.st_mtime_ns)))
    except OSError as error:
        raise _make_unreadable_error(error.filename or path, error) from error


def _follow(
    path: str,
    below: frozenset[int],
    real_root: str,
    listing: LocalListing,
    linked: deque[_Visit],
    *,
    matched: bool,
) -> None:
    stat = os.stat(path)  # noqa: PTH116  (raises when the link leads nowhere: a file that should be there is not)
    real = os.path.realpath(path)
    if S_ISDIR(stat.st_mode):
        if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
            listing.links_outside.append(path)
        elif f"{os.path.realpath(os.path.dirname(path))}/".startswith(real.rstrip("/") + "/"):  # noqa: PTH120
            if below:
                raise UsageError(
                    f"{path} is a link that leads back to {real}, which contains it: its files would be listed without "
                    "end",
                    help="remove the link, or use a narrower pattern",
                    path=path,
                )
        elif below:
            linked.append(_Visit(path, real, below))
        elif matched:
            listing.folders.append(path)
    elif matched:
        if not S_ISREG(stat.st_mode):
            raise _make_not_a_file_error(path)
        listing.links.append((path, real, stat.st_size, version_of(stat)))


def _make_unreadable_error(path: str, error: OSError) -> UsageError:
    hints = {
        errno.EACCES: "give this user permission to read it, or exclude it from the pattern",
        errno.ENOENT: "it was removed while it was listed, or it is a broken link: restore the file or remove the link",
        errno.ELOOP: "it is a link to itself: remove it",
    }
    return UsageError(
        f"cannot list {path}: {error.strerror or error}", help=hints.get(error.errno or 0), path=str(path)
    )


def _make_not_a_file_error(path: str) -> UsageError:
    return UsageError(
        f"{path} is neither a file nor a folder", help="exclude it from the pattern: only regular files are read"
    )


def keep_in_memory(path: str, content: bytes) -> str:
    """Keep a small file in the memory of this process; return its URL."""
    url = f"memory://gristmill/{path}"
    store, key = open_store(url)
    store.put(key, content)
    return url


def name_root(url: str) -> str:
    """Return a URL as its store spells it."""
    store, key = open_store(url)
    return store.url(key)


def list_remote(url: str, pattern: PathPattern) -> Iterator[RemoteFile]:
    """Yield all files below a URL that match. Each folder is listed once; those that cannot match are not entered."""
    store, root = open_store(url)
    root = root.rstrip("/")
    if store.lists_flat and None in pattern.parts:
        yield from _list_flat(store, root, pattern)
        return
    waiting = deque([(root, pattern.start())])
    while waiting:
        folder, states = waiting.popleft()
        try:
            for entry in store.list_folder(folder):
                name = entry if isinstance(entry, str) else entry.key.rpartition("/")[2]
                below, matched = pattern.step(states, name)
                if isinstance(entry, str):
                    if below:
                        waiting.append((f"{folder}/{name}" if folder else name, below))
                elif matched:
                    yield _to_remote_file(store, entry)
        except FileNotFoundError:
            if folder != root:
                raise


def find_remote(url: str) -> tuple[RemoteFile | None, bool]:
    """Return the file of a URL, if it names one, and whether it names a folder."""
    store, key = open_store(url)
    try:
        return _to_remote_file(store, store.head(key)), False
    except FileNotFoundError:
        if find_protocol(url) in ("http", "https"):  # a web server has no folders
            return None, False
    try:
        return None, next(iter(store.list_folder(key)), None) is not None
    except FileNotFoundError:
        return None, False


def list_names(url: str) -> dict[str, RemoteFile | None]:
    """List one folder: its files by URL; None for a folder."""
    store, root = open_store(url)
    folder = root.rstrip("/")
    names: dict[str, RemoteFile | None] = {}
    try:
        for entry in store.list_folder(folder):
            if isinstance(entry, str):
                names[store.url(f"{folder}/{entry}" if folder else entry)] = None
            else:
                names[store.url(entry.key)] = _to_remote_file(store, entry)
    except FileNotFoundError:
        return {}
    return names


def _list_flat(store: Store, root: str, pattern: PathPattern) -> Iterator[RemoteFile]:
    """Yield the files of a flat store that match a pattern for any depth: a thousand names a request."""
    start = len(root) + 1 if root else 0
    try:
        for entry in store.list_all(root):
            if pattern.matches(entry.key[start:].split("/")):
                yield _to_remote_file(store, entry)
    except FileNotFoundError:
        return


def _to_remote_file(store: Store, entry: StoredObject) -> RemoteFile:
    return store.url(entry.key), entry.num_bytes, entry.version
