"""The keys of remembered samples: files, steps and functions as plain data.

What cannot be described has no key, and is never remembered: functions whose code cannot be known, steps and readers
that are not built in, records from Python, files of servers that tell no version, and more files than would be read
anyway.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from gristmill.core.recipe import step_parameters
from gristmill.core.step import UserCode
from gristmill.runtime.function import Function
from gristmill.steps.read import file_format
from gristmill.steps.read.read import FORMATS
from gristmill.storage.urls import OBJECT_STORES, find_protocol
from gristmill.storage.user_cache.plan_cache import can_remember

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.steps.read import Read

HEAD_BYTES = 64 << 10
MAX_FILES = 2000
"""The beginnings of this many files are read and hashed in 50 ms. A sample reads 16 of them, so for more files it costs
less to look again."""


def hash_files(read: Read, files: Sequence[SourceFile]) -> str | None:
    """Hash how files are read, and identity and first 64 KiB of each; None if nothing is to be remembered of them.

    The version of an object on a store changes with its content, so its beginning need not be read.
    """
    if not can_remember() or len(files) > MAX_FILES:
        return None
    protocols = [find_protocol(file.path) for file in files]
    if any(
        protocol is not None and (protocol not in OBJECT_STORES or not file.version)
        for protocol, file in zip(protocols, files, strict=True)
    ):
        return None
    if any(file_format(file.path, read.format) not in FORMATS for file in files):
        return None  # a plugin reads them
    described_read = describe_step(read)
    if described_read is None:
        return None
    try:
        heads = [
            _hash_head(file.path) if protocol is None else "" for protocol, file in zip(protocols, files, strict=True)
        ]
    except OSError:
        return None  # the plan will say so
    return blake2b(msgspec.json.encode([described_read, files, heads], order="sorted"), digest_size=16).hexdigest()


def describe_steps(steps: Iterable[Step]) -> list[Any] | None:
    """Describe steps with all their fields; None if a step cannot be described."""
    described = [describe_step(step) for step in steps]
    return None if None in described else described


def describe_step(step: Step) -> list[Any] | None:
    """Describe a step by its class and all its fields, functions by their code; None if that is not possible."""
    if any(
        base.__module__.partition(".")[0] not in ("gristmill", "msgspec", "builtins") for base in type(step).__mro__
    ):
        return None  # a plugin's step, or a class of the user's
    try:
        parameters = {name: _describe_value(value) for name, value in step_parameters(step).items()}
    except (TypeError, ValueError):  # records from Python, functions without known code
        return None
    return [type(step).__module__, step.name, step.fingerprint_versions, parameters]


def _describe_value(value: object) -> object:
    if not isinstance(value, UserCode):
        return msgspec.to_builtins(value)
    code = value.fingerprint() if isinstance(value, Function) else None
    if code is None:
        raise ValueError(f"the code of {value} cannot be known")
    return [str(value), code]


def _hash_head(path: str) -> str:
    # Not through `storage.files`: its buffers and objects cost more than the read.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return xxhash.xxh3_128_hexdigest(os.pread(fd, HEAD_BYTES, 0))
    finally:
        os.close(fd)
