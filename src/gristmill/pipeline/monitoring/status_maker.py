"""Measures a running job: from the engine's observer and workers to a `RunStatus`, with a line on why it is slow.

Costs two small files of `/proc` a worker and look. Workers on other machines are measured by the agents of their nodes.
The reason is the first of a few rules that fits:

no worker is ready ─▶ starting       little memory, or fewer workers for it ─▶ memory
counts stand still ─▶ stalled        workers wait: nothing queued ─▶ straggler, else ─▶ starved
busy workers use little CPU ─▶ reading, or the machine's other work; else ─▶ computing
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import structs

from gristmill.core.quantities import format_bytes, format_count
from gristmill.engine import machine
from gristmill.engine.tasks import Task
from gristmill.pipeline.monitoring.run_status import MAX_WORKERS, Bottleneck, EndedJob, RunStatus, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.engine.job_workers import JobWorkers, PooledWorker
    from gristmill.engine.observer import Observer
    from gristmill.engine.tasks import Stopwatch


_RATE_SECONDS = 15.0
_CPU_SECONDS = 1.0
"""The least time over which a share of a CPU is measured."""
_SHORT_MEMORY = 0.1
"""The share of memory that is left when memory is called short."""
_STALL_SECONDS = 60.0
_BUSY_CPU = 0.7
"""A worker that uses less of a CPU than this is waiting for something."""
_PRESSURE = 0.2
"""The share of time that tasks wait for a CPU, from which on other work slows a run."""
_STORE_WAIT = 0.25
"""The share of their time that tasks wait for a store, from which on it is what slows them."""
_STRAGGLER_SECONDS = 2.0


@runtime_checkable
class Placed(Protocol):
    """The payload of a task that can tell which file and byte it is at."""

    def describe_place(self, num_bytes: int) -> str:
        """Describe where the task is after this many bytes of its input."""


class StatusMaker:
    """Makes statuses of one run. Rates and CPU shares are measured between two calls."""

    def __init__(self, run_id: str, backend: str, stopwatch: Stopwatch) -> None:
        self._run_id = run_id
        self._backend = backend
        self._stopwatch = stopwatch
        self._started = monotonic()
        self._cpu_shares: dict[object, tuple[float, float, float | None]] = {}
        """By process: when it was measured last, its CPU seconds then, and the share."""
        self._samples: deque[tuple[float, int, int]] = deque()
        self._progress: tuple[object, ...] = ()
        self._moved = monotonic()

    def make(self, observer: Observer, workers: JobWorkers) -> RunStatus:
        """Measure the job as it is now."""
        now = monotonic()
        listed = sorted(workers, key=lambda worker: worker.busy_since if worker.chunks else now)[:MAX_WORKERS]
        shown = [self._describe_worker(worker, now) for worker in listed]
        if sum(worker.handle.pid is None and worker.handle.node is None for worker in listed) > 1:
            # Threads share one process: its CPU and memory are shown once.
            shown[1:] = [structs.replace(worker, cpu_share=None, memory_bytes=0) for worker in shown[1:]]
        counts = dict(observer.counts)
        for worker in workers:
            for name, amount in _read_counts(worker).items():
                counts[name] = counts.get(name, 0) + amount - worker.counts.get(name, 0)
        progress = (
            observer.desc,
            observer.num_done,
            observer.num_failed,
            observer.num_deaths,
            workers.num_busy,
            counts,
        )
        if progress != self._progress:
            self._progress, self._moved = progress, now
        records_rate, bytes_rate = self._measure_rates(counts, now)
        status = structs.replace(
            self.make_last(observer),
            num_workers=len(workers),
            num_busy=workers.num_busy,
            counts=counts,
            seconds_without_progress=round(now - self._moved, 1),
            workers=shown,
            parent_cpu_share=self._measure_cpu(os.getpid(), machine.read_process_use(os.getpid())[0], now),
            workers_reduced=observer.reduction,
            records_per_second=records_rate,
            bytes_per_second=bytes_rate,
            seconds_left=_estimate_seconds_left(observer, counts),
        )
        return structs.replace(status, bottleneck=find_bottleneck(status))

    def make_last(self, observer: Observer) -> RunStatus:
        """Describe a job that has ended: what is known of it without its workers. Rates are those of the whole job."""
        seconds = observer.seconds_since_ready or observer.seconds or 1.0
        return RunStatus(
            run=self._run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            backend=self._backend,
            written=round(time.time(), 3),
            run_seconds=round(monotonic() - self._started, 1),
            ended=[
                EndedJob(name=job.name, seconds=round(job.seconds, 1), tasks=job.tasks, counts=job.counts)
                for job in self._stopwatch.jobs
            ],
            load=round(os.getloadavg()[0], 2),
            cpu_pressure=machine.read_pressure("cpu"),
            io_pressure=machine.read_pressure("io"),
            num_cpus=len(machine.find_usable_cpus()),
            memory_limit=machine.read_memory_limit(),
            memory_available=machine.read_memory_available(),
            work_seconds=round(observer.seconds_since_ready, 3),
            cpu_seconds=round(sum(worker.cpu_seconds for worker in self._stopwatch.measure_workers(observer)), 2),
            peak_bytes=sum(worker.peak_bytes for worker in observer.workers),
            records_per_second=round(observer.counts.get("records", 0) / seconds, 1),
            bytes_per_second=round(observer.counts.get("bytes", 0) / seconds, 1),
            job=observer.desc,
            done=observer.num_done,
            total=observer.total,
            failed=observer.num_failed,
            deaths=observer.num_deaths,
            counts=dict(observer.counts),
            num_bytes=observer.num_bytes,
            seconds=round(observer.seconds, 1),
        )

    def _describe_worker(self, worker: PooledWorker, now: float) -> WorkerStatus:
        handle = worker.handle
        remote = handle.remote_use
        pid = os.getpid() if handle.pid is None and remote is None else handle.pid
        if remote is not None:
            cpu_share, memory = self._measure_cpu(handle, remote.cpu_seconds, now), remote.memory_bytes
        elif pid is not None and handle.node is None:
            cpu_share = self._measure_cpu(pid, machine.read_process_use(pid)[0], now)
            memory = machine.read_process_bytes(pid)
        else:  # on another machine, and not measured yet
            cpu_share, memory = None, 0
        counts = {**worker.counts, **_read_counts(worker)}
        num_bytes = counts.get("bytes", 0)
        running = worker.unfinished_chunks()[:1]  # another one may wait there
        items = [item for chunk in running for _, item in chunk.unfinished_items()]
        return WorkerStatus(
            name=handle.name,
            node=handle.node or "",
            state="busy" if worker.chunks else "idle" if worker.is_ready else "starting",
            cpu_share=cpu_share,
            memory_bytes=memory,
            seconds=round(now - worker.busy_since, 1) if worker.chunks else 0.0,
            task=", ".join(_describe_task(item, num_bytes) for item in items if isinstance(item, Task)),
            records=counts.get("records", 0),
            bytes=num_bytes,
        )

    def _measure_cpu(self, key: object, used: float, now: float) -> float | None:
        """Measure the share of a CPU over at least a second; None at the first look."""
        last, last_used, share = self._cpu_shares.get(key, (now, used, None))
        if now - last >= _CPU_SECONDS:
            share = max(0.0, (used - last_used) / (now - last))
            self._cpu_shares[key] = (now, used, share)
        else:
            self._cpu_shares.setdefault(key, (now, used, None))
        return share

    def _measure_rates(self, counts: Mapping[str, int], now: float) -> tuple[float, float]:
        """Measure records/s and bytes/s over the last seconds of a job."""
        samples = self._samples
        amounts = counts.get("records", 0), counts.get("bytes", 0)
        if samples and amounts < samples[-1][1:]:  # another job, or a task that failed
            samples.clear()
        samples.append((now, *amounts))
        while now - samples[0][0] > _RATE_SECONDS:
            samples.popleft()
        first_time, first_records, first_bytes = samples[0]
        seconds = now - first_time
        if not seconds:
            return 0.0, 0.0
        return (
            round(max(0.0, (amounts[0] - first_records) / seconds), 1),
            round(max(0.0, (amounts[1] - first_bytes) / seconds), 1),
        )


def _estimate_seconds_left(observer: Observer, counts: Mapping[str, int]) -> float | None:
    fraction = min(counts.get("bytes", 0) / observer.num_bytes, 1.0) if observer.num_bytes else observer.fraction
    seconds = observer.seconds_since_ready
    return round(seconds * (1 - fraction) / fraction, 1) if fraction and seconds else None


def _read_counts(worker: PooledWorker) -> dict[str, int]:
    """Read how far a worker is in its task. Messages come four times a second at most, or only with the result."""
    note = worker.handle.current() if worker.chunks else None
    if note is None or all(index != note[1] for index, _ in worker.unfinished_items()):
        return {}
    return worker.handle.read_counts()


def _describe_task(task: Task, num_bytes: int) -> str:
    return task.payload.describe_place(num_bytes) if isinstance(task.payload, Placed) else task.id


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
    if status.cpu_pressure is not None:
        if status.cpu_pressure > max(_PRESSURE, status.io_pressure or 0.0):
            wait = f"tasks of this machine wait for a CPU {status.cpu_pressure:.0%} of the time"
            return Bottleneck("machine", f"machine: busy workers get {share:.0%} of a CPU each; {wait}")
    elif status.num_cpus and status.load > 1.5 * max(status.num_cpus, status.num_busy):
        load = f"its load is {status.load:.1f} on {format_count(status.num_cpus, 'CPU')}"
        return Bottleneck("machine", f"machine: busy workers get {share:.0%} of a CPU each; {load}")
    return Bottleneck(
        "reading", f"reading: busy workers use only {share:.0%} of a CPU each; they wait for the disk or the network"
    )
