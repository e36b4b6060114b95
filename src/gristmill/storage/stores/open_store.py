"""Finds the store of a URL: a module below all stores, which are imported when one is first needed."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gristmill.storage.stores.credentials import find_options
from gristmill.storage.urls import OBJECT_STORES, find_bucket, find_protocol

if TYPE_CHECKING:
    from gristmill.storage.stores.base import Store
    from gristmill.storage.stores.credentials import StorageOptions
    from gristmill.storage.stores.object_store import ObjectStore


def open_store(url: str) -> tuple[Store, str]:
    """Return the store of a URL, and the URL's key in it. The store is kept: it has connections."""
    if find_protocol(url) in OBJECT_STORES:
        store = _open_bucket(find_bucket(url), find_options(url))
        return store, url[len(find_bucket(url)) + 1 :]
    from gristmill.storage.stores.fsspec_store import FsspecStore  # noqa: PLC0415  (fsspec is slow to import)

    fsspec_store = FsspecStore(url)  # fsspec keeps the file system itself
    return fsspec_store, fsspec_store.opened_key


@lru_cache(maxsize=64)
def _open_bucket(bucket: str, options: StorageOptions) -> ObjectStore:
    from gristmill.storage.stores.object_store import ObjectStore  # noqa: PLC0415

    return ObjectStore(bucket, options)


def forget_stores() -> None:
    """Close all connections, and look for credentials again: the environment has changed."""
    _open_bucket.cache_clear()
