"""The backends of the calling process.

`serial` does everything in the calling thread: for debugging, for small jobs, and as the reference for all other
backends. `threads` is for functions that wait, or that release the interpreter lock.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.engine.backend import Counts, Died, Ready, Results, SetupFailed
from gristmill.engine.worker.chunk import enter_worker_thread, leave_worker_thread, run_chunk
from gristmill.engine.worker.job import Context
from gristmill.engine.worker.pickling import CapturedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.engine.backend import Event, WorkerSpec
    from gristmill.engine.worker.chunk import Chunk, ChunkResults


class SerialWorker:
    """The calling thread as a worker. Its chunks run inside `SerialBackend.wait`."""

    name = "caller"
    pid = None
    node = None
    is_placed = True
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
        run_chunk(job.function, self._extra_arguments, chunk, emit, returns_unstarted=returns_unstarted)

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

    def start(self, cpus: Sequence[int] | None, *, node: str | None = None) -> SerialWorker:  # noqa: ARG002
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


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A change of the job; None: to no job."""

    spec: WorkerSpec | None


class ThreadWorker:
    """One thread that runs chunks from its own queue."""

    pid = None
    node = None
    is_placed = True
    host = ""
    remote_use = None

    def __init__(self, name: str, events: queue.SimpleQueue[Event]) -> None:
        self.name = name
        self._events = events
        self._orders: queue.SimpleQueue[Chunk | _Assignment | None] = queue.SimpleQueue()
        """Chunks and jobs, in order; None to stop."""
        self._cancelled = threading.Event()
        # A daemon: an interrupted job must not wait for a function that never returns.
        self.thread = threading.Thread(target=self._serve, name=f"gristmill {name}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        enter_worker_thread()
        try:
            context = Context(lambda counts: self._events.put(Counts(self, counts)))
            spec: WorkerSpec | None = None
            extra_arguments: tuple[object, ...] = ()
            while (order := self._orders.get()) is not None and not self._cancelled.is_set():
                if not isinstance(order, _Assignment):
                    if spec is not None:
                        self._run(order, spec, extra_arguments, context)
                    continue
                spec, extra_arguments, context.state = order.spec, (), None
                if spec is not None:
                    try:
                        extra_arguments = spec.job.run_setup(context)
                    except BaseException as error:
                        self._events.put(SetupFailed(self, CapturedError(error)))
                        return
                    self._events.put(Ready(self))
        finally:
            leave_worker_thread()
            self._events.put(Died(self, "stopped"))

    def _run(self, chunk: Chunk, spec: WorkerSpec, extra_arguments: tuple[object, ...], context: Context) -> None:
        def emit(results: ChunkResults, *, last: bool) -> None:
            context.flush()
            self._events.put(Results(self, chunk.number, results, last, num_bytes=0))

        run_chunk(
            spec.job.function,
            extra_arguments,
            chunk,
            emit,
            returns_unstarted=spec.returns_unstarted,
            is_cancelled=self._cancelled.is_set,
        )

    def assign(self, spec: WorkerSpec | None) -> None:
        self._orders.put(_Assignment(spec))

    def send(self, chunk: Chunk) -> int:
        self._orders.put(chunk)
        return 0

    def current(self) -> None:
        return None

    def read_counts(self) -> dict[str, int]:
        return {}

    def num_bytes_received(self) -> int:
        return 0

    def stop(self) -> None:
        self._orders.put(None)

    def kill(self) -> None:
        """Let the thread start no further item. A running item cannot be ended."""
        self._cancelled.set()
        self._orders.put(None)


class ThreadBackend:
    """Runs chunks in threads, which cannot be killed."""

    can_kill = False
    is_local = True
    max_chunks = 1

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._workers: list[ThreadWorker] = []

    def start(self, cpus: Sequence[int] | None, *, node: str | None = None) -> ThreadWorker:  # noqa: ARG002
        worker = ThreadWorker(f"thread {len(self._workers)}", self._events)
        self._workers.append(worker)
        return worker

    def find_other_node(self, node: str) -> str | None:  # noqa: ARG002  (one machine has no nodes)
        return None

    def wait(self, timeout: float | None) -> list[Event]:
        events = []
        try:
            events.append(self._events.get(timeout=timeout))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def close(self, *, at_once: bool) -> None:
        for worker in self._workers:
            if at_once:
                worker.kill()
            else:
                worker.stop()
        # At once means without waiting: a running item may never return.
        if not at_once:
            for worker in self._workers:
                worker.thread.join()
