"""The failure policy: an item without a result is retried, run in isolation, or reported as failed.

An exception or a timeout uses up a retry. The death of a worker does not, because it says little about the item: the
machine may have run out of memory because of another process, or a user killed the worker. An item becomes a suspect
only after three deaths. It then runs in isolation, with no other worker alive on its machine, and only three more
deaths there prove that the item is the cause. So no item is blamed for what others did, and no item can stop the whole
job. On a cluster one node is emptied for it, and the workers on all others continue.

A caller that can take an item apart passes `on_poison`. Its probe replaces the isolated runs: every trial ends with its
first death or timeout, and the probe decides how many trials it needs.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError
from gristmill.engine import failure_report

if TYPE_CHECKING:
    from gristmill.engine.backend import Died
    from gristmill.engine.failure_report import Failure, FinalFailure
    from gristmill.engine.item_queue import ItemQueue
    from gristmill.engine.job_workers import JobWorkers, PooledWorker
    from gristmill.engine.observer import Observer
    from gristmill.engine.worker.chunk import Chunk
    from gristmill.engine.worker.pickling import CapturedError

    Probe = Generator[Any, Any, Any]
    """Yields items to run in isolation and receives the result or `Failure` of each. Returns an item to run instead of
    the failed one, or None if that has failed for good."""
    OnPoison = Callable[[Any, Failure, int], Probe]

MAX_DEATHS = 3
"""Deaths that make an item a suspect, and deaths in isolation that prove it is the cause."""
_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 10.0


@dataclass(slots=True)
class _ItemHistory:
    """The runs of one item that ended without a result."""

    attempts: int = 0
    """All runs without a result."""
    tries: int = 0
    """Runs that count against `retries`: exceptions and timeouts."""
    deaths: int = 0
    """Deaths of workers that ran the item alongside other workers."""


@dataclass(slots=True)
class IsolatedRun:
    """A run of a suspect item, or of a part of it, with no other worker alive on its node."""

    index: int
    item: Any
    deaths: int = 0
    worker: PooledWorker | None = None
    """The worker that was started for the run; None until the pool is empty, and again after its death."""
    probe: Probe | None = None
    suspected_failure: FinalFailure | None = None
    """The failure that the probe investigates."""
    last_node: str | None = None
    """The node of the last death: the next run takes place on another one."""
    node: str | None = None
    """The node that is emptied for the run; None: all workers make room for it."""


class FailureHandler:
    """Decides what happens to items that failed, and starts isolated runs. One instance serves one job."""

    def __init__(
        self,
        queue: ItemQueue,
        workers: JobWorkers,
        observer: Observer,
        deliver: Callable[[int, Any], None],
        *,
        retries: int,
        timeout: float | None,
        on_poison: OnPoison | None,
    ) -> None:
        self._queue = queue
        self._workers = workers
        self._observer = observer
        self._deliver = deliver
        self._max_retries = retries
        self._timeout = timeout
        self._on_poison = on_poison
        self._histories: dict[int, _ItemHistory] = {}
        self._retries: list[tuple[float, int, Any]] = []
        """A heap of `(due time, index, item)`."""
        self._suspects: deque[IsolatedRun] = deque()
        self._run: IsolatedRun | None = None

    @property
    def has_open_cases(self) -> bool:
        """Whether an item failed before, so that results must be examined one by one."""
        return bool(self._histories or self._run)

    @property
    def has_work(self) -> bool:
        """Whether an item waits for a retry or an isolated run."""
        return bool(self._retries or self._suspects or self._run)

    def is_running_probe(self, worker: PooledWorker) -> bool:
        """Whether the worker runs a trial of a probe, whose counters must not be kept."""
        return self._run is not None and self._run.worker is worker and self._run.probe is not None

    def seconds_to_next_retry(self) -> float:
        """Seconds until a retry is due; infinite while an isolated run is pending, since all retries wait for it."""
        is_blocked = not self._retries or self._run is not None or self._suspects
        return float("inf") if is_blocked else self._retries[0][0] - monotonic()

    def release_due_retries(self) -> None:
        """Move the items whose backoff has passed to the front of the queue."""
        while self._retries and self._retries[0][0] <= monotonic():
            _, index, item = heapq.heappop(self._retries)
            self._queue.put_back([(index, item)], alone=True)

    def end_at(self, index: int) -> None:
        """Drop all cases from this item on."""
        self._retries = [entry for entry in self._retries if entry[1] < index]
        heapq.heapify(self._retries)
        self._suspects = deque(run for run in self._suspects if run.index < index)
        if self._run is not None and self._run.index >= index:
            self._end_isolated_run(self._run.index)

    def advance_isolated_run(self) -> IsolatedRun | None:
        """Return the isolated run that everything else must wait for, if there is one; else all but its node works on.

        Called on every turn of the scheduler. Each call brings the run one step closer to its start: the pool, or one
        node of several, is drained first, then emptied, and only then is the single worker started. Stopping the idle
        workers and starting the new one in the same turn would let them overlap, and the run would prove nothing about
        the item.
        """
        if self._run is None and self._suspects:
            self._run = self._suspects.popleft()
        run = self._run
        if run is not None and run.worker is None:
            if run.node is None and self._workers.is_busy:
                run.node = self._workers.choose_node_to_empty(run.last_node)
            if run.node is None and not self._workers.is_busy:
                self._workers.stop_all()
                if self._workers.is_alone:
                    self._start_isolated(run, self._workers.find_other_node(run.last_node))
            elif run.node is not None and self._workers.empty_node(run.node):
                self._start_isolated(run, run.node)
        elif (
            run is not None and run.worker is not None and not run.worker.handle.is_placed and not self._workers.is_busy
        ):
            self._workers.make_room_for(run.worker)  # the node that was emptied for it is lost
        return run

    def _start_isolated(self, run: IsolatedRun, node: str | None) -> None:
        run.worker = self._workers.start(isolated=True, node=node)
        self._observer.report_event("isolated_run", item=run.index, worker=run.worker.handle.name)

    def finish(self, index: int, value: Any) -> None:
        """Close the case of an item that has a result or a final failure."""
        self._histories.pop(index, None)
        run = self._end_isolated_run(index)
        if run is None or run.probe is None:
            self._deliver(index, value)
        else:
            outcome = value.failure if isinstance(value, failure_report.FinalFailure) else value
            self._continue_probe(run, outcome)

    def handle_unpicklable(self, index: int, item: Any, error: CapturedError, *, was_run: bool) -> None:
        """Fail an item that cannot be sent to a worker, or whose result cannot be returned. A retry would not help."""
        history = self._count_attempt(index) if was_run else self._histories.get(index, _ItemHistory())
        self.finish(index, failure_report.report_exception(index, item, error, history.attempts))

    def handle_exception(self, index: int, item: Any, error: CapturedError) -> None:
        """Retry an item that raised, or fail it when the retries are used up or the error is final."""
        history = self._count_attempt(index)
        report = failure_report.report_exception(index, item, error, history.attempts)
        is_final = error.kind == "unpicklable" or error.is_final
        self._retry_or_finish(index, item, history, report, is_final=is_final)

    def handle_timeout(self, index: int, item: Any, position: int) -> None:
        """Probe, retry or fail an item that took too long."""
        history = self._count_attempt(index)
        report = failure_report.report_timeout(index, item, self._timeout, history.attempts, position)
        if self._on_poison is not None and not self._is_probing(index):
            self._end_isolated_run(index)
            self._start_probe(index, item, report, position)
        else:
            self._retry_or_finish(index, item, history, report, is_final=False)

    def handle_growth(self, index: int, item: Any, event: Died, num_bytes: int) -> None:
        """Fail an item whose worker grew too large. The caller set that limit, so one death is proof enough."""
        history = self._count_attempt(index)
        self.finish(index, failure_report.report_growth(index, item, event, num_bytes, history.attempts))

    def handle_death(self, worker: PooledWorker, index: int, item: Any, event: Died, *, out_of_memory: bool) -> None:
        """Run an item again whose worker died; isolate or probe it after the third death; fail it after three more."""
        history = self._count_attempt(index)
        run = self._run
        if run is not None and worker.is_isolated:
            # No other worker was alive there, so this death counts against the item.
            run.worker = None
            run.node = None
            run.last_node = worker.handle.node
            run.deaths += 1
            if run.deaths == MAX_DEATHS or run.probe is not None:
                report = failure_report.report_deaths(index, item, event, history.attempts, out_of_memory=out_of_memory)
                self.finish(index, report)
            return
        history.deaths += 1
        if history.deaths < MAX_DEATHS:
            self._queue.put_back([(index, item)], alone=True)
        elif self._on_poison is None:
            self._suspects.append(IsolatedRun(index, item, last_node=worker.handle.node))
        else:
            report = failure_report.report_deaths(index, item, event, history.attempts, out_of_memory=out_of_memory)
            self._start_probe(index, item, report, event.position)

    def release_worker(self, worker: PooledWorker) -> None:
        """Let the isolated run start another worker: this one died before it received the item."""
        if self._run is not None and self._run.worker is worker:
            self._run.worker = None
            self._run.node = None

    def _count_attempt(self, index: int) -> _ItemHistory:
        history = self._histories.setdefault(index, _ItemHistory())
        history.attempts += 1
        return history

    def _retry_or_finish(
        self, index: int, item: Any, history: _ItemHistory, report: FinalFailure, *, is_final: bool
    ) -> None:
        history.tries += 1
        # A probe decides by itself what to try again, so its trials are never retried here.
        if is_final or history.tries > self._max_retries or self._is_probing(index):
            self.finish(index, report)
            return
        self._end_isolated_run(index)
        pause = min(_BACKOFF_SECONDS * 2 ** (history.tries - 1), _MAX_BACKOFF_SECONDS)
        heapq.heappush(self._retries, (monotonic() + pause, index, item))
        failure = report.failure
        self._observer.report_event("item_retried", item=index, kind=failure.kind, error=failure.error_type)

    def _is_probing(self, index: int) -> bool:
        return self._run is not None and self._run.index == index and self._run.probe is not None

    def _end_isolated_run(self, index: int) -> IsolatedRun | None:
        """End the isolated run of this item, if there is one. Its worker becomes an ordinary one."""
        run = self._run
        if run is None or run.index != index:
            return None
        if run.worker is not None:
            run.worker.is_isolated = False
        self._run = None
        return run

    def _start_probe(self, index: int, item: Any, report: FinalFailure, position: int) -> None:
        if self._on_poison is not None:
            probe = self._on_poison(item, report.failure, position)
            if not isinstance(probe, Generator):
                raise UsageError(f"on_poison must return a generator, not {probe!r}", help="yield the tasks to try")
            self._continue_probe(IsolatedRun(index, item, probe=probe, suspected_failure=report), None)

    def _continue_probe(self, run: IsolatedRun, outcome: Any) -> None:
        if run.probe is None:
            return
        try:
            item = run.probe.send(outcome)
        except StopIteration as end:
            self._histories.pop(run.index, None)
            if end.value is None:
                self._deliver(run.index, run.suspected_failure)
            else:
                self._queue.put_back([(run.index, end.value)], alone=True)
        else:
            # To the front: a probe that has started is finished before the next suspect is examined.
            trial = IsolatedRun(run.index, item, probe=run.probe, suspected_failure=run.suspected_failure)
            self._suspects.appendleft(trial)


def find_suspect(worker: PooledWorker, event: Died, items: list[tuple[int, Any]]) -> int:
    """Return the number of the item that a death is attributed to; -1 if there is none. `items` have no outcome yet."""
    if worker.timed_out_item is not None:
        return worker.timed_out_item  # it may have ended just before the kill; the next item is not the cause
    if not items or any(index == event.item for index, _ in items):
        return event.item
    # The worker died before it recorded an item, perhaps while it received the chunk. Items run in order, so the first
    # without an outcome is the suspect. One that was sent ahead had most likely not begun: it is put back to run by
    # itself, is not sent ahead again, and a second such death is then attributed to it.
    return -1 if worker.unfinished_chunks()[0].was_sent_ahead else items[0][0]


def may_have_run(chunk: Chunk, suspect: int) -> bool:
    """Whether the chunk may have run at the death; not if it only waited for the suspect, or had run before it."""
    was_waiting = chunk.was_sent_ahead or chunk.is_finishing
    return not was_waiting or suspect < 0 or suspect in chunk.indexes
