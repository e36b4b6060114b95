"""What becomes of items in trouble: tried again, run alone, or given a verdict.

An exception or a timeout uses a retry. A death does not, since it says little: the machine may have run out of memory
for another's sake, or somebody killed the worker. Only an item that was there at three deaths is suspected; it is then
run with no other worker around, and only three deaths more, alone, make it guilty. So no innocent item is ever blamed,
and no guilty one can stop the job. Where the caller can take an item apart, its probe takes the place of these runs:
one death or timeout ends each of its trials, and the probe itself decides how many it wants to see.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError
from gristmill.engine import failure_report as verdict

if TYPE_CHECKING:
    from gristmill.engine.backend import Died
    from gristmill.engine.captured_error import CapturedError
    from gristmill.engine.failure import Failure
    from gristmill.engine.failure_report import FinalFailure
    from gristmill.engine.item_queue import ItemQueue
    from gristmill.engine.observer import Observer
    from gristmill.engine.worker_pool import PooledWorker, WorkerPool

    Probe = Generator[Any, Any, Any]
    """Yields items to be run alone, is sent the result or `Failure` of each, and returns an item to run in the place of
    the guilty one, or None to let its failure stand."""
    OnPoison = Callable[[Any, Failure, int], Probe]

MAX_DEATHS = 3
_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 10.0


@dataclass(slots=True)
class _ItemHistory:
    """What is known of one item."""

    attempts: int = 0
    """Runs that ended without a result."""
    tries: int = 0
    """Those that count against `retries`."""
    deaths: int = 0
    """Deaths among other workers."""


@dataclass(slots=True)
class IsolatedRun:
    """A suspect item, to be run with no other worker around."""

    index: int
    item: Any
    deaths: int = 0
    member: PooledWorker | None = None
    probe: Probe | None = None
    suspected_failure: FinalFailure | None = None
    """What the probe is about."""


class FailureHandler:
    def __init__(
        self,
        supply: ItemQueue,
        crew: WorkerPool,
        observer: Observer,
        deliver: Callable[[int, Any], None],
        *,
        retries: int,
        timeout: float | None,
        on_poison: OnPoison | None,
    ) -> None:
        self._supply = supply
        self._crew = crew
        self._observer = observer
        self._deliver = deliver
        self._max_retries = retries
        self._timeout = timeout
        self._on_poison = on_poison
        self._records: dict[int, _ItemHistory] = {}
        self._retries: list[tuple[float, int, Any]] = []
        self._suspects: deque[IsolatedRun] = deque()
        self._run: IsolatedRun | None = None

    @property
    def has_open_cases(self) -> bool:
        """Some item is in trouble, so results must be looked at one by one."""
        return bool(self._records or self._run)

    @property
    def has_work(self) -> bool:
        return bool(self._retries or self._suspects or self._run)

    def is_running_probe(self, member: PooledWorker) -> bool:
        """Whether the worker runs a part of an item, to find out what is wrong with it."""
        return self._run is not None and self._run.member is member and self._run.probe is not None

    def seconds_to_next_retry(self) -> float:
        """Infinite while a suspect is to run alone: all others wait for that."""
        waits = not self._retries or self._run is not None or self._suspects
        return float("inf") if waits else self._retries[0][0] - monotonic()

    def release_due_retries(self) -> None:
        while self._retries and self._retries[0][0] <= monotonic():
            _, index, item = heapq.heappop(self._retries)
            self._supply.put_back([(index, item)], alone=True)

    def end_at(self, index: int) -> None:
        """Drop all cases from this item on."""
        self._retries = [entry for entry in self._retries if entry[1] < index]
        heapq.heapify(self._retries)
        self._suspects = deque(run for run in self._suspects if run.index < index)
        if self._run is not None and self._run.index >= index:
            self._run = None

    def advance_isolated_run(self) -> IsolatedRun | None:
        """The run for which everything else must wait, if there is one. Brings it as far as its worker's start."""
        if self._run is None and self._suspects:
            self._run = self._suspects.popleft()
        run = self._run
        if run is not None and run.member is None and not self._crew.is_busy:
            for member in list(self._crew):
                self._crew.stop_worker(member)
            if not len(self._crew):
                run.member = self._crew.start(alone=True)
                self._observer.report_event("solo_run", item=run.index, worker=run.member.worker.name)
        return run

    def finish(self, index: int, value: Any) -> None:
        """The item ended, with its result or for good without one."""
        self._records.pop(index, None)
        run = self._end_isolated_run(index)
        if run is None or run.probe is None:
            self._deliver(index, value)
        else:
            self._continue_probe(run, value.failure if isinstance(value, verdict.FinalFailure) else value)

    def handle_unpicklable(self, index: int, item: Any, caught: CapturedError, *, was_run: bool) -> None:
        record = self._count_attempt(index) if was_run else self._records.get(index, _ItemHistory())
        self.finish(index, verdict.report_exception(index, item, caught, record.attempts))

    def handle_exception(self, index: int, item: Any, caught: CapturedError) -> None:
        record = self._count_attempt(index)
        failed = verdict.report_exception(index, item, caught, record.attempts)
        hopeless = caught.kind == "unpicklable" or caught.hopeless
        self._retry_or_finish(index, item, record, failed, hopeless=hopeless)

    def handle_timeout(self, index: int, item: Any, position: int) -> None:
        record = self._count_attempt(index)
        failed = verdict.report_timeout(index, item, self._timeout, record.attempts, position)
        if self._on_poison is not None and not self._is_probing(index):
            self._end_isolated_run(index)
            self._start_probe(index, item, failed, position)
        else:
            self._retry_or_finish(index, item, record, failed, hopeless=False)

    def handle_growth(self, index: int, item: Any, event: Died, num_bytes: int) -> None:
        """Its worker was ended for its size. The limit is the caller's own, so once is enough."""
        record = self._count_attempt(index)
        self.finish(index, verdict.report_growth(index, item, event, num_bytes, record.attempts))

    def handle_death(self, member: PooledWorker, index: int, item: Any, event: Died, *, out_of_memory: bool) -> None:
        record = self._count_attempt(index)
        run = self._run
        if run is not None and member.is_isolated:
            run.member = None
            run.deaths += 1
            if run.deaths == MAX_DEATHS or run.probe is not None:
                self.finish(
                    index, verdict.report_deaths(index, item, event, record.attempts, out_of_memory=out_of_memory)
                )
            return
        record.deaths += 1
        if record.deaths < MAX_DEATHS:
            self._supply.put_back([(index, item)], alone=True)
        elif self._on_poison is None:
            self._suspects.append(IsolatedRun(index, item))
        else:
            failed = verdict.report_deaths(index, item, event, record.attempts, out_of_memory=out_of_memory)
            self._start_probe(index, item, failed, event.position)

    def release_worker(self, member: PooledWorker) -> None:
        """The worker for the solo run died before it had the item."""
        if self._run is not None and self._run.member is member:
            self._run.member = None

    def _count_attempt(self, index: int) -> _ItemHistory:
        record = self._records.setdefault(index, _ItemHistory())
        record.attempts += 1
        return record

    def _retry_or_finish(
        self, index: int, item: Any, record: _ItemHistory, failed: FinalFailure, *, hopeless: bool
    ) -> None:
        record.tries += 1
        if hopeless or record.tries > self._max_retries or self._is_probing(index):
            self.finish(index, failed)
            return
        self._end_isolated_run(index)
        pause = min(_BACKOFF_SECONDS * 2 ** (record.tries - 1), _MAX_BACKOFF_SECONDS)
        heapq.heappush(self._retries, (monotonic() + pause, index, item))
        self._observer.report_event(
            "item_retried", item=index, kind=failed.failure.kind, error=failed.failure.error_type
        )

    def _is_probing(self, index: int) -> bool:
        return self._run is not None and self._run.index == index and self._run.probe is not None

    def _end_isolated_run(self, index: int) -> IsolatedRun | None:
        run = self._run
        if run is None or run.index != index:
            return None
        if run.member is not None:
            run.member.is_isolated = False
        self._run = None
        return run

    def _start_probe(self, index: int, item: Any, failed: FinalFailure, position: int) -> None:
        if self._on_poison is not None:
            probe = self._on_poison(item, failed.failure, position)
            if not isinstance(probe, Generator):
                raise UsageError(f"on_poison must give a generator, not {probe!r}", help="it yields tasks to be tried")
            self._continue_probe(IsolatedRun(index, item, probe=probe, suspected_failure=failed), None)

    def _continue_probe(self, run: IsolatedRun, outcome: Any) -> None:
        if run.probe is None:
            return
        try:
            item = run.probe.send(outcome)
        except StopIteration as end:
            if end.value is None:
                self._records.pop(run.index, None)
                self._deliver(run.index, run.suspected_failure)
            else:
                self._records.pop(run.index, None)
                self._supply.put_back([(run.index, end.value)], alone=True)
        else:
            self._suspects.appendleft(
                IsolatedRun(run.index, item, probe=run.probe, suspected_failure=run.suspected_failure)
            )
