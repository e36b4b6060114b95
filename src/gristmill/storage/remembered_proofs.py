"""Proofs of tokenizers, remembered in the user's cache folder for the next plan.

One answer is one small JSON file. Its name is a hash of its key, and the key is everything that decides the answer:
what the caller names, and always the code of this installation and the versions of the libraries. Therefore

* an answer is never used after a change of the code or a library; no version number has to be raised by hand;
* processes that write at the same time need no lock: files of the same name are interchangeable;
* a file that is truncated, damaged, of another key, or of another user is ignored, and written again;
* where the folder cannot be written or is open to other users, nothing is remembered, and all else works.

Only a plan uses the cache, inside `with use_plan_cache()`: a worker finds nothing there, and `tokenizer check` tries
everything again. The folder may be deleted at any time.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.storage.commit import make_folder, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator


T = TypeVar("T")

_LIBRARIES = ("fastokens", "gristmill", "numba", "numpy", "tokenizers")
"""Libraries that answers may depend on. This one counts with its version, too: some installers give all files the same
time."""
_MAX_BYTES = 1 << 20
_DEFAULT = ""
_folder: str | None = _DEFAULT
_is_used = ContextVar("_is_used", default=False)


class _StoredAnswer(msgspec.Struct):
    checksum: str
    """Of the other two."""
    key: msgspec.Raw
    answer: msgspec.Raw


def choose_plan_cache(folder: str | None) -> None:
    """Choose the folder for this process; None: remember nothing, and use nothing that was remembered."""
    global _folder  # noqa: PLW0603  (one setting of the process, as steps that plugins resolve have no place for it)
    _folder = folder


@contextmanager
def use_plan_cache() -> Iterator[None]:
    """Let `recall` and `remember` do something, for the caller's thread."""
    token = _is_used.set(True)
    try:
        yield
    finally:
        _is_used.reset(token)


def find_plan_cache() -> Path | None:
    """Return the folder of what plans have found out; None if there is none."""
    if _folder is None:
        return None
    if _folder != _DEFAULT:
        return Path(_folder).absolute()
    try:
        return Path(choose_cache_folder(str(Path.home()), sys.platform, "plans"))
    except RuntimeError:  # there is no home folder
        return None


def recall(kind: str, key: Any, answer_type: type[T]) -> T | None:
    """Return a remembered answer; None if there is none for this key or none that can be trusted, or outside a plan.

    Args:
        kind: A word for what is asked, the beginning of the file's name.
        key: Everything that decides the answer, besides code and versions: plain data.
        answer_type: The type that the answer must have.
    """
    path, encoded_key = _find_file(kind, key)
    if path is None:
        return None
    try:
        stored = msgspec.json.decode(_read_own_file(path), type=_StoredAnswer)
        if bytes(stored.key) != encoded_key or stored.checksum != _digest(encoded_key, bytes(stored.answer)):
            return None
        return msgspec.json.decode(stored.answer, type=answer_type)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def remember(kind: str, key: Any, answer: Any) -> None:
    """Remember an answer, if that is possible. It must be plain data or a struct."""
    path, encoded_key = _find_file(kind, key)
    if path is None:
        return
    encoded = msgspec.json.encode(answer)
    stored = _StoredAnswer(_digest(encoded_key, encoded), msgspec.Raw(encoded_key), msgspec.Raw(encoded))
    content = msgspec.json.encode(stored)
    with suppress(OSError):
        make_folder(path.parent.parent)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if _is_private(path.parent.stat()):
            write_file(path, content, "cache")


def _find_file(kind: str, key: Any) -> tuple[Path | None, bytes]:
    folder = find_plan_cache()
    if not _is_used.get() or folder is None or (installation := _describe_installation()) is None:
        return None, b""
    encoded = msgspec.json.encode([kind, installation, key], order="sorted")
    return folder / f"{kind}-{_digest(encoded)}.json", encoded


def _read_own_file(path: Path) -> bytes:
    """Read a file that only this user can have written."""
    if not _is_private(path.parent.stat()):
        raise PermissionError(f"{path.parent} is open to other users")
    # What only looks like a file, such as a pipe, may never be written to: opening it must not wait.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is not a file of this user")
        return file.read(_MAX_BYTES)


def _is_private(folder: os.stat_result) -> bool:
    return folder.st_uid == os.geteuid() and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _describe_installation() -> dict[str, Any] | None:
    """Describe the code that gives answers; None if it is not in plain files."""
    package = Path(__file__).parents[__name__.count(".") - 1]
    try:
        sources = [(str(path.relative_to(package)), path.stat()) for path in sorted(package.rglob("*.py"))]
    except OSError:
        return None
    return {
        "code": _digest(msgspec.json.encode([(name, status.st_size, status.st_mtime_ns) for name, status in sources])),
        "python": [sys.implementation.name, sys.version],
        "libraries": {name: _find_version(name) for name in _LIBRARIES},
        "machine": [sys.platform, platform.machine()],
    }


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _digest(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=16).hexdigest()
