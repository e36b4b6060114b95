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
from gristmill.engine import verdict

if TYPE_CHECKING:
    from gristmill.engine.backend import Died
    from gristmill.engine.caught import Caught
    from gristmill.engine.crew import Crew, Member
    from gristmill.engine.failure import Failure
    from gristmill.engine.observer import Observer
    from gristmill.engine.supply import Supply
    from gristmill.engine.verdict import Failed

    Probe = Generator[Any, Any, Any]
    """Yields items to be run alone, is sent the result or `Failure` of each, and returns an item to run in the place of
    the guilty one, or None to let its failure stand."""
    OnPoison = Callable[[Any, Failure, int], Probe]

MAX_DEATHS = 3
_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 10.0


@dataclass(slots=True)
class _Record:
    """What is known of one item."""

    attempts: int = 0
    """Runs that ended without a result."""
    tries: int = 0
    """Those that count against `retries`."""
    deaths: int = 0
    """Deaths among other workers."""


@dataclass(slots=True)
class SoloRun:
    """A suspect item, to be run with no other worker around."""

    index: int
    item: Any
    deaths: int = 0
    member: Member | None = None
    probe: Probe | None = None
    charge: Failed | None = None
    """What the probe is about."""


class Court:
    def __init__(
        self,
        supply: Supply,
        crew: Crew,
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
        self._records: dict[int, _Record] = {}
        self._retries: list[tuple[float, int, Any]] = []
        self._suspects: deque[SoloRun] = deque()
        self._run: SoloRun | None = None

    @property
    def is_sitting(self) -> bool:
        """Some item is in trouble, so results must be looked at one by one."""
        return bool(self._records or self._run)

    @property
    def has_work(self) -> bool:
        return bool(self._retries or self._suspects or self._run)

    def is_trial(self, member: Member) -> bool:
        """Whether the worker runs a part of an item, to find out what is wrong with it."""
        return self._run is not None and self._run.member is member and self._run.probe is not None

    def seconds_to_next_retry(self) -> float:
        """Infinite while a suspect is to run alone: all others wait for that."""
        waits = not self._retries or self._run is not None or self._suspects
        return float("inf") if waits else self._retries[0][0] - monotonic()

    def release_due_retries(self) -> None:
        while self._retries and self._retries[0][0] <= monotonic():
            _, index, item = heapq.heappop(self._retries)
            self._supply.give_back([(index, item)], alone=True)

    def end_at(self, index: int) -> None:
        """Drop all cases from this item on."""
        self._retries = [entry for entry in self._retries if entry[1] < index]
        heapq.heapify(self._retries)
        self._suspects = deque(run for run in self._suspects if run.index < index)
        if self._run is not None and self._run.index >= index:
            self._run = None

    def solo_run(self) -> SoloRun | None:
        """The run for which everything else must wait, if there is one. Brings it as far as its worker's start."""
        if self._run is None and self._suspects:
            self._run = self._suspects.popleft()
        run = self._run
        if run is not None and run.member is None and not self._crew.busy:
            for member in list(self._crew):
                self._crew.dismiss(member)
            if not len(self._crew):
                run.member = self._crew.start(alone=True)
                self._observer.event("solo_run", item=run.index, worker=run.member.worker.name)
        return run

    def finish(self, index: int, value: Any) -> None:
        """The item ended, with its result or for good without one."""
        self._records.pop(index, None)
        run = self._end_solo_run(index)
        if run is None or run.probe is None:
            self._deliver(index, value)
        else:
            self._continue_probe(run, value.failure if isinstance(value, verdict.Failed) else value)

    def take_unsendable(self, index: int, item: Any, caught: Caught, *, was_run: bool) -> None:
        record = self._record(index) if was_run else self._records.get(index, _Record())
        self.finish(index, verdict.of_exception(index, item, caught, record.attempts))

    def take_exception(self, index: int, item: Any, caught: Caught) -> None:
        record = self._record(index)
        failed = verdict.of_exception(index, item, caught, record.attempts)
        hopeless = caught.kind == "unpicklable" or caught.hopeless
        self._try_again(index, item, record, failed, hopeless=hopeless)

    def take_timeout(self, index: int, item: Any, position: int) -> None:
        record = self._record(index)
        failed = verdict.of_timeout(index, item, self._timeout, record.attempts, position)
        if self._on_poison is not None and not self._is_probing(index):
            self._end_solo_run(index)
            self._start_probe(index, item, failed, position)
        else:
            self._try_again(index, item, record, failed, hopeless=False)

    def take_growth(self, index: int, item: Any, event: Died, num_bytes: int) -> None:
        """Its worker was ended for its size. The limit is the caller's own, so once is enough."""
        record = self._record(index)
        self.finish(index, verdict.of_growth(index, item, event, num_bytes, record.attempts))

    def take_death(self, member: Member, index: int, item: Any, event: Died, *, out_of_memory: bool) -> None:
        record = self._record(index)
        run = self._run
        if run is not None and member.alone:
            run.member = None
            run.deaths += 1
            if run.deaths == MAX_DEATHS or run.probe is not None:
                self.finish(index, verdict.of_deaths(index, item, event, record.attempts, out_of_memory=out_of_memory))
            return
        record.deaths += 1
        if record.deaths < MAX_DEATHS:
            self._supply.give_back([(index, item)], alone=True)
        elif self._on_poison is None:
            self._suspects.append(SoloRun(index, item))
        else:
            failed = verdict.of_deaths(index, item, event, record.attempts, out_of_memory=out_of_memory)
            self._start_probe(index, item, failed, event.position)

    def forget_worker(self, member: Member) -> None:
        """The worker for the solo run died before it had the item."""
        if self._run is not None and self._run.member is member:
            self._run.member = None

    def _record(self, index: int) -> _Record:
        record = self._records.setdefault(index, _Record())
        record.attempts += 1
        return record

    def _try_again(self, index: int, item: Any, record: _Record, failed: Failed, *, hopeless: bool) -> None:
        record.tries += 1
        if hopeless or record.tries > self._max_retries or self._is_probing(index):
            self.finish(index, failed)
            return
        self._end_solo_run(index)
        pause = min(_BACKOFF_SECONDS * 2 ** (record.tries - 1), _MAX_BACKOFF_SECONDS)
        heapq.heappush(self._retries, (monotonic() + pause, index, item))
        self._observer.event("item_retried", item=index, kind=failed.failure.kind, error=failed.failure.error_type)

    def _is_probing(self, index: int) -> bool:
        return self._run is not None and self._run.index == index and self._run.probe is not None

    def _end_solo_run(self, index: int) -> SoloRun | None:
        run = self._run
        if run is None or run.index != index:
            return None
        if run.member is not None:
            run.member.alone = False
        self._run = None
        return run

    def _start_probe(self, index: int, item: Any, failed: Failed, position: int) -> None:
        if self._on_poison is not None:
            probe = self._on_poison(item, failed.failure, position)
            if not isinstance(probe, Generator):
                raise UsageError(f"on_poison must give a generator, not {probe!r}", help="it yields tasks to be tried")
            self._continue_probe(SoloRun(index, item, probe=probe, charge=failed), None)

    def _continue_probe(self, run: SoloRun, outcome: Any) -> None:
        if run.probe is None:
            return
        try:
            item = run.probe.send(outcome)
        except StopIteration as end:
            if end.value is None:
                self._records.pop(run.index, None)
                self._deliver(run.index, run.charge)
            else:
                self._records.pop(run.index, None)
                self._supply.give_back([(run.index, end.value)], alone=True)
        else:
            self._suspects.appendleft(SoloRun(run.index, item, probe=run.probe, charge=run.charge))
