"""The one event loop behind every parallel call: who gets what next, and what follows from what happened.

A single thread, no locks. It never waits for one worker: it waits for any event, or for the next timer. Every item
leaves exactly once, with its result or its failure.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from gristmill.engine import backend as backends
from gristmill.engine.captured_error import CapturedError
from gristmill.engine.failure_report import FinalFailure
from gristmill.engine.failures import FailureHandler
from gristmill.engine.item_queue import ChunkSizer, ItemQueue
from gristmill.engine.worker_pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import Literal

    from gristmill.engine.backend import Backend, Died, Event, Results, Undecodable
    from gristmill.engine.chunk import Chunk, ChunkResults
    from gristmill.engine.failures import IsolatedRun, OnPoison
    from gristmill.engine.job import Job
    from gristmill.engine.memory import MemoryWatch
    from gristmill.engine.observer import Observer
    from gristmill.engine.worker_pool import PooledWorker

_TICK_SECONDS = 1.0
_GROWTH_SECONDS = 0.1
_CPU_TIME_SIGNAL = "SIGVTALRM"
"""With which the kernel ends a worker that has set itself a limit of CPU time."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a job is to be run. None of this changes any result."""

    workers: int = 1
    can_resize: bool = False
    """`workers` is only the most: how many fit is decided when the first one's size is known."""
    timeout: float | None = None
    retries: int = 0
    chunk_size: int | Literal["auto"] = "auto"
    max_items_per_worker: int | None = None
    cpus: Sequence[int] | None = None
    """One worker to each of these, in turn."""
    max_growth_bytes: int | None = None
    """A worker that an item makes grow by more than this is ended, and the item with it."""


class Scheduler:
    """Runs one job. `outcomes` may be iterated once; leaving it early ends all workers."""

    def __init__(
        self,
        backend: Backend,
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
        self._backend = backend
        self._policy = policy
        self._observer = observer
        self._memory = memory
        self._sizer = ChunkSizer(policy.chunk_size, policy.workers, total)
        self._supply = ItemQueue(items, self._sizer, first_index)
        spec = backends.WorkerSpec(job, returns_unstarted=policy.chunk_size == "auto")
        # A set-up may load gigabytes: then the first worker is measured before there are others.
        first_workers = 1 if policy.can_resize and job.setup is not None else policy.workers
        self._crew = WorkerPool(backend, spec, first_workers, policy.cpus)
        self._is_sized = not policy.can_resize
        self._finished: deque[tuple[int, list[Any]]] = deque()
        self._court = FailureHandler(
            self._supply,
            self._crew,
            observer,
            self._deliver,
            retries=policy.retries,
            timeout=policy.timeout,
            on_poison=on_poison,
        )
        self._shrunk_for: Counter[int] = Counter()

    def outcomes(self) -> Generator[tuple[int, Any], None, None]:
        """`(index, result)` or `(index, Failed)` of every item, as they come."""
        with closing(self.outcome_runs()) as runs:
            for index, values in runs:
                yield from enumerate(values, index)

    def outcome_runs(self) -> Generator[tuple[int, list[Any]], None, None]:
        """`(first index, values)` of consecutive items, as they come. A `FinalFailure` is always alone."""
        at_once = True
        try:
            while True:
                self._dispatch()
                while self._finished:
                    yield self._finished.popleft()
                if not self._has_work():
                    break
                for event in self._backend.wait(self._seconds_to_wait()):
                    self._handle(event)
                self._check_timers()
            at_once = self._crew.is_busy
        finally:
            self._backend.close(at_once=at_once)

    @property
    def num_results_to_hold(self) -> int:
        """How many results may wait for an earlier one: about 256 MiB of them."""
        return self._sizer.num_items_in(256 << 20)

    def pause(self, *, paused: bool) -> None:
        """Take no new items from the input for now: the caller holds enough results."""
        self._supply.paused = paused

    def end_at(self, index: int) -> None:
        """No outcome from this item on is wanted any more; those before it still are."""
        self._supply.end_at(index)
        self._court.end_at(index)

    def _has_work(self) -> bool:
        if len(self._supply) or not self._supply.is_exhausted or self._court.has_work:
            return True
        return self._crew.has_items_before(self._supply.end)

    # Handing out.

    def _dispatch(self) -> None:
        run = self._court.advance_isolated_run()
        if run is not None:
            self._feed_isolated(run)
            return
        self._court.release_due_retries()
        self._start_workers()
        # Nothing is sent ahead of time: it could only wait behind an item that turns out to be slow.
        for member in self._crew:
            if not member.chunks:
                self._feed(member)

    def _start_workers(self) -> None:
        """As many workers as wanted, but none for whom there is nothing to do."""
        self._crew.stop_surplus()
        if len(self._crew) >= self._crew.target:
            return
        self._supply.prefetch(self._crew.target)
        busy = sum(1 for member in self._crew if member.chunks)
        wanted = busy + len(self._supply) if self._supply.is_exhausted else self._crew.target
        try:
            for member in self._crew.start_missing(wanted):
                self._observer.report_event("worker_started", worker=member.worker.name)
        except OSError as error:
            if not len(self._crew):
                raise
            self._shrink_to(len(self._crew), f"no more workers can be started ({error})")

    def _feed(self, member: PooledWorker) -> None:
        limit = self._policy.max_items_per_worker
        while member.can_take_more:
            left = None if limit is None else limit - member.num_items
            chunk = None if left == 0 else self._supply.next_chunk(left)
            if chunk is None or self._send(member, chunk):
                return

    def _feed_isolated(self, run: IsolatedRun) -> None:
        if run.member is not None and run.member.can_take_more and not run.member.num_items:
            self._send(run.member, self._supply.make_chunk([(run.index, run.item)]))

    def _send(self, member: PooledWorker, chunk: Chunk) -> bool:
        try:
            num_bytes = member.worker.send(chunk)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the items' own code raises, sys.exit() included
            self._dissolve(
                chunk, CapturedError(error, "unpicklable", about="the argument cannot be pickled"), was_run=False
            )
            return False
        member.chunks[chunk.number] = chunk
        member.num_items += len(chunk.items)
        self._sizer.observe_size(len(chunk.items), num_bytes)
        return True

    def _dissolve(self, chunk: Chunk, caught: CapturedError, *, was_run: bool) -> None:
        """Something in the chunk cannot be pickled: each item is run by itself to find out which."""
        chunk.dissolved = True
        remaining = chunk.unfinished_items()
        if len(remaining) == 1:
            self._court.handle_unpicklable(*remaining[0], caught, was_run=was_run)
        else:
            self._supply.put_back(remaining, alone=True)

    # What happened.

    def _handle(self, event: Event) -> None:
        match event:
            case backends.Results():
                self._on_results(event)
            case backends.Died():
                self._on_death(event)
            case backends.Ready():
                self._on_ready(self._crew[event.worker])
            case backends.Counts():
                self._on_counts(self._crew[event.worker], event.counts)
            case backends.SetupFailed():
                self._crew[event.worker].setup_error = event.error
            case backends.Undecodable():
                self._on_undecodable(event)

    def _on_counts(self, member: PooledWorker, counts: dict[str, int]) -> None:
        for name, amount in counts.items():
            member.counts[name] = member.counts.get(name, 0) + amount
        self._observer.count(counts)

    def _close_counts(self, member: PooledWorker, *, is_done: bool) -> None:
        """An item ended. What it counted stands only if its result does: else it will be counted again."""
        if not is_done:
            self._observer.count({name: -amount for name, amount in member.counts.items()})
        member.counts.clear()

    def _on_ready(self, member: PooledWorker) -> None:
        self._crew.mark_ready(member)
        self._observer.report_event("worker_ready", worker=member.worker.name)
        if self._memory is not None and member.worker.pid is not None:
            member.bytes_after_setup = self._memory.size_of(member.worker.pid)
            if not self._is_sized:
                self._is_sized = True
                self._crew.target = self._memory.count_fitting_workers(member.bytes_after_setup, self._policy.workers)

    def _on_results(self, event: Results) -> None:
        member = self._crew[event.worker]
        chunk, batch = member.chunks[event.chunk], event.batch
        is_done = not (batch.caught or self._court.is_running_probe(member))
        if not chunk.dissolved:
            start, stop = chunk.done, chunk.done + len(batch.results)
            chunk.done = stop
            self._sizer.observe_time(stop - start, batch.seconds)
            self._sizer.observe_size(stop - start, event.num_bytes)
            if batch.caught or self._court.has_open_cases:
                for position in range(start, stop):
                    self._on_outcome(chunk.indexes[position], chunk.items[position], batch, position - start)
            else:
                self._finished.extend(_group_consecutive(chunk.indexes[start:stop], batch.results))
                self._observer.advance(stop - start)
        if event.last:
            self._close_counts(member, is_done=is_done)
            self._end_chunk(member, chunk)

    def _on_outcome(self, index: int, item: Any, batch: ChunkResults, position: int) -> None:
        caught = batch.caught.get(position)
        if self._supply.is_past_end(index):
            return
        if caught is None:
            self._court.finish(index, batch.results[position])
        else:
            self._court.handle_exception(index, item, caught)

    def _on_undecodable(self, event: Undecodable) -> None:
        member = self._crew[event.worker]
        chunk = member.chunks[event.chunk]
        self._close_counts(member, is_done=False)
        if not chunk.dissolved:
            self._dissolve(chunk, event.error, was_run=True)
        if event.last:
            self._end_chunk(member, chunk)

    def _end_chunk(self, member: PooledWorker, chunk: Chunk) -> None:
        del member.chunks[chunk.number]
        if not chunk.dissolved:
            self._supply.put_back(chunk.unfinished_items(), alone=False)
        limit = self._policy.max_items_per_worker
        if not member.chunks and (member.is_retiring or (limit is not None and member.num_items >= limit)):
            self._crew.stop_worker(member)

    def _on_death(self, event: Died) -> None:
        self._report_death(self._crew[event.worker], event)
        self._close_counts(self._crew[event.worker], is_done=False)
        member = self._crew.remove(event)
        self._court.release_worker(member)
        remaining = [entry for entry in member.unfinished_items() if not self._supply.is_past_end(entry[0])]
        suspected = self._find_suspect(member, event, remaining)
        out_of_memory = event.signal == "SIGKILL" and self._memory is not None and self._memory.has_oom_killer_fired()
        if out_of_memory and not member.is_isolated:
            self._shrunk_for[suspected] += self._shrink_to(
                self._crew.target - 1, "a worker was killed for lack of memory"
            )
        self._supply.put_back([entry for entry in remaining if entry[0] != suspected], alone=True)
        for index, item in remaining:
            if index == suspected and member.killed_at_bytes is not None:
                self._court.handle_growth(index, item, event, member.killed_at_bytes)
            elif index == suspected and (member.timed_out_item == index or event.signal == _CPU_TIME_SIGNAL):
                self._court.handle_timeout(index, item, event.position)
            elif index == suspected:
                self._court.handle_death(member, index, item, event, out_of_memory=out_of_memory)

    @staticmethod
    def _find_suspect(member: PooledWorker, event: Died, remaining: list[tuple[int, Any]]) -> int:
        """The number of the item to be charged with the worker's death, -1 if it had none."""
        if member.timed_out_item is not None:
            return member.timed_out_item  # if it ended at the last moment, the next one is not to blame
        if not remaining or any(index == event.item for index, _ in remaining):
            return event.item
        # It died before it could say so, perhaps of the item's arrival; it takes them in this order.
        return remaining[0][0]

    def _report_death(self, member: PooledWorker, event: Died) -> None:
        name, cause = event.worker.name, event.cause
        if member.setup_error is not None:
            error = f"{member.setup_error.error_type}: {member.setup_error.message}"
            self._observer.report_event("setup_failed", worker=name, error=error)
        elif not member.is_leaving:
            if member.timed_out_item is not None:
                cause = f"was stopped, since item {member.timed_out_item} took too long"
            self._observer.report_event("worker_died", worker=name, cause=cause, item=event.item)

    def _deliver(self, index: int, value: Any) -> None:
        if isinstance(value, FinalFailure) and value.failure.kind == "out_of_memory":
            # It was this item's fault, so the others may have their workers back.
            self._crew.target += self._shrunk_for.pop(index, 0)
        self._finished.append((index, [value]))
        self._observer.end_item(value)

    # Time and memory.

    def _seconds_to_wait(self) -> float:
        seconds = min(_TICK_SECONDS, self._observer.tick_seconds, self._court.seconds_to_next_retry())
        if self._policy.timeout is not None:
            now = monotonic()
            for member in self._crew:
                note = member.worker.current() if member.timed_out_item is None else None
                seconds = min(seconds, self._policy.timeout + (note[0] - now if note else 0.0))
        if self._policy.max_growth_bytes is not None:
            seconds = min(seconds, _GROWTH_SECONDS)
        return max(0.0, seconds)

    def _check_timers(self) -> None:
        self._observer.tick(self._crew)
        if self._policy.timeout is not None:
            self._crew.kill_overdue(self._policy.timeout)
        self._crew.kill_lingering()
        if self._policy.max_growth_bytes is not None and self._memory is not None:
            self._crew.kill_oversized(self._policy.max_growth_bytes, self._memory)
        if self._memory is not None and self._memory.is_due():
            self._check_memory(self._memory)

    def _check_memory(self, memory: MemoryWatch) -> None:
        for member in self._crew:
            if member.is_ready and member.worker.pid is not None and not member.is_retiring:
                size = memory.size_of(member.worker.pid)
                member.is_retiring = memory.is_too_large(size, member.bytes_after_setup, self._crew.target)
                if member.is_retiring:
                    self._observer.report_event("worker_recycled", worker=member.worker.name, bytes=size)
                    if not member.chunks:
                        self._crew.stop_worker(member)
        if memory.is_short():
            self._shrink_to(self._crew.target - 1, "memory is nearly used up")

    def _shrink_to(self, num_workers: int, reason: str) -> int:
        """Go on with fewer workers, but at least one; gives by how many fewer."""
        fewer = max(0, self._crew.target - max(1, num_workers))
        if fewer:
            self._crew.target -= fewer
            self._observer.report_event("workers_reduced", workers=self._crew.target, reason=reason)
        return fewer


def _group_consecutive(indexes: Sequence[int], results: list[Any]) -> list[tuple[int, list[Any]]]:
    """New items are numbered in a row; what came back from elsewhere may have gaps."""
    if isinstance(indexes, range):
        return [(indexes[0], results)] if results else []
    return [(index, [result]) for index, result in zip(indexes, results, strict=True)]
