"""One run of a side: a fresh process, and what it and all its descendants cost.

CPU time is that of all processes below: the harness adopts orphans (`PR_SET_CHILD_SUBREAPER`) and waits for each, so
`RUSAGE_CHILDREN` misses none. Memory is sampled 20 times a second from `/proc`: the sum of the resident sets of all
processes of the run, pages that they share counted for each, and the high-water mark of the largest one below the
first, which Linux keeps itself. Without `/proc` memory is not measured.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_SAMPLES_A_SECOND = 20
MIB = 1 << 20


class SideError(Exception):
    """A side that did not finish: its last lines."""


@dataclass(frozen=True)
class Run:
    """What one run of a side cost."""

    wall: float
    cpu: float
    peak_mib: float
    """The sum over all processes of the run, at its largest."""
    worker_mib: float
    """The largest process below the first one."""
    parent_mib: float
    inner: float | None = None
    """Seconds that the side measured itself."""
    units: float | None = None
    """The work that the side counted itself."""
    facts: dict | None = None
    """Whatever else the side printed."""

    def as_dict(self) -> dict:
        return {name: value for name, value in asdict(self).items() if value is not None}


class MemoryWatch(threading.Thread):
    """The memory of a process and its descendants, sampled until `stop` is called."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = self.worker = self.parent = 0
        self._pid = pid
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(1 / _SAMPLES_A_SECOND):
            total = 0
            for pid in _list_processes(self._pid):
                resident, highest = _read_memory(pid)
                total += resident
                if pid == self._pid:
                    self.parent = max(self.parent, highest)
                else:
                    self.worker = max(self.worker, highest)
            self.peak = max(self.peak, total)

    def stop(self) -> None:
        self._ended.set()
        self.join()


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent has ended, so that their CPU time is counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_side(command: list[str], variables: dict[str, str], timeout: float = 3600) -> Run:
    """Run a command and measure it. The last line of its output may be JSON with `inner`, `units` and other facts."""
    earlier = set(_list_processes(os.getpid()))
    before, began = _cpu_of_children(), time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=make_variables(variables))
        watch = MemoryWatch(process.pid)
        watch.start()
        try:
            status = process.wait(timeout)
            wall = time.perf_counter() - began
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            watch.stop()
        _reap_orphans(earlier)
        if status:
            raise SideError(f"{' '.join(command[:6])} … ended with status {status}: {_last_lines(errors)}")
        printed = _parse_last_line(out)
    facts = {name: value for name, value in printed.items() if name not in ("inner", "units")}
    return Run(
        wall=wall,
        cpu=_cpu_of_children() - before,
        peak_mib=watch.peak / MIB,
        worker_mib=watch.worker / MIB,
        parent_mib=watch.parent / MIB,
        inner=printed.get("inner"),
        units=printed.get("units"),
        facts=facts or None,
    )


def make_variables(variables: dict[str, str]) -> dict[str, str]:
    """Fresh processes must not compile the package again each time, nor depend on the caller's Python settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **variables}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap_orphans(earlier: set[int]) -> None:
    """Wait for adopted descendants: one that still runs would falsify the next run."""
    while orphans := [pid for pid in _list_processes(os.getpid()) if pid not in earlier]:
        for pid in orphans:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue  # a process of an orphan, which is next to be adopted


def _list_processes(pid: int) -> list[int]:
    pids, todo = [], [pid]
    while todo:
        pids.append(todo.pop())
        try:
            for thread in Path(f"/proc/{pids[-1]}/task").iterdir():
                todo += map(int, (thread / "children").read_text().split())
        except OSError:
            continue
    return pids


def _read_memory(pid: int) -> tuple[int, int]:
    """Return the resident set now and its high-water mark, in bytes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    sizes = dict(line.split(":", 1) for line in status.splitlines() if line.startswith(("VmRSS", "VmHWM")))
    return tuple(int(sizes[name].split()[0]) * 1024 if name in sizes else 0 for name in ("VmRSS", "VmHWM"))


def _last_lines(file) -> str:
    file.seek(0)
    return " | ".join(file.read().decode(errors="replace").strip().splitlines()[-4:])


def _parse_last_line(file) -> dict:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {}
    try:
        return json.loads(lines[-1])
    except ValueError:
        return {}
