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
from gristmill.engine.caught import Caught
from gristmill.engine.court import Court
from gristmill.engine.crew import Crew
from gristmill.engine.supply import ChunkSizer, Supply
from gristmill.engine.verdict import Failed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import Literal

    from gristmill.engine.backend import Backend, Died, Event, Results, Undecodable
    from gristmill.engine.chunk import Batch, Chunk
    from gristmill.engine.court import OnPoison, SoloRun
    from gristmill.engine.crew import Member
    from gristmill.engine.job import Job
    from gristmill.engine.memory import MemoryWatch
    from gristmill.engine.observer import Observer

_TICK_SECONDS = 1.0
_GROWTH_SECONDS = 0.1
_CPU_TIME_SIGNAL = "SIGVTALRM"
"""With which the kernel ends a worker that has set itself a limit of CPU time."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a job is to be run. None of this changes any result."""

    workers: int = 1
    resizes: bool = False
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
        self._supply = Supply(items, self._sizer, first_index)
        spec = backends.WorkerSpec(job, gives_back=policy.chunk_size == "auto")
        # A set-up may load gigabytes: then the first worker is measured before there are others.
        first_workers = 1 if policy.resizes and job.setup is not None else policy.workers
        self._crew = Crew(backend, spec, first_workers, policy.cpus)
        self._is_sized = not policy.resizes
        self._finished: deque[tuple[int, list[Any]]] = deque()
        self._court = Court(
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
        with closing(self.runs()) as runs:
            for index, values in runs:
                yield from enumerate(values, index)

    def runs(self) -> Generator[tuple[int, list[Any]], None, None]:
        """`(first index, values)` of consecutive items, as they come. A `Failed` is always alone."""
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
                self._look_at_clock()
            at_once = self._crew.busy
        finally:
            self._backend.close(at_once=at_once)

    @property
    def num_results_to_hold(self) -> int:
        """How many results may wait for an earlier one: about 256 MiB of them."""
        return self._sizer.items_in(256 << 20)

    def pause(self, *, paused: bool) -> None:
        """Take no new items from the input for now: the caller holds enough results."""
        self._supply.paused = paused

    def end_at(self, index: int) -> None:
        """No outcome from this item on is wanted any more; those before it still are."""
        self._supply.end_at(index)
        self._court.end_at(index)

    def _has_work(self) -> bool:
        if len(self._supply) or not self._supply.exhausted or self._court.has_work:
            return True
        return self._crew.is_at_work_before(self._supply.end)

    # Handing out.

    def _dispatch(self) -> None:
        run = self._court.solo_run()
        if run is not None:
            self._feed_solo(run)
            return
        self._court.release_due_retries()
        self._staff()
        # Nothing is sent ahead of time: it could only wait behind an item that turns out to be slow.
        for member in self._crew:
            if not member.chunks:
                self._feed(member)

    def _staff(self) -> None:
        """As many workers as wanted, but none for whom there is nothing to do."""
        self._crew.dismiss_surplus()
        if len(self._crew) >= self._crew.target:
            return
        self._supply.look_ahead(self._crew.target)
        busy = sum(1 for member in self._crew if member.chunks)
        wanted = busy + len(self._supply) if self._supply.exhausted else self._crew.target
        try:
            for member in self._crew.start_up_to(wanted):
                self._observer.event("worker_started", worker=member.worker.name)
        except OSError as error:
            if not len(self._crew):
                raise
            self._shrink_to(len(self._crew), f"no more workers can be started ({error})")

    def _feed(self, member: Member) -> None:
        limit = self._policy.max_items_per_worker
        while member.takes_more:
            left = None if limit is None else limit - member.num_items
            chunk = None if left == 0 else self._supply.next_chunk(left)
            if chunk is None or self._send(member, chunk):
                return

    def _feed_solo(self, run: SoloRun) -> None:
        if run.member is not None and run.member.takes_more and not run.member.num_items:
            self._send(run.member, self._supply.chunk_of([(run.index, run.item)]))

    def _send(self, member: Member, chunk: Chunk) -> bool:
        try:
            num_bytes = member.worker.send(chunk)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the items' own code raises, sys.exit() included
            self._dissolve(chunk, Caught(error, "unpicklable", about="the argument cannot be pickled"), was_run=False)
            return False
        member.chunks[chunk.number] = chunk
        member.num_items += len(chunk.items)
        self._sizer.observe_size(len(chunk.items), num_bytes)
        return True

    def _dissolve(self, chunk: Chunk, caught: Caught, *, was_run: bool) -> None:
        """Something in the chunk cannot be pickled: each item is run by itself to find out which."""
        chunk.dissolved = True
        remaining = chunk.remaining()
        if len(remaining) == 1:
            self._court.take_unsendable(*remaining[0], caught, was_run=was_run)
        else:
            self._supply.give_back(remaining, alone=True)

    # What happened.

    def _handle(self, event: Event) -> None:
        match event:
            case backends.Results():
                self._take_results(event)
            case backends.Died():
                self._take_death(event)
            case backends.Ready():
                self._welcome(self._crew[event.worker])
            case backends.Counts():
                self._count(self._crew[event.worker], event.counts)
            case backends.SetupFailed():
                self._crew[event.worker].setup_error = event.caught
            case backends.Undecodable():
                self._take_undecodable(event)

    def _count(self, member: Member, counts: dict[str, int]) -> None:
        for name, amount in counts.items():
            member.counts[name] = member.counts.get(name, 0) + amount
        self._observer.count(counts)

    def _end_counts(self, member: Member, *, is_done: bool) -> None:
        """An item ended. What it counted stands only if its result does: else it will be counted again."""
        if not is_done:
            self._observer.count({name: -amount for name, amount in member.counts.items()})
        member.counts.clear()

    def _welcome(self, member: Member) -> None:
        self._crew.set_ready(member)
        self._observer.event("worker_ready", worker=member.worker.name)
        if self._memory is not None and member.worker.pid is not None:
            member.bytes_after_setup = self._memory.size_of(member.worker.pid)
            if not self._is_sized:
                self._is_sized = True
                self._crew.target = self._memory.room_for(member.bytes_after_setup, self._policy.workers)

    def _take_results(self, event: Results) -> None:
        member = self._crew[event.worker]
        chunk, batch = member.chunks[event.chunk], event.batch
        is_done = not (batch.caught or self._court.is_trial(member))
        if not chunk.dissolved:
            start, stop = chunk.done, chunk.done + len(batch.results)
            chunk.done = stop
            self._sizer.observe_time(stop - start, batch.seconds)
            self._sizer.observe_size(stop - start, event.num_bytes)
            if batch.caught or self._court.is_sitting:
                for position in range(start, stop):
                    self._take_outcome(chunk.indexes[position], chunk.items[position], batch, position - start)
            else:
                self._finished.extend(_runs(chunk.indexes[start:stop], batch.results))
                self._observer.advance(stop - start)
        if event.last:
            self._end_counts(member, is_done=is_done)
            self._end_chunk(member, chunk)

    def _take_outcome(self, index: int, item: Any, batch: Batch, position: int) -> None:
        caught = batch.caught.get(position)
        if self._supply.is_past_end(index):
            return
        if caught is None:
            self._court.finish(index, batch.results[position])
        else:
            self._court.take_exception(index, item, caught)

    def _take_undecodable(self, event: Undecodable) -> None:
        member = self._crew[event.worker]
        chunk = member.chunks[event.chunk]
        self._end_counts(member, is_done=False)
        if not chunk.dissolved:
            self._dissolve(chunk, event.caught, was_run=True)
        if event.last:
            self._end_chunk(member, chunk)

    def _end_chunk(self, member: Member, chunk: Chunk) -> None:
        del member.chunks[chunk.number]
        if not chunk.dissolved:
            self._supply.give_back(chunk.remaining(), alone=False)
        limit = self._policy.max_items_per_worker
        if not member.chunks and (member.worn_out or (limit is not None and member.num_items >= limit)):
            self._crew.dismiss(member)

    def _take_death(self, event: Died) -> None:
        self._report_death(self._crew[event.worker], event)
        self._end_counts(self._crew[event.worker], is_done=False)
        member = self._crew.remove(event)
        self._court.forget_worker(member)
        remaining = [entry for entry in member.unfinished() if not self._supply.is_past_end(entry[0])]
        suspected = self._suspect(member, event, remaining)
        out_of_memory = event.signal == "SIGKILL" and self._memory is not None and self._memory.killer_struck()
        if out_of_memory and not member.alone:
            self._shrunk_for[suspected] += self._shrink_to(
                self._crew.target - 1, "a worker was killed for lack of memory"
            )
        self._supply.give_back([entry for entry in remaining if entry[0] != suspected], alone=True)
        for index, item in remaining:
            if index == suspected and member.grown_to is not None:
                self._court.take_growth(index, item, event, member.grown_to)
            elif index == suspected and (member.timed_out_item == index or event.signal == _CPU_TIME_SIGNAL):
                self._court.take_timeout(index, item, event.position)
            elif index == suspected:
                self._court.take_death(member, index, item, event, out_of_memory=out_of_memory)

    @staticmethod
    def _suspect(member: Member, event: Died, remaining: list[tuple[int, Any]]) -> int:
        """The number of the item to be charged with the worker's death, -1 if it had none."""
        if member.timed_out_item is not None:
            return member.timed_out_item  # if it ended at the last moment, the next one is not to blame
        if not remaining or any(index == event.item for index, _ in remaining):
            return event.item
        # It died before it could say so, perhaps of the item's arrival; it takes them in this order.
        return remaining[0][0]

    def _report_death(self, member: Member, event: Died) -> None:
        name, cause = event.worker.name, event.cause
        if member.setup_error is not None:
            error = f"{member.setup_error.error_type}: {member.setup_error.message}"
            self._observer.event("setup_failed", worker=name, error=error)
        elif not member.leaving:
            if member.timed_out_item is not None:
                cause = f"was stopped, since item {member.timed_out_item} took too long"
            self._observer.event("worker_died", worker=name, cause=cause, item=event.item)

    def _deliver(self, index: int, value: Any) -> None:
        if isinstance(value, Failed) and value.failure.kind == "out_of_memory":
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

    def _look_at_clock(self) -> None:
        self._observer.tick(self._crew)
        if self._policy.timeout is not None:
            self._crew.kill_those_over(self._policy.timeout)
        self._crew.kill_those_who_stay()
        if self._policy.max_growth_bytes is not None and self._memory is not None:
            self._crew.kill_those_grown(self._policy.max_growth_bytes, self._memory)
        if self._memory is not None and self._memory.is_due():
            self._look_at_memory(self._memory)

    def _look_at_memory(self, memory: MemoryWatch) -> None:
        for member in self._crew:
            if member.ready and member.worker.pid is not None and not member.worn_out:
                size = memory.size_of(member.worker.pid)
                member.worn_out = memory.is_too_large(size, member.bytes_after_setup, self._crew.target)
                if member.worn_out:
                    self._observer.event("worker_recycled", worker=member.worker.name, bytes=size)
                    if not member.chunks:
                        self._crew.dismiss(member)
        if memory.is_short():
            self._shrink_to(self._crew.target - 1, "memory is nearly used up")

    def _shrink_to(self, num_workers: int, reason: str) -> int:
        """Go on with fewer workers, but at least one; gives by how many fewer."""
        fewer = max(0, self._crew.target - max(1, num_workers))
        if fewer:
            self._crew.target -= fewer
            self._observer.event("workers_reduced", workers=self._crew.target, reason=reason)
        return fewer


def _runs(indexes: Sequence[int], results: list[Any]) -> list[tuple[int, list[Any]]]:
    """New items are numbered in a row; what came back from elsewhere may have gaps."""
    if isinstance(indexes, range):
        return [(indexes[0], results)] if results else []
    return [(index, [result]) for index, result in zip(indexes, results, strict=True)]
