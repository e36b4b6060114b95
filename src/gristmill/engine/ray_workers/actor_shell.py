"""The class of all our actors. Only the standard library, because it travels by value to nodes not yet checked.

Arguments and results are bytes that we encode ourselves: Ray unpickles nothing of ours. `describe` comes first; only
when the driver has compared the answer with its own environment does `call` import Gristmill on the node.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import socket
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

RECORDING_BYTES = 64 * 1024
KEPT_ANSWERS = 4
"""At least as many as calls that are under way to one actor: a job to forget, a job to load, two chunks."""


class ActorShell:
    """An actor that serves numbered calls through a class of Gristmill's, which it imports at the first one."""

    def __init__(self) -> None:
        self._home = ""
        self._description = b""
        self._server: Any = None
        self._answers: dict[bytes, bytes] = {}
        """The last answers, by the numbers of their calls."""

    def describe(self, request: bytes) -> bytes:
        """Describe this process and what is installed on its node, as JSON. Asked again, it answers the same."""
        if self._description:
            return self._description
        asked = json.loads(request)
        self._home = asked["serves"]
        entries = [entry for entry in asked["path"] if os.path.exists(entry)]  # noqa: PTH110
        sys.path[:] = [*entries, *(entry for entry in sys.path if entry not in entries)]
        ray = importlib.import_module("ray")
        recording = os.memfd_create("gristmill-recorder") if hasattr(os, "memfd_create") else -1
        if recording >= 0:
            os.write(recording, bytes.fromhex(asked["recording"]).ljust(RECORDING_BYTES, b"\0"))
            os.lseek(recording, len(asked["recording"]) // 2, os.SEEK_SET)  # where faulthandler writes
        answer = {
            "node": ray.get_runtime_context().get_node_id(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "recording": recording,
            "environment": describe_environment(asked["packages"]),
        }
        self._description = json.dumps(answer).encode()
        return self._description

    def call(self, message: bytes) -> bytes:
        """Serve one call. The same number again returns the same answer: the first one may have been lost."""
        number = message[:8]
        if number not in self._answers:
            if self._server is None:
                module, _, name = self._home.partition(":")
                self._server = getattr(importlib.import_module(module), name)()
            self._answers[number] = self._server.answer(message[8:])
            for old in list(self._answers)[:-KEPT_ANSWERS]:
                del self._answers[old]
        return self._answers[number]

    def leave(self) -> None:
        """End the process of this actor."""
        importlib.import_module("ray").actor.exit_actor()


def describe_environment(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of packages, and a hash of Gristmill's own code."""
    versions = {name: _find_version(name) for name in packages}
    return {"python": platform.python_version(), **versions, "the code of gristmill": _hash_package("gristmill")}


def _find_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _hash_package(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return "not installed"
    folder = Path(spec.origin).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
