"""Everything in the calling thread: for debugging, for small jobs, and as the reference for all other backends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gristmill.engine.backend import Counts, Died, Ready, Results, SetupFailed
from gristmill.engine.worker import chunk as chunks
from gristmill.engine.worker.captured_error import CapturedError
from gristmill.engine.worker.job import Context

if TYPE_CHECKING:
    from gristmill.engine.backend import Event, WorkerSpec
    from gristmill.engine.worker.binding import Place
    from gristmill.engine.worker.chunk import Chunk, ChunkResults


class SerialWorker:
    """The calling thread as a worker. Its chunks run inside `SerialBackend.wait`."""

    name = "caller"
    pid = None
    node = None
    host = ""
    remote_use = None

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._waiting: list[Chunk] = []
        self._context = Context(self._send_counts)
        self._spec: WorkerSpec | None = None
        self._extra_arguments: tuple[object, ...] = ()

    def assign(self, spec: WorkerSpec | None) -> None:
        self._spec = spec
        if spec is None:
            self._extra_arguments, self._context.state = (), None
            return
        try:
            self._extra_arguments = spec.job.run_setup(self._context)
        except Exception as error:
            self._events += [SetupFailed(self, CapturedError(error)), Died(self, "could not be set up")]
        else:
            self._events.append(Ready(self))

    def _send_counts(self, counts: dict[str, int]) -> None:
        """Hand counters over at once: an event would wait for the end of the chunk."""
        if self._spec is not None and self._spec.on_counts is not None:
            self._spec.on_counts(self, counts)
        else:
            self._events.append(Counts(self, counts))

    def send(self, chunk: Chunk) -> int:
        self._waiting.append(chunk)
        return 0

    def run_one_chunk(self) -> None:
        """Run the first chunk that waits, if there is one."""
        if not self._waiting or self._spec is None:
            return
        chunk = self._waiting.pop(0)

        def emit(results: ChunkResults, *, last: bool) -> None:
            self._context.flush()
            self._events.append(Results(self, chunk.number, results, last, num_bytes=0))

        job, returns_unstarted = self._spec.job, self._spec.returns_unstarted
        chunks.run_chunk(job.function, self._extra_arguments, chunk, emit, returns_unstarted=returns_unstarted)

    def current(self) -> None:
        return None

    def read_counts(self) -> dict[str, int]:
        return {}

    def num_bytes_received(self) -> int:
        return 0

    def stop(self) -> None:
        self._events.append(Died(self, "stopped"))

    kill = stop


class SerialBackend:
    """Runs chunks in the calling thread, one in each `wait`."""

    can_kill = False
    is_local = True
    max_chunks = 1

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._workers: list[SerialWorker] = []

    def start(self, place: Place | None, *, node: str | None = None) -> SerialWorker:  # noqa: ARG002
        worker = SerialWorker(self._events)
        self._workers.append(worker)
        return worker

    def find_other_node(self, node: str) -> str | None:  # noqa: ARG002  (one machine has no nodes)
        return None

    def wait(self, timeout: float | None) -> list[Event]:
        if not self._events:
            for worker in self._workers:
                worker.run_one_chunk()
        if not self._events and timeout:
            time.sleep(timeout)
        events = list(self._events)
        self._events.clear()
        return events

    def close(self, *, at_once: bool) -> None:  # noqa: ARG002
        self._workers.clear()
