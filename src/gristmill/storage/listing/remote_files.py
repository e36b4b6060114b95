"""Finds remote files: all that match a pattern, one by its name, the names of a folder."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gristmill.storage.stores.open_store import open_store
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.storage.listing.patterns import PathPattern
    from gristmill.storage.stores.base import Store, StoredObject

RemoteFile = tuple[str, int, str]
"""URL, size and version of a file."""


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
