"""`parallel_map` and `parallel_imap`: a function over many items, on all cores, without losing any."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.engine.failure_report import FinalFailure
from gristmill.engine.observer import EventLog, Observer
from gristmill.engine.parallel_run import Options, ParallelRun, find_length
from gristmill.engine.progress import choose_display
from gristmill.engine.worker.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gristmill.engine.machine import Pin

OnError = Literal["raise", "return", "skip"]
BackendName = Literal["serial", "threads", "processes", "ray", "auto"]

_log = logging.getLogger("gristmill")
_OTHER_ARGUMENTS = {
    **dict.fromkeys(("n_jobs", "num_procs", "num_workers", "processes", "max_workers"), "workers=…"),
    "num_threads": 'workers=…, backend="threads"',
    "prefer": "backend=…",
    "batch_size": "chunk_size=…",
    "chunksize": "chunk_size=…, which is rarely needed: chunks follow the time that items take",
    **dict.fromkeys(("initializer", "initargs"), "setup=…, whose result is the second argument of each call"),
    "maxtasksperchild": "max_items_per_worker=…",
    "error_handler": 'on_error="raise", "return" or "skip"',
    "verbose": "progress=…",
}
"""What joblib, `multiprocessing` and speedy_utils call the arguments."""
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def explain_other_names(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Answer an argument that other libraries have with the name that it has here."""

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        for name in kwargs:
            if name in _OTHER_ARGUMENTS:
                raise TypeError(f"{function.__name__} has no argument {name!r}: write {_OTHER_ARGUMENTS[name]}")
        return function(*args, **kwargs)

    return call


@explain_other_names
def parallel_map(
    fn: Callable[..., Any],
    items: Iterable[Any],
    *,
    workers: int | Literal["auto"] | None = "auto",
    backend: BackendName = "processes",
    setup: Callable[[], Any] | None = None,
    timeout: float | None = None,
    retries: int = 0,
    on_error: OnError = "raise",
    chunk_size: int | Literal["auto"] = "auto",
    ordered: bool = True,
    max_items_per_worker: int | None = None,
    pin: bool | Pin = False,
    desc: str | None = None,
    progress: bool | EventLog | None = None,
    monitor: bool = False,
) -> list[Any]:
    """Call `fn` on every item in parallel and return the results as a list.

    >>> import gristmill as gm
    >>> gm.parallel_map(lambda n: n * n, range(5), workers=2)
    [0, 1, 4, 9, 16]

    Lambdas, closures and functions of a script or notebook work; no `if __name__ == "__main__"` is needed. A worker
    that is killed is replaced and its item runs again; only an item that ends three workers in isolation fails.

    Args:
        fn: Called as `fn(item)`, or as `fn(item, state)` with `setup`.
        items: Any iterable.
        workers: `"auto"` or None: the smallest of usable CPUs, physical cores, CPU quota and what memory allows.
        backend: `"processes"`, `"threads"`, `"serial"` (in the caller, for debugging), or `"auto"`: the caller for
            jobs that take less than a second, else processes. `"ray"`: on the Ray cluster that is running, or at
            `RAY_ADDRESS`; else one is started on this machine.
        setup: Called once in each worker; its result is the `state`.
        timeout: Seconds for one item. A worker that takes longer is killed and replaced.
        retries: How often an item that raised or timed out is retried. Deaths of workers do not count.
        on_error: `"raise"` the original exception; `"return"` a `Failure` instead of the result; or `"skip"` the
            item, which is counted and logged.
        chunk_size: Items sent to a worker at a time; `"auto"` follows how long they take.
        ordered: Return results in the order of the items; otherwise as they finish.
        max_items_per_worker: Replace a worker after that many items (for functions that leak memory).
        pin: `"cores"` (or True): bind each worker to its own CPU. `"numa"`: to the CPUs and memory of one NUMA node.
        desc: The job's name in progress and messages.
        progress: None: bars on a terminal, else a line every ten seconds. True: always bars. False: nothing. An
            `EventLog` also writes events to a file.
        monitor: Show CPU and memory of each worker.
    """
    options = Options(
        workers=workers,
        backend=backend,
        timeout=timeout,
        retries=retries,
        chunk_size=chunk_size,
        max_items_per_worker=max_items_per_worker,
        pin=pin,
    )
    call = _Call(fn, items, setup, options, on_error, desc=desc, progress=progress, monitor=monitor)
    # The list holds every result anyway, so workers need not wait for a slow early item.
    return list(call.in_order(holds_all=True) if ordered else call.as_completed())


@explain_other_names
def parallel_imap(
    fn: Callable[..., Any],
    items: Iterable[Any],
    *,
    workers: int | Literal["auto"] | None = "auto",
    backend: BackendName = "processes",
    setup: Callable[[], Any] | None = None,
    timeout: float | None = None,
    retries: int = 0,
    on_error: OnError = "raise",
    chunk_size: int | Literal["auto"] = "auto",
    ordered: bool = True,
    max_items_per_worker: int | None = None,
    pin: bool | Pin = False,
    desc: str | None = None,
    progress: bool | EventLog | None = None,
    monitor: bool = False,
) -> Iterator[Any]:
    """Like `parallel_map`, but yields results as they become available. Items may be endless; memory is bounded.

    >>> import itertools
    >>> import gristmill as gm
    >>> squares = gm.parallel_imap(lambda n: n * n, itertools.count(), workers=2)
    >>> next(squares), next(squares), next(squares)
    (0, 1, 4)
    >>> squares.close()  # ends the workers
    """
    options = Options(
        workers=workers,
        backend=backend,
        timeout=timeout,
        retries=retries,
        chunk_size=chunk_size,
        max_items_per_worker=max_items_per_worker,
        pin=pin,
    )
    call = _Call(fn, items, setup, options, on_error, desc=desc, progress=progress, monitor=monitor)
    return call.in_order() if ordered else call.as_completed()


class _Call:
    """One call: its run, its order of results, and its handling of failures."""

    def __init__(
        self,
        fn: Callable[..., Any],
        items: Iterable[Any],
        setup: Callable[[], Any] | None,
        options: Options,
        on_error: OnError,
        *,
        desc: str | None,
        progress: bool | EventLog | None,
        monitor: bool,
    ) -> None:
        check_choice("on_error", on_error, ["raise", "return", "skip"])
        if not callable(fn):
            raise UsageError(f"fn must be callable, not {fn!r}")
        if setup is not None and not callable(setup):
            raise UsageError(f"setup must be callable, not {setup!r}", help="pass the function itself, without ()")
        self._on_error = on_error
        self._skipped: Counter[str] = Counter()
        self._first_skipped: FinalFailure | None = None
        total = find_length(items)
        log = progress if isinstance(progress, EventLog) else None
        is_shown = None if isinstance(progress, EventLog) else progress
        display = choose_display(progress=is_shown, monitor=monitor)
        name = str(getattr(fn, "__name__", "items")).strip("<>")
        self._observer = Observer(desc or name, total, display, log)
        self._run = ParallelRun(Job(fn, setup), items, options, self._observer, total=total)

    def as_completed(self) -> Iterator[Any]:
        """Yield results as they finish."""
        with self, closing(self._run.outcomes()) as outcomes:
            for _, values in outcomes:
                yield from self._apply_on_error(values)

    def in_order(self, *, holds_all: bool = False) -> Iterator[Any]:
        """Yield results in input order. Of several failures the first in input order is raised, whichever came first.

        Unless `holds_all`, the run is paused while too many results wait for an earlier one.
        """
        waiting: dict[int, list[Any]] = {}  # runs of results by the number of their first item
        next_index = num_waiting = 0
        with self, closing(self._run.outcomes()) as outcomes:
            for index, values in outcomes:
                waiting[index] = values
                num_waiting += len(values)
                if isinstance(values[0], FinalFailure) and self._on_error == "raise":
                    self._run.end_at(index)
                while next_index in waiting:
                    ready = waiting.pop(next_index)
                    next_index += len(ready)
                    num_waiting -= len(ready)
                    yield from self._apply_on_error(ready)
                if not holds_all:
                    self._run.pause(paused=num_waiting > self._run.num_results_to_hold)

    def _apply_on_error(self, values: list[Any]) -> list[Any]:
        """Return what the caller sees of these outcomes. A failure is always alone in its run."""
        value = values[0]
        if not isinstance(value, FinalFailure):
            return values
        if self._on_error == "raise":
            raise value.to_exception()
        if self._on_error == "return":
            return [value.failure]
        self._skipped[f"{value.failure.kind} {value.failure.error_type}"] += 1
        self._first_skipped = self._first_skipped or value
        return []

    def __enter__(self) -> None:
        self._observer.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._observer.__exit__(*exc_info)
        if self._first_skipped is not None:
            first = self._first_skipped.failure
            _log.warning(
                "%s: skipped %d of %d items (%s); the first was item %d: %s",
                self._observer.desc,
                self._skipped.total(),
                self._observer.num_done,
                ", ".join(f"{count} x {kind}" for kind, count in self._skipped.most_common()),
                first.index,
                first.message,
            )
