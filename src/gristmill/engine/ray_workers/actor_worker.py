"""What runs inside the actors: a worker, and one agent for each node.

The agent is a second process on the node. It maps the recordings of the workers there, so that it can tell what a
worker was doing when it died, ask the kernel whether memory ran out, and end what a dead worker has left running.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import signal
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from gristmill.core.errors import ClusterError
from gristmill.engine import machine
from gristmill.engine.worker import wire
from gristmill.engine.worker.job import JobRunner
from gristmill.engine.worker.recorder import Recorder, create_recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gristmill.engine.worker.pickling import Buffer
    from gristmill.storage.locations import Location

_LEAVE_SECONDS = 0.5
"""How long a worker that was killed through Ray may take to end before it is killed by the kernel."""
_LOOK_SECONDS = 0.01


class JobFile:
    """A job that is too large for a message: it lies in the work folder, and the message holds its SHA-256."""

    def __init__(self, location: Location, sha256: str) -> None:
        self._location = location
        self._sha256 = sha256

    def read(self) -> bytes:
        """Read the job, and refuse one that is not the driver's."""
        content = self._location.read_bytes()
        if hashlib.sha256(content).hexdigest() != self._sha256:
            raise ClusterError(
                f"{self._location} is not what the driver wrote there",
                help="mount the same storage on every node",
            )
        return content


class ActorWorker:
    """A worker whose messages come in calls: what it sends is the answer."""

    def __init__(self) -> None:
        self._outgoing: list[Buffer] = []
        recording = _find_own_recording()
        self._runner = JobRunner(self._outgoing.extend, Recorder(recording))
        faulthandler.enable(recording, all_threads=False)

    def answer(self, message: bytes) -> bytes:
        """Do what a message says, and return what came of it: none, one or several frames."""
        for frame in wire.unpack(message):
            self._runner.handle(frame)
        answer = b"".join(self._outgoing)
        self._outgoing.clear()
        return answer


def _find_own_recording() -> int:
    """Find the file that the shell has made; without `/proc` no other process could open it, and any file will do."""
    folder = Path("/proc/self/fd")
    for entry in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if entry.readlink().name.startswith("memfd:gristmill-recorder"):
                return int(entry.name)
    return create_recording()


class NodeAgent:
    """Watches the workers of one node, in a separate process."""

    def __init__(self) -> None:
        self._recordings: dict[int, Recorder] = {}
        self._started: dict[int, str] = {}
        self._num_kills = machine.count_oom_kills()

    def answer(self, message: bytes) -> bytes:
        """Answer a request: `watch` a worker, `look` at some, or `end` one that has died."""
        request = json.loads(message)
        verbs: dict[str, Callable[..., Any]] = {"watch": self._watch, "look": self._look, "end": self._end}
        return json.dumps(verbs[request.pop("verb")](**request)).encode()

    def _watch(self, pid: int, recording: int) -> bool:
        try:
            fd = os.open(f"/proc/{pid}/fd/{recording}", os.O_RDWR)
        except OSError:  # no such file system, or the worker is gone already
            return False
        self._recordings[pid] = Recorder(fd)
        self._started[pid] = _read_start(pid)
        os.close(fd)
        return True

    def _look(self, pids: list[int]) -> dict[int, dict[str, Any]]:
        """Return what each worker does and uses: its item, since how many seconds, the position and counts in it."""
        now = monotonic()
        workers = {}
        for pid in pids:
            if pid in self._recordings:
                started, item, position = self._recordings[pid].read()
                records, num_bytes = self._recordings[pid].read_counts()
                cpu_seconds, peak_bytes = machine.read_process_use(pid)
                workers[pid] = {
                    "note": (now - started, item, position),
                    "cpu_seconds": cpu_seconds,
                    "memory_bytes": machine.read_process_bytes(pid),
                    "peak_bytes": peak_bytes,
                    "counts": {"records": records, "bytes": num_bytes},
                }
        return workers

    def _end(self, pid: int) -> dict[str, Any]:
        """Report how a worker ended, and end what it left running.

        One that Ray was asked to kill may be on its way. One that is stopped would not end for seconds.
        """
        started = self._started.pop(pid, "")
        deadline = monotonic() + _LEAVE_SECONDS
        while _read_start(pid) == started != "" and monotonic() < deadline:
            sleep(_LOOK_SECONDS)
        if _read_start(pid) in ("", started):  # not another process with the same number
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        num_kills, self._num_kills = self._num_kills, machine.count_oom_kills()
        item, position, crash_text = -1, -1, ""
        recorder = self._recordings.pop(pid, None)
        if recorder is not None:
            _, item, position = recorder.read()
            crash_text = recorder.read_crash_text()
            recorder.close()
        has_run_out = self._num_kills > num_kills
        return {"item": item, "position": position, "crash_text": crash_text, "out_of_memory": has_run_out}


def _read_start(pid: int) -> str:
    """Read when a process started; empty if there is none, or it has ended."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if not facts or facts[0] in "ZX" else facts[19]
