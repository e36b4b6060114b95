"""The history of a job as JSON lines, for scripts and for later analysis."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.storage.line_log import LineLog

if TYPE_CHECKING:
    import os

_MAX_LINE_BYTES = 1 << 20


class EventLog:
    """A log with one JSON object a line for each start and death of a worker, each retry, each failure, and the end.

    >>> import tempfile, pathlib, json
    >>> import gristmill as gm
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "events.jsonl")
    >>> gm.parallel_map(abs, [-1, 2], backend="serial", progress=gm.EventLog(path))
    [1, 2]
    >>> [json.loads(line)["event"] for line in path.read_text().splitlines()]
    ['job_started', 'worker_started', 'worker_ready', 'job_ended']
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._log: LineLog | None = None

    def write(self, event: str, **fields: object) -> None:
        """Append one event. The file is opened at the first one."""
        if self._log is None:
            _refuse_other_file(Path(self.path))
            self._log = LineLog(self.path)
        self._log.append({"time": round(time.time(), 3), "event": event, **fields})

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        if self._log is not None:
            self._log.close()
            self._log = None


def _refuse_other_file(path: Path) -> None:
    """Raise an error if the file holds something else than JSON lines: lines of events would damage it."""
    if not path.is_file():  # nothing yet, a pipe, a terminal
        return
    with path.open("rb") as file:
        first_line = file.readline(_MAX_LINE_BYTES)
    try:
        is_log = not first_line or isinstance(json.loads(first_line), dict)
    except ValueError:
        is_log = False
    if not is_log:
        raise UsageError(f"{path} is not a log of events", help="choose another path: nothing was written")
