"""Why a run is slow, in one line: the first of a few rules that fits what was measured.

no worker is ready ─▶ starting       little memory, or fewer workers for it ─▶ memory
counts stand still ─▶ stalled        workers wait: nothing queued ─▶ straggler, else ─▶ starved
busy workers use little CPU ─▶ reading, or the machine's other work; else ─▶ computing
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.quantities import format_bytes, format_count
from gristmill.pipeline.monitoring.run_status import Bottleneck

if TYPE_CHECKING:
    from gristmill.pipeline.monitoring.run_status import RunStatus

_SHORT_MEMORY = 0.1
"""The share of memory that is left when memory is called short."""
_STALL_SECONDS = 60.0
_BUSY_CPU = 0.7
"""A worker that uses less of a CPU than this is waiting for something."""
_STORE_WAIT = 0.25
"""The share of their time that tasks wait for a store, from which on it is what slows them."""
_STRAGGLER_SECONDS = 2.0


def find_bottleneck(status: RunStatus) -> Bottleneck:
    """Find what slows a run.

    >>> from gristmill.pipeline.monitoring.run_status import RunStatus, WorkerStatus
    >>> workers = [WorkerStatus(name="a", state="busy", task="x.jsonl, byte 17", seconds=90.0, cpu_share=1.0),
    ...            WorkerStatus(name="b", state="idle")]
    >>> status = RunStatus(run="1", host="h", pid=1, backend="processes", written=0.0, job="running", done=9, total=10,
    ...                    num_workers=2, num_busy=1, workers=workers)
    >>> find_bottleneck(status).text
    'straggler: 1 worker waits for the last task: x.jsonl, byte 17 on a for 90 s'
    """
    ready = [worker for worker in status.workers if worker.state != "starting"]
    if not ready:
        return Bottleneck("starting", "starting: no worker is ready yet")
    if status.workers_reduced:
        return Bottleneck("memory", f"memory: {format_count(status.num_workers, 'worker')}; {status.workers_reduced}")
    if status.memory_limit and status.memory_available < _SHORT_MEMORY * status.memory_limit:
        left = f"{format_bytes(status.memory_available)} of {format_bytes(status.memory_limit)} are free"
        return Bottleneck("memory", f"memory: {left}; fewer workers or a smaller batch need less")
    slowest = status.slowest
    if status.seconds_without_progress > _STALL_SECONDS and slowest is not None:
        return Bottleneck(
            "stalled", f"stalled: no progress for {status.seconds_without_progress:,.0f} s: {slowest.describe()}"
        )
    return _find_idleness(status) or _find_waiting(status)


def _find_idleness(status: RunStatus) -> Bottleneck | None:
    """Find why workers have no task: the last ones are running, or the next ones are not ready."""
    num_idle = status.num_workers - status.num_busy
    slowest = status.slowest
    if slowest is None and num_idle > 0:
        return Bottleneck("starved", "starved: no worker has a task; the main process is making the next ones")
    if num_idle <= 0 or slowest is None or slowest.seconds < _STRAGGLER_SECONDS:
        return None
    waits = f"{format_count(num_idle, 'worker')} wait{'s' if num_idle == 1 else ''}"
    num_left = None if status.total is None else status.total - status.done
    if num_left is not None and num_left <= status.num_busy:
        tasks = "task" if num_left == 1 else f"{num_left:,} tasks"
        return Bottleneck("straggler", f"straggler: {waits} for the last {tasks}: {slowest.describe()}")
    if status.parent_cpu_share is not None and status.parent_cpu_share > _BUSY_CPU:
        share = f"{status.parent_cpu_share:.0%}"
        return Bottleneck("starved", f"starved: {waits} for the main process, which uses {share} of a CPU")
    return Bottleneck("starved", f"starved: {waits} for tasks that depend on {slowest.describe()}")


def _find_waiting(status: RunStatus) -> Bottleneck:
    """Find what busy workers wait for, if they do."""
    shares = [worker.cpu_share for worker in status.workers if worker.state == "busy" and worker.cpu_share is not None]
    if not shares:
        return Bottleneck()
    share = sum(shares) / len(shares)
    waited, worked = status.counts.get("store:wait_ms", 0), status.counts.get("store:task_ms", 0)
    if worked and waited / worked > _STORE_WAIT:
        return Bottleneck("reading", f"reading: tasks wait {waited / worked:.0%} of their time for the store")
    if share >= _BUSY_CPU:
        return Bottleneck(
            "computing", f"computing: busy workers use {share:.0%} of a CPU each; more cores would make it faster"
        )
    if status.num_cpus and status.load > 1.5 * max(status.num_cpus, status.num_busy):
        load = f"its load is {status.load:.1f} on {format_count(status.num_cpus, 'CPU')}"
        return Bottleneck("machine", f"machine: busy workers get {share:.0%} of a CPU each; {load}")
    return Bottleneck(
        "reading", f"reading: busy workers use only {share:.0%} of a CPU each; they wait for the disk or the network"
    )
