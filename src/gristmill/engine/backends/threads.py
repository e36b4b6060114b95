"""Worker threads of the calling process: for functions that wait, or that release the interpreter lock."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.engine.backend import Counts, Died, Ready, Results, SetupFailed
from gristmill.engine.worker import chunk as chunks
from gristmill.engine.worker import nesting
from gristmill.engine.worker.captured_error import CapturedError
from gristmill.engine.worker.job import Context

if TYPE_CHECKING:
    from gristmill.engine.backend import Event, WorkerSpec
    from gristmill.engine.worker.binding import Place
    from gristmill.engine.worker.chunk import Chunk, ChunkResults


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A change of the job; None: to no job."""

    spec: WorkerSpec | None


class ThreadWorker:
    """One thread that runs chunks from its own queue."""

    pid = None
    node = None
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
        nesting.enter_worker_thread()
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
            nesting.leave_worker_thread()
            self._events.put(Died(self, "stopped"))

    def _run(self, chunk: Chunk, spec: WorkerSpec, extra_arguments: tuple[object, ...], context: Context) -> None:
        def emit(results: ChunkResults, *, last: bool) -> None:
            context.flush()
            self._events.put(Results(self, chunk.number, results, last, num_bytes=0))

        chunks.run_chunk(
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

    def start(self, place: Place | None, *, node: str | None = None) -> ThreadWorker:  # noqa: ARG002
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
