"""Worker processes on this machine, each with a private socket pair. One selector waits for all of them.

A death shows twice, at the process descriptor and at the end of the socket. What the worker sent before it died is read
first, so that finished work counts.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING

from gristmill.engine.worker_process import LEAVE_SECONDS, start_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.engine.backend import Died, Event
    from gristmill.engine.worker_process import WorkerProcess

_POLL_SECONDS = 0.5  # where the system has no process descriptors


class ProcessBackend:
    """Runs chunks in separate processes, which can be killed."""

    can_kill = True
    is_local = True
    max_chunks = 1

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._workers: dict[WorkerProcess, None] = {}
        self._unsent: set[WorkerProcess] = set()
        """Workers with data that their sockets did not take yet."""
        self._watched_for_room: set[WorkerProcess] = set()
        """Workers whose sockets the selector also watches for room to write."""

    def start(self, cpus: Sequence[int] | None, *, node: str | None = None) -> WorkerProcess:  # noqa: ARG002
        """Start a process, which waits for a job."""
        worker = start_process(cpus, self._unsent)
        self._workers[worker] = None
        self._selector.register(worker, selectors.EVENT_READ, worker)
        if worker.descriptor is not None:
            self._selector.register(worker.descriptor, selectors.EVENT_READ, worker)
        return worker

    def find_other_node(self, node: str) -> str | None:  # noqa: ARG002  (one machine has no nodes)
        return None

    def wait(self, timeout: float | None) -> list[Event]:
        """Wait for messages and deaths. Sockets with unsent data are watched for room to write, too."""
        for worker in list(self._unsent):
            worker.flush()
        for worker in self._unsent ^ self._watched_for_room:
            room = selectors.EVENT_WRITE if worker in self._unsent else 0
            self._selector.modify(worker, selectors.EVENT_READ | room, worker)
        self._watched_for_room = set(self._unsent)
        events: list[Event] = []
        dead: dict[WorkerProcess, None] = {}  # a set in order of arrival
        for key, _ in self._selector.select(timeout if hasattr(os, "pidfd_open") else _POLL_SECONDS):
            worker = key.data
            received, is_closed = worker.receive()
            events += received
            if is_closed or key.fileobj == worker.descriptor:
                dead[worker] = None
        if not hasattr(os, "pidfd_open"):
            dead.update((worker, None) for worker in self._workers if worker.process.poll() is not None)
        for worker in dead:
            events += worker.receive()[0]
            events.append(self._remove(worker))
        return events

    def _remove(self, worker: WorkerProcess) -> Died:
        self._selector.unregister(worker)
        if worker.descriptor is not None:
            self._selector.unregister(worker.descriptor)
        del self._workers[worker]
        self._unsent.discard(worker)
        self._watched_for_room.discard(worker)
        return worker.reap()

    def close(self, *, at_once: bool) -> None:
        """Kill all workers, or stop them and kill those that have not exited after two seconds."""
        for worker in self._workers:
            worker.kill() if at_once else worker.stop()
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._workers and not at_once and (seconds_left := deadline - time.monotonic()) > 0:
            self.wait(seconds_left)
        for worker in self._workers:  # an interrupt may have come while one was registered or removed
            worker.close()
        self._workers.clear()
        self._selector.close()
