"""An append-only file of JSON lines. It is apart from `files`, because `parallel_map` needs it and no Arrow."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


class LineLog:
    """A log that appends JSON lines to a file, which may hold some. Each is one write, so a crash leaves no half."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._fd: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"cannot write to {os.fspath(path)}: {reason}", help="choose another path") from error

    def append(self, record: Mapping[str, object]) -> None:
        """Write one line. Does nothing after `close`."""
        if self._fd is not None:
            os.write(self._fd, (json.dumps(record) + "\n").encode())

    def close(self) -> None:
        """Close the file of lines."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
