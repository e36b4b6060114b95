"""Tasks: large named pieces of work, such as the slices of a pipeline. Each worker runs one task at a time."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import process_time
from typing import TYPE_CHECKING, Any, Literal

from gristmill.engine.failure_report import FinalFailure, add_note
from gristmill.engine.item_queue import NOT_READY, NotReady
from gristmill.engine.worker.chunk import Unfinished
from gristmill.engine.worker.job import Context, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from gristmill.engine.failure_report import Failure
    from gristmill.engine.failures import Probe
    from gristmill.engine.machine import Pin
    from gristmill.engine.observer import EventLog, Observer, RunWatch, WorkerUse
    from gristmill.engine.parallel_run import ParallelRun
    from gristmill.engine.worker_pool import WorkerPool

__all__ = ["NOT_READY", "Context", "JobUse", "NotReady", "Stopwatch", "Task", "Unfinished", "run_tasks"]


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work with a name for messages."""

    id: str
    payload: Any


@dataclass(frozen=True, slots=True)
class JobUse:
    """The time, memory and counts of one job."""

    name: str
    seconds: float
    tasks: int
    deaths: int
    counts: dict[str, int]
    workers: list[WorkerUse]
    """CPU seconds are those of this job."""


@dataclass(slots=True)
class Stopwatch:
    """The time and the memory that jobs have used, one after another."""

    seconds: float = 0.0
    """The seconds in which workers were ready, summed over jobs."""
    jobs: list[JobUse] = field(default_factory=list)
    _cpu_seconds: dict[int | str, float] = field(default_factory=lambda: {os.getpid(): process_time()})
    """By process: the CPU seconds up to the end of its last job."""

    @property
    def counts(self) -> Counter[str]:
        """What tasks have counted, summed over jobs."""
        return sum((Counter(job.counts) for job in self.jobs), Counter())

    def measure_workers(self, observer: Observer) -> list[WorkerUse]:
        """Return what the workers of a job have used in it, before it is added."""
        uses = []
        for worker in observer.workers:
            # Clocks of processes have ticks of 10 ms, and may be late compared with the one of this process.
            seconds = max(0.0, worker.cpu_seconds - self._cpu_seconds.get(worker.key, 0.0))
            uses.append(replace(worker, cpu_seconds=seconds))
        return uses

    def add(self, observer: Observer) -> None:
        """Add a job that has ended."""
        self.seconds += observer.seconds_since_ready
        workers = self.measure_workers(observer)
        self._cpu_seconds.update({worker.key: worker.cpu_seconds for worker in observer.workers})
        counts = dict(observer.counts)
        job = JobUse(observer.desc, observer.seconds, observer.num_done, observer.num_deaths, counts, workers)
        self.jobs.append(job)


def run_tasks(
    function: Callable[[Task, Context], Any],
    tasks: Iterable[Task | NotReady],
    *,
    workers: int | Literal["auto"] = "auto",
    backend: str = "processes",
    setup: Callable[[], Any] | None = None,
    timeout: float | None = None,
    retries: int = 2,
    pin: bool | Pin = "none",
    max_growth_bytes: int | None = None,
    on_poison: Callable[[Task, Failure, int], Probe] | None = None,
    desc: str = "tasks",
    num_bytes: int = 0,
    tasks_per_message: int = 1,
    progress: bool | None = None,
    events: EventLog | None = None,
    stopwatch: Stopwatch | None = None,
    pool: WorkerPool | None = None,
    runs_user_code: bool = True,
    watch: RunWatch | None = None,
) -> Generator[tuple[Task, Any], None, None]:
    """Run `function(task, context)` on every task; yield `(task, result)` as tasks finish.

    The first final failure is raised at once, with the task's name in a note; results yielded before stay valid. The
    context holds the worker's `state`, takes counters (`context.count(records=10)`) and positions (`context.at(17)`).

    A task that kills its workers, or that exceeds its timeout, can be taken apart: `on_poison(task, failure, position)`
    returns a generator that yields tasks to try in isolation, receives the result or `Failure` of each, and returns a
    task to run instead (without the record that kills), or None to let it fail. `num_bytes` is the expected sum of the
    tasks' counters `bytes`: progress is then shown by bytes. A task that makes its worker grow by more than
    `max_growth_bytes` fails as `out_of_memory`.

    A function may return `Unfinished(result, finish)`: the task has ended when `finish()` has returned. A worker
    process runs the next task meanwhile.

    A worker gets `tasks_per_message` tasks at once. Their results may come together, and be lost together if it dies.

    Tasks are taken when workers are free. A task may depend on the results of earlier ones: where it comes too early,
    `tasks` gives `NOT_READY`, and is asked again when more results were yielded.

    Workers are borrowed from `pool`, if it has this backend; `pin` is then the pool's. Unless `runs_user_code`, the job
    leaves its workers as it found them: they may have run other jobs before, and run others afterwards. `watch`
    looks at the job every few seconds.

    >>> def count_letters(task, context):
    ...     context.count(bytes=len(task.payload))
    ...     return len(task.payload)
    >>> for task, result in run_tasks(count_letters, [Task("greeting", "hello")], backend="serial"):
    ...     print(task.id, result)
    greeting 5
    """
    # Workers import this module for its classes, and need no scheduler.
    from gristmill.engine.observer import Observer  # noqa: PLC0415
    from gristmill.engine.parallel_run import Options, ParallelRun, find_length  # noqa: PLC0415
    from gristmill.engine.progress import choose_display  # noqa: PLC0415

    options = Options(
        workers=workers,
        backend=backend,
        timeout=timeout,
        retries=retries,
        chunk_size=tasks_per_message,
        pin=pin,
        max_growth_bytes=max_growth_bytes,
    )
    total = find_length(tasks)
    display = choose_display(progress=progress, monitor=False)
    observer = Observer(desc, total, display, events, num_bytes=num_bytes, watch=watch)
    in_flight = _TasksInFlight(tasks)
    job = Job(function, setup, takes_context=True, runs_user_code=runs_user_code)
    run = ParallelRun(job, in_flight, options, observer, total=total, on_poison=on_poison, pool=pool)
    return _yield_results(run, in_flight, observer, stopwatch or Stopwatch())


class _TasksInFlight:
    """The tasks without a result yet, by number. Iterating takes them from the input."""

    def __init__(self, tasks: Iterable[Task | NotReady]) -> None:
        self._tasks = tasks
        self._by_number: dict[int, Task] = {}

    def __iter__(self) -> Iterator[Task | NotReady]:
        index = 0
        for task in self._tasks:
            if not isinstance(task, NotReady):
                self._by_number[index] = task
                index += 1
            yield task

    def take(self, index: int) -> Task:
        """Remove and return the task with this number."""
        return self._by_number.pop(index)


def _yield_results(
    run: ParallelRun, in_flight: _TasksInFlight, observer: Observer, stopwatch: Stopwatch
) -> Generator[tuple[Task, Any], None, None]:
    with observer, closing(run.outcomes()) as outcomes:
        for first, values in outcomes:
            for index, value in enumerate(values, first):
                task = in_flight.take(index)
                if isinstance(value, FinalFailure):
                    error = value.to_exception()
                    add_note(error, f"gristmill: task {task.id}")
                    raise error
                yield task, value
    stopwatch.add(observer)
