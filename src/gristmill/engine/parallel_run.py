"""One parallel call: checks its options, chooses the backend and the number of workers, and runs the scheduler."""

from __future__ import annotations

import logging
from collections.abc import Sized
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.engine import machine
from gristmill.engine.item_queue import NOT_READY
from gristmill.engine.machine import MemoryWatch, choose_machine_places, parse_pin
from gristmill.engine.scheduler import Policy, Scheduler
from gristmill.engine.worker.chunk import is_first_nested_call, is_inside_worker
from gristmill.engine.worker.pickling import DeferredInterrupt
from gristmill.engine.worker_pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from gristmill.engine.backend import Backend
    from gristmill.engine.failures import OnPoison
    from gristmill.engine.machine import Pin
    from gristmill.engine.observer import Observer
    from gristmill.engine.worker.job import Job

_BACKENDS = {
    "serial": ("gristmill.engine.backends.in_process", "SerialBackend"),
    "threads": ("gristmill.engine.backends.in_process", "ThreadBackend"),
    "processes": ("gristmill.engine.backends.processes", "ProcessBackend"),
    "ray": ("gristmill.engine.backends.ray", "RayBackend"),
}
BACKENDS = (*_BACKENDS, "auto")
_OTHER_BACKENDS = {
    **dict.fromkeys(("mp", "multiprocessing", "process", "loky", "spawn", "fork", "forkserver"), "processes"),
    **dict.fromkeys(("thread", "threading", "threadpool"), "threads"),
    **dict.fromkeys(("seq", "sequential", "safe"), "serial"),
}
"""What joblib, `multiprocessing` and speedy_utils call them."""
IN_PROCESS_BACKENDS = ("serial", "threads")
"""The backends without separate processes: nothing there can be killed, so there are no timeouts."""
_SMALL_JOB_SECONDS = 1.0
_ESTIMATE_AFTER_SECONDS = 0.05
"""How long items run in the caller before their time is extrapolated to the whole job."""
_UNKNOWN_LENGTH_SECONDS = 0.2
"""How long items run in the caller if it is not known how many there are."""
_BARE_WORKER_BYTES = 32 << 20
"""The memory of a worker that has imported nothing."""

_log = logging.getLogger("gristmill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that all parallel calls share, checked on creation."""

    workers: int | Literal["auto"] | None = "auto"
    """None is `"auto"`, too: `multiprocessing.Pool` has it so."""
    backend: str = "processes"
    timeout: float | None = None
    retries: int = 0
    chunk_size: int | Literal["auto"] = "auto"
    max_items_per_worker: int | None = None
    pin: bool | Pin = "none"
    max_growth_bytes: int | None = None

    def __post_init__(self) -> None:
        if own_name := _OTHER_BACKENDS.get(self.backend):
            raise UsageError(f"there is no backend {self.backend!r} here", help=f'it is called "{own_name}"')
        check_choice("backend", self.backend, BACKENDS)
        if self.workers is None:
            object.__setattr__(self, "workers", "auto")
        object.__setattr__(self, "pin", parse_pin(self.pin))
        _check_at_least("workers", self.workers, 1, auto=True)
        _check_at_least("retries", self.retries, 0)
        _check_at_least("chunk_size", self.chunk_size, 1, auto=True)
        if self.max_items_per_worker is not None:
            _check_at_least("max_items_per_worker", self.max_items_per_worker, 1)
        if self.timeout is not None and not self.timeout > 0:
            raise UsageError(f"timeout must be a positive number of seconds, not {self.timeout!r}")
        if self.backend in IN_PROCESS_BACKENDS:
            self._check_backend_support("timeout", "pin", "max_items_per_worker")
        elif self.backend == "ray":
            self._check_backend_support("pin")

    @property
    def is_pinned(self) -> bool:
        return self.pin != "none"

    def _check_backend_support(self, *unsupported: str) -> None:
        for name in unsupported:
            if getattr(self, name) not in (None, "none"):
                able = "processes" if name == "pin" or self.backend == "ray" else 'processes" or backend="ray'
                hint = f'use backend="{able}", or leave it out'
                raise UsageError(
                    f"the {self.backend} backend does not support {name}={getattr(self, name)!r}", help=hint
                )


class ParallelRun:
    """A parallel call under way: one scheduler, or two after another with `backend="auto"`.

    With `"auto"` the first items run in the caller. They show how long an item takes. If the whole job looks longer
    than a second (and than the set-up, which processes would repeat), the caller stops there and a second scheduler
    runs the rest in processes.
    """

    def __init__(
        self,
        job: Job,
        items: Iterable[Any],
        options: Options,
        observer: Observer,
        *,
        total: int | None,
        on_poison: OnPoison | None = None,
        pool: WorkerPool | None = None,
    ) -> None:
        """Prepare a run. Its workers are borrowed from `pool` if that has the backend of the options."""
        self._job = job
        self._items = iter(items)
        self._options = options = _make_serial(options) if is_inside_worker() else options
        self._observer = observer
        self._total = total
        self._on_poison = on_poison
        self._pool = pool
        self._has_ended = False
        self._num_first_items = 0
        # Some options work only in processes, so such a job does not start in the caller.
        needs_processes = options.timeout or options.is_pinned or options.max_items_per_worker
        self._starts_in_caller = options.backend == "auto" and not needs_processes
        # The scheduler is made here, so that errors of the call itself are raised before the first result is asked for.
        if self._starts_in_caller:
            self._scheduler = self._make_scheduler("serial", self._take_first_items(), 0)
        else:
            backend = "processes" if options.backend == "auto" else options.backend
            self._scheduler = self._make_scheduler(backend, self._items, 0)

    def outcomes(self) -> Generator[tuple[int, list[Any]], None, None]:
        """Yield `(first index, values)` of consecutive items, as they finish. A `FinalFailure` is always alone."""
        yield from self._scheduler.outcome_runs()
        next_items = list(islice(self._items, 1)) if self._starts_in_caller and not self._has_ended else []
        if next_items:
            items = chain(next_items, self._items)
            self._scheduler = self._make_scheduler("processes", items, self._num_first_items)
            yield from self._scheduler.outcome_runs()

    @property
    def num_results_to_hold(self) -> int:
        """The number of results that may wait for an earlier one."""
        return self._scheduler.num_results_to_hold

    def pause(self, *, paused: bool) -> None:
        """Stop taking new items from the input, or resume."""
        self._scheduler.pause(paused=paused)

    def end_at(self, index: int) -> None:
        """Produce no outcome from this item on."""
        self._has_ended = True
        self._scheduler.end_at(index)

    def _make_scheduler(self, backend_name: str, items: Iterable[Any], first_index: int) -> Scheduler:
        options = self._options
        backend = _find_backend(backend_name)
        measures_memory = backend.can_kill and backend.is_local
        # While the caller measures how long an item takes, items must end one by one, at any chunk size.
        is_measuring = self._starts_in_caller and backend_name == "serial" and options.chunk_size != "auto"
        policy = Policy(
            workers=choose_num_workers(options.workers, backend_name),
            can_resize=options.workers == "auto" and measures_memory,
            timeout=options.timeout,
            retries=options.retries,
            chunk_size=1 if is_measuring else options.chunk_size,
            max_items_per_worker=options.max_items_per_worker,
            max_growth_bytes=options.max_growth_bytes,
        )
        pool = self._pool
        if pool is None or pool.backend != backend_name:
            pool = make_pool(backend_name, pin=options.pin)
        return Scheduler(
            pool,
            self._job,
            items,
            policy,
            self._observer,
            memory=MemoryWatch() if measures_memory else None,
            total=None if self._total is None else self._total - first_index,
            first_index=first_index,
            on_poison=self._on_poison,
        )

    def _take_first_items(self) -> Iterator[Any]:
        """Yield items for the caller, as long as the job looks small.

        The set-up is no work: it does not grow with the items, and processes would run it again. So the move must also
        save more than a set-up.
        """
        began = monotonic()
        num_workers = choose_num_workers(self._options.workers)
        for item in self._items:
            if item is NOT_READY:
                yield item
                continue
            self._num_first_items += 1
            yield item
            seconds = self._observer.seconds_since_ready
            setup_seconds = monotonic() - began - seconds
            if self._total is None:
                if seconds > max(_UNKNOWN_LENGTH_SECONDS, setup_seconds):
                    return
            elif seconds > _ESTIMATE_AFTER_SECONDS:
                all_seconds = seconds * self._total / max(1, self._observer.num_done)
                seconds_saved = _estimate_saving(all_seconds - seconds, setup_seconds, num_workers)
                if all_seconds > _SMALL_JOB_SECONDS and seconds_saved > 0:
                    return


def _estimate_saving(seconds_left: float, setup_seconds: float, num_workers: int) -> float:
    """Estimate how much sooner a job ends if its rest moves to processes, all of which repeat the set-up.

    >>> _estimate_saving(10, setup_seconds=3, num_workers=2), _estimate_saving(10, setup_seconds=6, num_workers=2)
    (2.0, -1.0)
    """
    return seconds_left - seconds_left / num_workers - setup_seconds


def make_pool(
    backend: str, *, pin: bool | Pin = "none", keeps_workers: bool = False, settings: object = None
) -> WorkerPool:
    """Make a pool of workers; none is started yet. With `keeps_workers` it serves one job after another.

    `settings` are passed to the backend, if there are any.
    """
    pin = parse_pin(pin)
    places = choose_machine_places(pin).places if pin != "none" else ()
    open_backend: Callable[..., Backend] = _find_backend(backend)
    if settings is not None:
        open_backend = partial(open_backend, settings)
    return WorkerPool(backend, open_backend, places=places, keeps_workers=keeps_workers)


def _find_backend(name: str) -> type[Backend]:
    module, class_name = _BACKENDS[name]
    with DeferredInterrupt():
        backend: type[Backend] = getattr(import_module(module), class_name)
    return backend


def choose_num_workers(workers: int | Literal["auto"] | None, backend: str = "processes") -> int:
    """Choose how many workers a job of many items starts with: as many as asked for, or as there are cores."""
    if backend == "serial":
        return 1
    if isinstance(workers, int):
        return workers
    if backend == "ray":
        from gristmill.engine.ray_workers.cluster import count_cpus  # noqa: PLC0415  (the door to Ray)

        return count_cpus()
    num_workers, _ = machine.count_usable_workers()
    if backend not in IN_PROCESS_BACKENDS:
        return max(1, min(num_workers, machine.read_memory_available() // _BARE_WORKER_BYTES))
    return num_workers


def _make_serial(options: Options) -> Options:
    """Return the options of a call inside a worker, where it runs serially."""
    if is_first_nested_call():
        warning = f"; its timeout of {options.timeout:g} s is ignored" if options.timeout else ""
        _log.warning("a parallel call inside a worker runs serially, in that worker%s", warning)
    return replace(options, backend="serial", timeout=None, pin="none", max_items_per_worker=None)


def find_length(items: Iterable[Any]) -> int | None:
    """Return the number of items, if they have a length."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except Exception:  # the caller's own code; the length is only a hint
        return None


def _check_at_least(name: str, value: object, minimum: int, *, auto: bool = False) -> None:
    if auto and value == "auto":
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        allowed = f'"auto" or a whole number from {minimum}' if auto else f"a whole number from {minimum}"
        raise UsageError(f"{name} must be {allowed}, not {value!r}")
