"""Remote files through fsspec: the file system of a URL, the files of a folder, the version of a file.

Object stores are listed flat (a thousand names a request, however many folders). Others are listed folder by folder,
because fsspec's own `find` and `walk` silently skip folders that they cannot read.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError
from gristmill.storage.remote_calls import ask_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.storage.patterns import PathPattern

_FLAT_STORES = frozenset({"s3", "s3a", "gs", "gcs"})
_LOCAL = frozenset({"file", "local"})
_PACKAGES = {"s3": "gristmill[s3]", "s3a": "gristmill[s3]", "gs": "gristmill[gcs]", "gcs": "gristmill[gcs]"}
_VERSION_KEYS = ("ETag", "etag", "blob_id", "generation", "md5Hash", "mtime", "LastModified", "modified", "created")

_S3_OPTIONS = {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"total_max_attempts": 1}}}
_OPTIONS = {"s3": _S3_OPTIONS, "s3a": _S3_OPTIONS}
"""Options of file systems: the library makes each request once, because `ask_store` does the retries."""

RemoteFile = tuple[str, int, str]
"""URL, size and version of a file."""


def find_protocol(path: str) -> str | None:
    """Return the protocol of a URL; None for a local path, `file://` included.

    >>> find_protocol("s3://bucket/key"), find_protocol("file:///data/x"), find_protocol("data/x")
    ('s3', None, None)
    """
    protocol, separator, _ = path.partition("://")
    return protocol if separator and protocol.isalnum() and protocol not in _LOCAL else None


def local_path(path: str) -> str:
    """Return a local path without `file://`."""
    protocol, separator, rest = path.partition("://")
    return rest if separator and protocol in _LOCAL else path


def open_file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the URL's path in it."""
    import fsspec  # noqa: PLC0415  (local files need none of it)

    protocol = find_protocol(url)
    try:
        return fsspec.core.url_to_fs(url, **_OPTIONS.get(protocol or "", {}))  # type: ignore[no-any-return]
    except ImportError as error:
        package = _PACKAGES.get(protocol or "", "the fsspec implementation for it")
        raise UsageError(f"{url}: reading {protocol}:// needs a package: {error}", help=f"install {package}") from error
    except ValueError as error:
        raise UsageError(
            f"{url}: {error}", help="use a local path or a URL that fsspec knows, such as s3://…"
        ) from error


def keep_in_memory(path: str, content: bytes) -> str:
    """Keep a small file in the memory of this process; return its URL."""
    url = f"memory://gristmill/{path}"
    fs, inner = open_file_system(url)
    fs.pipe(inner, content)
    return url


def version_of(info: Mapping[str, Any]) -> str:
    """Return the store's version of a file, which changes with the content; empty if there is none."""
    for key in _VERSION_KEYS:
        if (value := info.get(key)) is not None:
            # The memory store returns a number in a listing and a date for a single file.
            return str(value.timestamp() if isinstance(value, datetime) else value).strip('"')
    return ""


def list_remote(url: str, pattern: PathPattern) -> Iterator[RemoteFile]:
    """Yield all files below a URL that match."""
    fs, root = open_file_system(url)
    fs.invalidate_cache()
    prefix = root.rstrip("/") + "/"
    infos = _list_flat(fs, root, url) if find_protocol(url) in _FLAT_STORES and None in pattern.parts else None
    if infos is None:
        yield from _walk(fs, prefix, pattern, url)
        return
    for info in infos:
        name = info["name"]
        if name.startswith(prefix) and pattern.matches(name[len(prefix) :].split("/")):
            yield _to_remote_file(fs, info)


def find_remote(url: str) -> tuple[RemoteFile | None, bool]:
    """Return the file of a URL, if it names one, and whether it names a folder."""
    fs, path = open_file_system(url)
    try:
        info = ask_store(url, lambda: fs.info(path))
    except FileNotFoundError:
        return None, False
    if info["type"] == "directory":
        return None, True
    return _to_remote_file(fs, info), False


def list_names(url: str) -> dict[str, RemoteFile | None]:
    """List one folder: its files by URL; None for a folder."""
    fs, root = open_file_system(url)
    fs.invalidate_cache()
    try:
        infos = ask_store(url, partial(_list_folder, fs, root))
    except FileNotFoundError:
        return {}
    return {
        fs.unstrip_protocol(info["name"].rstrip("/")): None
        if info["type"] == "directory"
        else _to_remote_file(fs, info)
        for info in infos
    }


def _list_flat(fs: Any, root: str, url: str) -> list[dict[str, Any]]:
    try:
        infos = ask_store(url, lambda: _find(fs, root))
    except FileNotFoundError:
        return []
    # A key that ends with a slash is the marker that some tools create for a folder.
    return [info for info in infos if info["type"] != "directory" and not info["name"].endswith("/")]


def _find(fs: Any, root: str) -> list[dict[str, Any]]:
    fs.invalidate_cache()  # a failed attempt may have cached half a listing
    return list(fs.find(root, detail=True).values())


def _list_folder(fs: Any, folder: str) -> list[dict[str, Any]]:
    fs.invalidate_cache(folder)
    return list(fs.ls(folder, detail=True))


def _walk(fs: Any, prefix: str, pattern: PathPattern, url: str) -> Iterator[RemoteFile]:
    waiting = deque([(prefix, pattern.start())])
    while waiting:
        folder, states = waiting.popleft()
        try:
            infos = ask_store(url, partial(_list_folder, fs, folder.rstrip("/") or folder))
        except FileNotFoundError:
            continue  # only the first one can be missing: an empty or absent prefix of an object store
        for info in infos:
            name = info["name"].rstrip("/")
            base = name[len(folder) :]
            if not name.startswith(folder) or not base:
                continue  # the marker object of the folder itself
            below, matched = pattern.step(states, base)
            if info["type"] == "directory":
                if below:
                    waiting.append((name + "/", below))
            elif matched and not info["name"].endswith("/"):
                yield _to_remote_file(fs, info)


def _to_remote_file(fs: Any, info: Mapping[str, Any]) -> RemoteFile:
    size = info.get("size")
    url = fs.unstrip_protocol(info["name"])
    if size is None:
        raise UsageError(f"{url}: the server does not say how large it is", help="download it first")
    return url, int(size), version_of(info)
