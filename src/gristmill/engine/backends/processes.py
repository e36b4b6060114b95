"""Worker processes on this machine, each behind a private socket pair. One selector waits for all of them.

A death shows twice, at the process descriptor and at the end of the socket. What the worker sent before it died is read
first, so that finished work counts.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING

from gristmill.core.errors import UnpicklableError
from gristmill.engine.worker import pickling
from gristmill.engine.worker_process import LEAVE_SECONDS, WorkerProcess

if TYPE_CHECKING:
    from gristmill.engine.backend import Died, Event, WorkerSpec
    from gristmill.engine.worker.binding import Place
    from gristmill.engine.worker.job import Job

_POLL_SECONDS = 0.5  # where the system has no process descriptors


class ProcessBackend:
    """Runs chunks in processes of their own, which can be killed."""

    can_kill = True

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._interests: dict[WorkerProcess, int] = {}
        """The events that the selector watches for at the socket of each worker."""
        self._pickled_jobs: dict[Job, bytes] = {}

    def start(self, spec: WorkerSpec, place: Place | None) -> WorkerProcess:
        """Start a process and send it the job, which is pickled once for all workers."""
        if spec.job not in self._pickled_jobs:
            try:
                self._pickled_jobs[spec.job] = pickling.function_to_bytes(spec.job)
            except Exception as error:
                hint = "create what it captures (locks, connections, open files) inside the worker, in setup"
                raise UnpicklableError(f"the function cannot be sent to workers: {error}", help=hint) from error
        worker = WorkerProcess(self._pickled_jobs[spec.job], place, returns_unstarted=spec.returns_unstarted)
        self._interests[worker] = selectors.EVENT_READ
        self._selector.register(worker, selectors.EVENT_READ, worker)
        if worker.descriptor is not None:
            self._selector.register(worker.descriptor, selectors.EVENT_READ, worker)
        return worker

    def wait(self, timeout: float | None) -> list[Event]:
        """Wait for messages and deaths. Sockets with unsent data are watched for room to write, too."""
        for worker, interest in self._interests.items():
            new_interest = selectors.EVENT_READ if worker.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
            if new_interest != interest:
                self._selector.modify(worker, new_interest, worker)
                self._interests[worker] = new_interest
        events: list[Event] = []
        dead: dict[WorkerProcess, None] = {}  # a set in order of arrival
        for key, _ in self._selector.select(timeout if hasattr(os, "pidfd_open") else _POLL_SECONDS):
            worker = key.data
            received, is_closed = worker.receive()
            events += received
            if is_closed or key.fileobj == worker.descriptor:
                dead[worker] = None
        if not hasattr(os, "pidfd_open"):
            dead.update((worker, None) for worker in self._interests if worker.process.poll() is not None)
        for worker in dead:
            events += worker.receive()[0]
            events.append(self._remove(worker))
        return events

    def _remove(self, worker: WorkerProcess) -> Died:
        self._selector.unregister(worker)
        if worker.descriptor is not None:
            self._selector.unregister(worker.descriptor)
        del self._interests[worker]
        return worker.reap()

    def close(self, *, at_once: bool) -> None:
        """Kill all workers, or stop them and kill those that have not exited after two seconds."""
        for worker in self._interests:
            worker.kill() if at_once else worker.stop()
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._interests and not at_once and (seconds_left := deadline - time.monotonic()) > 0:
            self.wait(seconds_left)
        for worker in list(self._interests):
            self._remove(worker)
        self._selector.close()
