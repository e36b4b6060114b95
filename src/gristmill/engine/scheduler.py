"""The event loop of every parallel call: which worker gets what next, and what follows from each event.

One thread, no locks. The loop never waits for a particular worker: it waits for any event or for the next timer. Every
item leaves exactly once, with its result or with its failure.

    dispatch:  item queue ─▶ chunk ─▶ idle worker          (or the isolated run, for which its machine waits)
    wait:      backend ─▶ events ─▶ results out, failures to the failure handler, dead workers out of the job
    timers:    timeouts, workers that do not exit, memory, progress
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import ClusterError
from gristmill.engine import backend as backends
from gristmill.engine.failure_report import FinalFailure
from gristmill.engine.failures import FailureHandler, find_suspect, may_have_run
from gristmill.engine.item_queue import ChunkSizer, ItemQueue
from gristmill.engine.job_workers import JobWorkers
from gristmill.engine.pool_sizer import PoolSizer
from gristmill.engine.worker.pickling import CapturedError, KeptInterrupt

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import Literal

    from gristmill.engine.backend import Died, Event, Finishing, Results, SetupFailed, Undecodable, WorkerHandle
    from gristmill.engine.failures import IsolatedRun, OnPoison
    from gristmill.engine.job_workers import PooledWorker
    from gristmill.engine.machine import MemoryWatch
    from gristmill.engine.observer import Observer
    from gristmill.engine.worker.chunk import Chunk, ChunkResults
    from gristmill.engine.worker.job import Job
    from gristmill.engine.worker_pool import WorkerPool

_TICK_SECONDS = 1.0
_GROWTH_SECONDS = 0.1
"""How often the size of workers is checked if it is limited: memory can grow by gigabytes in a second."""
_RESULT_BYTES_TO_HOLD = 256 << 20
_CPU_TIME_SIGNAL = "SIGVTALRM"
"""The signal by which the kernel ends a worker that has set itself a limit of CPU time."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a job. None of them changes a result."""

    workers: int = 1
    can_resize: bool = False
    """Whether `workers` is only a maximum: the number that fits is chosen when the first worker's size is known."""
    timeout: float | None = None
    retries: int = 0
    chunk_size: int | Literal["auto"] = "auto"
    max_items_per_worker: int | None = None
    max_growth_bytes: int | None = None
    """The growth at which a worker is killed; the item that it was running fails."""


class Scheduler:
    """Runs one job. Its outcomes may be iterated once; leaving the iteration early ends the workers that are busy."""

    def __init__(
        self,
        pool: WorkerPool,
        job: Job,
        items: Iterable[Any],
        policy: Policy,
        observer: Observer,
        *,
        memory: MemoryWatch | None = None,
        total: int | None = None,
        first_index: int = 0,
        on_poison: OnPoison | None = None,
    ) -> None:
        self._policy = policy
        self._observer = observer
        self._chunk_sizer = ChunkSizer(policy.chunk_size, policy.workers, total)
        self._queue = ItemQueue(items, self._chunk_sizer, first_index)
        spec = backends.WorkerSpec(
            job, returns_unstarted=policy.chunk_size == "auto", on_counts=self._on_counts_in_this_thread
        )
        # A set-up may load gigabytes: the first worker is then measured before others are started.
        num_first_workers = 1 if policy.can_resize and job.setup is not None else policy.workers
        self._workers = JobWorkers(pool, spec, num_first_workers)
        self._pool_sizer = PoolSizer(
            self._workers,
            memory,
            observer,
            max_workers=policy.workers if policy.can_resize else None,
            max_growth_bytes=policy.max_growth_bytes,
        )
        self._finished: deque[tuple[int, list[Any]]] = deque()
        self._watch_error: Exception | None = None
        self._failures = FailureHandler(
            self._queue,
            self._workers,
            observer,
            self._deliver,
            retries=policy.retries,
            timeout=policy.timeout,
            on_poison=on_poison,
        )

    def outcomes(self) -> Generator[tuple[int, Any], None, None]:
        """Yield `(index, result)` or `(index, FinalFailure)` of every item, as they finish."""
        with closing(self.outcome_runs()) as runs:
            for index, values in runs:
                yield from enumerate(values, index)

    def outcome_runs(self) -> Generator[tuple[int, list[Any]], None, None]:
        """Yield `(first index, values)` of consecutive items, as they finish. A `FinalFailure` is always alone."""
        at_once = True
        self._workers.open()
        try:
            while True:
                with KeptInterrupt():
                    self._dispatch()
                was_waiting = self._queue.is_waiting and len(self._finished) > 0  # asked before they are handed out
                while self._finished:
                    yield self._finished.popleft()
                if was_waiting:  # for results that the caller has now seen
                    continue
                if not self._has_work():
                    break
                with KeptInterrupt():
                    self._wait()
            # After `end_at` workers may still run items whose results are not wanted: do not wait for them.
            at_once = self._workers.is_busy
        finally:
            with KeptInterrupt():
                self._observer.measure_workers(self._workers)
                self._workers.close(at_once=at_once)

    @property
    def num_results_to_hold(self) -> int:
        """The number of results that may wait for an earlier one: about 256 MiB of them."""
        return self._chunk_sizer.num_items_in(_RESULT_BYTES_TO_HOLD)

    def pause(self, *, paused: bool) -> None:
        """Stop taking new items from the input, or resume: the caller may hold enough results."""
        self._queue.is_paused = paused

    def end_at(self, index: int) -> None:
        """Produce no outcome from this item on. Earlier items still get theirs."""
        self._queue.end_at(index)
        self._failures.end_at(index)

    def _has_work(self) -> bool:
        if len(self._queue) or not self._queue.is_exhausted or self._failures.has_work:
            return True
        return self._workers.has_items_before(self._queue.end)

    def _dispatch(self) -> None:
        run = self._failures.advance_isolated_run()
        if run is not None:
            self._feed_isolated(run)
            if run.node is None:
                return
        else:  # a new worker might be placed on the node that is kept free
            self._failures.release_due_retries()
            self._start_workers()
        while (worker := self._workers.take_idle()) is not None:
            if not self._feed(worker):
                self._workers.put_idle(worker)
                return
        self._send_ahead()

    def _send_ahead(self) -> None:
        """Send busy workers the chunk that they run next, so that they do not wait for a message between two chunks.

        It waits there while other workers may become idle. So it is done only where chunks are short and every worker
        still gets another one after it, and not while an item is watched because it failed: a death must point to what
        was running.
        """
        if self._policy.max_items_per_worker is not None or self._failures.has_open_cases or self._failures.has_work:
            return
        while self._queue.can_send_ahead(len(self._workers)) and (worker := self._workers.find_fillable()) is not None:
            if not self._feed(worker):
                return

    def _start_workers(self) -> None:
        """Bring the pool to its target, but start no worker that would have nothing to do."""
        self._workers.stop_surplus()
        if len(self._workers) >= self._workers.target:
            return
        self._queue.prefetch(self._workers.target)
        has_all = self._queue.is_exhausted or self._queue.is_waiting
        num_useful = self._workers.num_busy + len(self._queue) if has_all else self._workers.target
        try:
            for worker in self._workers.start_missing(num_useful):
                event = "worker_started" if worker.is_started else "worker_reused"
                self._observer.report_event(event, worker=worker.handle.name)
        except OSError as error:  # the limit of processes or of open files
            if not len(self._workers):
                raise
            self._pool_sizer.shrink_to(len(self._workers), f"no more workers can be started ({error})")

    def _feed(self, worker: PooledWorker) -> bool:
        """Send a worker the next chunk; returns whether there was one."""
        limit = self._policy.max_items_per_worker
        while True:
            chunk = self._queue.take_next_chunk(None if limit is None else limit - worker.num_items)
            if chunk is None or self._send(worker, chunk):
                return chunk is not None

    def _feed_isolated(self, run: IsolatedRun) -> None:
        worker = run.worker
        if worker is None or not worker.can_take_more or worker.num_items:
            return
        if run.node is not None and worker.handle.node != run.node:  # the node was lost: others may run on this one
            self._workers.stop_worker(worker)
        else:
            self._send(worker, self._queue.make_chunk([(run.index, run.item)]))

    def _send(self, worker: PooledWorker, chunk: Chunk) -> bool:
        try:
            num_bytes = worker.handle.send(chunk)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # anything that the items' own code raises, sys.exit() included
            error = CapturedError(raised, "unpicklable", about="the argument cannot be pickled")
            self._dissolve(chunk, error, was_run=False)
            return False
        self._workers.begin_chunk(worker, chunk)
        self._chunk_sizer.observe_size(len(chunk.items), num_bytes)
        return True

    def _dissolve(self, chunk: Chunk, error: CapturedError, *, was_run: bool) -> None:
        """Break up a chunk in which something cannot be pickled: each item runs by itself, to find the one."""
        chunk.is_dissolved = True
        items = chunk.unfinished_items()
        if len(items) == 1:
            self._failures.handle_unpicklable(*items[0], error, was_run=was_run)
        else:
            self._queue.put_back(items, alone=True)

    def _handle(self, event: Event) -> None:
        match event:
            case backends.Results():
                self._on_results(event)
            case backends.Died():
                self._on_death(event)
            case backends.Finishing():
                self._on_finishing(event)
            case backends.Ready():
                self._on_ready(self._workers[event.worker])
            case backends.Counts():
                self._on_counts(self._workers[event.worker], event.counts)
            case backends.SetupFailed():
                self._on_setup_failure(event)
            case backends.Undecodable():
                self._on_undecodable(event)

    def _wait(self) -> None:
        """Wait for events or the next timer, and handle them."""
        for event in self._workers.wait(self._seconds_to_wait()):
            self._handle(event)
        self._check_timers()

    def _on_setup_failure(self, event: SetupFailed) -> None:
        error = event.error.to_exception()
        if isinstance(error, ClusterError):  # what is wrong with one node is wrong with the cluster
            raise error
        self._workers[event.worker].setup_error = event.error

    def _on_counts(self, worker: PooledWorker, counts: dict[str, int]) -> None:
        for name, amount in counts.items():
            worker.counts[name] = worker.counts.get(name, 0) + amount
        self._observer.count(counts)

    def _on_counts_in_this_thread(self, handle: WorkerHandle, counts: dict[str, int]) -> None:
        """Take counters of a task that runs inside `wait`: until its end only this call can show progress."""
        self._on_counts(self._workers[handle], counts)
        if self._watch_error is None:
            try:
                self._observer.tick(self._workers)
            except Exception as error:  # raised from here it would be an error of the task
                self._watch_error = error

    def _close_counts(self, counter: PooledWorker | Chunk, *, is_done: bool) -> None:
        """Reset the counters of an item that ended. If it has no result, subtract them: the next run counts again."""
        if not is_done:
            self._observer.count({name: -amount for name, amount in counter.counts.items()})
        counter.counts.clear()

    def _on_ready(self, worker: PooledWorker) -> None:
        self._workers.mark_ready(worker)
        self._observer.report_event("worker_ready", **_name_worker(worker.handle))
        self._pool_sizer.measure(worker)

    def _on_results(self, event: Results) -> None:
        worker = self._workers[event.worker]
        chunk, results = worker.chunks[event.chunk], event.results
        is_done = not (results.errors or self._failures.is_running_probe(worker))
        # The items of a dissolved chunk are in the queue again: a result that still arrives would leave a second time.
        if not chunk.is_dissolved:
            start, stop = chunk.num_done, chunk.num_done + len(results.values)
            chunk.num_done = stop
            self._chunk_sizer.observe_time(stop - start, results.seconds)
            self._chunk_sizer.observe_size(stop - start, event.num_bytes)
            if results.errors or self._failures.has_open_cases:
                for position in range(start, stop):
                    self._on_outcome(chunk.indexes[position], chunk.items[position], results, position - start)
            else:
                # The usual case, in bulk: no Python work for each item.
                self._finished.extend(_group_consecutive(chunk.indexes[start:stop], results.values))
                self._observer.advance(stop - start)
        if event.last:
            self._close_counts(chunk if chunk.is_finishing else worker, is_done=is_done)
            self._end_chunk(worker, chunk)

    def _on_finishing(self, event: Finishing) -> None:
        worker = self._workers[event.worker]
        self._retire_at_limit(worker)
        self._workers.begin_finishing(worker, worker.chunks[event.chunk])

    def _on_outcome(self, index: int, item: Any, results: ChunkResults, position: int) -> None:
        error = results.errors.get(position)
        if self._queue.is_past_end(index):
            return
        if error is None:
            self._failures.finish(index, results.values[position])
        else:
            self._failures.handle_exception(index, item, error)

    def _on_undecodable(self, event: Undecodable) -> None:
        worker = self._workers[event.worker]
        chunk = worker.chunks[event.chunk]
        self._close_counts(worker, is_done=False)
        if not chunk.is_dissolved:
            self._dissolve(chunk, event.error, was_run=True)
        if event.last:
            self._end_chunk(worker, chunk)

    def _end_chunk(self, worker: PooledWorker, chunk: Chunk) -> None:
        if not chunk.is_dissolved:
            self._queue.put_back(chunk.unfinished_items(), alone=False)
        self._retire_at_limit(worker)
        self._workers.end_chunk(worker, chunk)

    def _retire_at_limit(self, worker: PooledWorker) -> None:
        limit = self._policy.max_items_per_worker
        worker.is_retiring |= limit is not None and worker.num_items >= limit

    def _on_death(self, event: Died) -> None:
        """Attribute the death to one item, and return all other items of the worker to the queue."""
        self._report_death(self._workers[event.worker], event)
        worker = self._workers.remove(event)
        self._close_counts(worker, is_done=False)
        for chunk in worker.chunks.values():
            self._close_counts(chunk, is_done=False)
        self._failures.release_worker(worker)
        items = [entry for entry in worker.unfinished_items() if not self._queue.is_past_end(entry[0])]
        if event.is_blameless and worker.timed_out_item is None:
            if not worker.is_isolated:  # an isolated run keeps its item, and starts another worker
                self._queue.put_back(items, alone=False)
            return
        suspect = find_suspect(worker, event, items)
        out_of_memory = self._pool_sizer.was_killed_by_kernel(event)
        if out_of_memory and not worker.is_isolated:
            self._pool_sizer.shrink_for(suspect)
        for chunk in reversed(worker.unfinished_chunks()):
            others = [entry for entry in chunk.unfinished_items() if entry[0] != suspect]
            # Alone: if another item of the chunk kills its worker too, the next death points to it directly.
            self._queue.put_back(others, alone=may_have_run(chunk, suspect))
        for index, item in items:
            if index == suspect and worker.killed_at_bytes is not None:
                self._failures.handle_growth(index, item, event, worker.killed_at_bytes)
            elif index == suspect and (worker.timed_out_item == index or event.signal == _CPU_TIME_SIGNAL):
                self._failures.handle_timeout(index, item, event.position)
            elif index == suspect:
                self._failures.handle_death(worker, index, item, event, out_of_memory=out_of_memory)

    def _report_death(self, worker: PooledWorker, event: Died) -> None:
        name, cause = event.worker.name, event.cause
        if worker.setup_error is not None:
            error = f"{worker.setup_error.error_type}: {worker.setup_error.message}"
            self._observer.report_event("setup_failed", worker=name, error=error)
        elif not worker.is_leaving:
            if worker.timed_out_item is not None:
                cause = f"was stopped because item {worker.timed_out_item} took too long"
            fields = _name_worker(event.worker)
            self._observer.report_event("worker_died", **fields, cause=cause, item=event.item)

    def _deliver(self, index: int, value: Any) -> None:
        if isinstance(value, FinalFailure) and value.failure.kind == "out_of_memory":
            self._pool_sizer.restore_after(index)
        self._finished.append((index, [value]))
        self._observer.end_item(value)

    def _seconds_to_wait(self) -> float:
        """Seconds until the next timer fires; an event ends the wait earlier."""
        seconds = min(_TICK_SECONDS, self._observer.tick_seconds, self._failures.seconds_to_next_retry())
        if self._policy.timeout is not None:
            seconds = min(seconds, self._workers.seconds_to_check())
        if self._policy.max_growth_bytes is not None:
            seconds = min(seconds, _GROWTH_SECONDS)
        return max(0.0, seconds)

    def _check_timers(self) -> None:
        if self._watch_error is not None:
            raise self._watch_error
        self._observer.tick(self._workers)
        if self._policy.timeout is not None:
            self._workers.kill_overdue(self._policy.timeout)
        self._workers.kill_lingering()
        self._pool_sizer.check()


def _name_worker(handle: WorkerHandle) -> dict[str, str]:
    """Return the fields by which events name a worker."""
    return {"worker": handle.name} if handle.node is None else {"worker": handle.name, "node": handle.node}


def _group_consecutive(indexes: Sequence[int], values: list[Any]) -> list[tuple[int, list[Any]]]:
    """Group values into runs of consecutive items. A range has one run; items that were put back may have gaps."""
    if isinstance(indexes, range):
        return [(indexes[0], values)] if values else []
    return [(index, [value]) for index, value in zip(indexes, values, strict=True)]
