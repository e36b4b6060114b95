"""Running one stage: the units of all sources as tasks, with those that are already done left out.

A unit is cut into slices, which workers run, and joined where its slices do not write its files (`unit_tasks`). Either
way its receipt is kept under the unit's own fingerprint, which does not depend on the slices: a run with another cut
finds it again.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from gristmill.core.errors import DamagedWorkError
from gristmill.core.quantities import format_count
from gristmill.engine.parallel_run import IN_PROCESS_BACKENDS, choose_num_workers
from gristmill.engine.tasks import Stopwatch, run_tasks
from gristmill.pipeline.planning.units import UnitCut, choose_tasks_per_message
from gristmill.pipeline.stages.poison import find_poison
from gristmill.pipeline.stages.slice_run import run_measured, run_unit_task
from gristmill.pipeline.stages.stage_context import SliceResult, set_up_worker
from gristmill.pipeline.stages.unit_tasks import CutChooser, UnitTasks
from gristmill.pipeline.work_folder import RunFiles, work_path
from gristmill.storage.commit import SyncThread
from gristmill.storage.files import find_version
from gristmill.text.chats.jinja_environment import are_limits_enforced

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from gristmill.engine.tasks import NotReady, Task
    from gristmill.engine.worker_pool import WorkerPool
    from gristmill.pipeline.monitoring.progress_watch import ProgressWatch
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.outputs.split_files import SplitFile
    from gristmill.pipeline.stages.receipts import Receipts
    from gristmill.pipeline.stages.stage_context import RunOptions, StageContext
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.shards.stored_files import StoredFile
    from gristmill.storage.locations import Location

T = TypeVar("T", bound="msgspec.Struct")

_log = logging.getLogger("gristmill")


class UnitReuse(NamedTuple):
    """The numbers of units that a run found and had in all."""

    num_reused: int = 0
    """The number of units of an earlier run that were used as they were."""
    num_units: int = 0
    """The number of all units, in all stages. A unit is about 64 MiB of input in one stage."""


class StageRunner:
    """Runs tasks, and keeps the receipts of one output folder."""

    def __init__(
        self,
        plan: Plan,
        options: RunOptions,
        receipts: Receipts,
        finished: Receipts,
        work: Location,
        pool: WorkerPool | None = None,
        watch: ProgressWatch | None = None,
    ) -> None:
        self._plan = plan
        self._options = options
        self._pool = pool
        self._receipts = receipts
        self._watch = watch
        self._finished = finished
        """Receipts of the dataset that is being updated, whose files are reused where they are still valid."""
        self.stopwatch = watch.stopwatch if watch is not None else Stopwatch()
        self._work = work
        self.files = RunFiles(plan.output, work)
        self.tasks: UnitTasks | None = None
        """The tasks of the last stage."""
        self._built: set[str] = set()
        """Fingerprints of the units that this run has made."""
        self._reused: set[str] = set()
        """Those of units that were there from an earlier run."""
        self.kept_files: set[str] = set()
        """Intermediate data that this run has used, if the recipe keeps it."""

    @property
    def reuse(self) -> UnitReuse:
        """How many units were there from an earlier run."""
        return UnitReuse(len(self._reused - self._built), len(self._reused | self._built))

    def run(self, stage: StageContext, units: Iterable[StageUnit], desc: str) -> None:
        """Run the units that have no receipt yet."""
        undone = []
        for unit in units:
            if self.find_result(unit) is None:
                undone.append(unit)
                self._built.add(unit.fingerprint)
            elif unit.fingerprint not in self._built:
                self._reused.add(unit.fingerprint)
        if not undone:
            return
        options = self._choose_options(stage)
        num_workers = choose_num_workers(options.workers, options.backend)
        chooser = CutChooser(self._plan.recipe.slice_bytes, num_workers, stage, len(undone))
        with self._open_sync_thread() as sync_thread:
            tasks = self.tasks = UnitTasks(undone, stage, chooser, _StageReceipts(self, sync_thread))
            _tell_idle_workers(desc, options, num_workers, tasks.num_slices)
            results = self._start_tasks(
                run_unit_task,
                stage,
                tasks,
                desc,
                options,
                find_poison,
                num_bytes=tasks.num_bytes,
                tasks_per_message=choose_tasks_per_message(
                    num_workers, tasks.num_slices, tasks.num_bytes, stage.layout
                ),
            )
            with closing(results):  # whoever handles an error finds no worker that still writes
                for task, result in results:
                    tasks.finish_task(task, result)
        self._receipts.sync()

    def forget_damaged(self, file: StoredFile | None) -> None:
        """Remove a file of the run that is damaged, so that the receipts which name it are void, and list files again.

        Who has read it may have been at fault, so it is looked at first. None: a file has disappeared.
        """
        path = None if file is None else self.files.locate(file.path)
        if file is not None and path is not None and not file.is_intact(path):
            path.unlink(missing_ok=True)
        self.files = RunFiles(self._plan.output, self._work)

    def find_result(self, unit: StageUnit) -> SliceResult | None:
        """Find the result of a unit; None if it has to be run."""
        return self.find_receipt(unit.fingerprint, SliceResult)

    def run_missing(
        self,
        function: Callable[..., Any],
        stage: StageContext,
        tasks: Sequence[Task],
        kind: type[T],
        desc: str,
        *,
        in_process: bool = False,
    ) -> list[T]:
        """Run the tasks that have no receipt yet, and return the results of all tasks, in order."""
        missing = [task for task in tasks if self.find_receipt(task.id, kind) is None]
        self.run_tasks(function, stage, missing, desc, in_process=in_process)
        results = [self.find_receipt(task.id, kind) for task in tasks]
        if None in results:
            raise _make_lost_files_error(desc)
        return [result for result in results if result is not None]

    def run_tasks(
        self,
        function: Callable[..., Any],
        stage: StageContext,
        tasks: Sequence[Task],
        desc: str,
        *,
        in_process: bool = False,
    ) -> None:
        """Run tasks and write their receipts as they finish; `in_process`: in this process, one after another."""
        if not tasks:
            return
        options = self._options
        if in_process:
            options = replace(
                options,
                backend="serial",
                workers="auto",
                timeout=None,
                pin="none",
                ray_address=None,
                wait_for_nodes=None,
            )
        results = self._start_tasks(function, stage, tasks, desc, options)
        with self._open_sync_thread() as sync_thread, closing(results):
            for task, result in results:
                self.add_receipt(task.id, result, sync_thread)
        self._receipts.sync()

    def _open_sync_thread(self) -> SyncThread[tuple[str, Any]]:
        """Open the thread that writes receipts.

        A receipt says that a task's files are on the disk. Waiting for that in the worker would delay its next task.
        """
        return SyncThread(self._write_receipt)

    def _write_receipt(self, finished: tuple[str, Any]) -> None:
        name, result = finished
        if isinstance(result, SliceResult) and result.split_files:
            files = [msgspec.structs.replace(file, versions=self._find_versions(file)) for file in result.split_files]
            result = msgspec.structs.replace(result, split_files=files)
        self._receipts.add(name, result)

    def _find_versions(self, file: SplitFile) -> list[str]:
        """Find the versions of files that may become a shard: publishing looks whether they are still the same."""
        if self.files.is_intermediate(file.data.path):
            return []
        states = [find_version(self.files.locate(stored.path)) for stored in file.shard_files()]
        return ["" if state is None else state[1] for state in states]

    def add_receipt(self, name: str, result: object, sync_thread: SyncThread[tuple[str, Any]]) -> None:
        """Have the receipt of a task written when its files are on the disk. They are known from now on."""
        for path, num_bytes in _list_files(result):
            self.files.add(path, num_bytes)
        self._note_kept_files(result)
        files = result.files() if isinstance(result, SliceResult) else ()  # others are synced by their tasks
        sync_thread.add((name, result), [self.files.locate(file.path) for file in files])

    def _note_kept_files(self, result: object) -> None:
        """Note the intermediate data that an update of the dataset can use again."""
        if self._plan.recipe.keep_stages:
            paths = [path for path, _ in _list_files(result)]
            if any(map(self.files.is_intermediate, paths)):
                self.kept_files.update(paths)  # also scores and dropped records: a receipt holds with all of its files

    def _choose_options(self, stage: StageContext) -> RunOptions:
        """Choose the options for the slices of a stage."""
        options = self._options
        if not stage.runs_untrusted_templates or options.backend not in IN_PROCESS_BACKENDS:
            return options
        if options.backend == "serial" and are_limits_enforced():
            return options
        # Nothing in this thread could stop a template that never ends.
        workers = 1 if options.backend == "serial" else options.workers
        return replace(options, backend="processes", workers=workers)

    def _start_tasks(
        self,
        function: Callable[..., Any],
        stage: StageContext,
        tasks: Iterable[Task | NotReady],
        desc: str,
        options: RunOptions,
        on_poison: Callable[..., Any] | None = None,
        *,
        num_bytes: int = 0,
        tasks_per_message: int = 1,
    ) -> Generator[tuple[Task, Any], None, None]:
        runs_steps = function is run_unit_task
        is_built_in = function.__module__.startswith("gristmill.")
        context = stage if runs_steps or not is_built_in else stage.without_steps()
        return run_tasks(
            partial(run_measured, function),
            tasks,
            workers=options.workers,
            backend=options.backend,
            setup=partial(set_up_worker, context, loads=runs_steps),
            timeout=options.timeout,
            retries=options.retries,
            pin=options.pin,
            on_poison=None if options.backend in IN_PROCESS_BACKENDS else on_poison,
            desc=desc,
            num_bytes=num_bytes,
            tasks_per_message=tasks_per_message,
            progress=False if options.monitor == "terminal" else options.progress,
            stopwatch=self.stopwatch,
            events=options.events,
            pool=self._pool,
            watch=self._watch,
            runs_user_code=bool(self._plan.plugins) or not is_built_in or context.runs_user_code,
        )

    def find_receipt(self, name: str, kind: type[T]) -> T | None:
        """Find the result of a task, if it is done and its files are still there.

        Receipts are no proof that files are: someone may have cleaned up, or the disk was restored from a backup. Sizes
        are compared, which costs a `stat` for each file; checksums are compared where files are read.
        """
        root = self._plan.output
        result = self._receipts.get(name, kind)
        if result is not None and has_its_files(self.files, result):
            self._note_kept_files(result)
            return result
        result = self._finished.get(name, kind)
        is_reusable = result is not None and has_its_files(self.files, result) and _has_intact_leftovers(root, result)
        return result if is_reusable else None


class _StageReceipts:
    """The receipts of a runner, as the tasks of a stage see them (`ReceiptBook`)."""

    def __init__(self, runner: StageRunner, sync_thread: SyncThread[tuple[str, Any]]) -> None:
        self._runner = runner
        self._sync_thread = sync_thread

    def find_slice(self, name: str) -> SliceResult | None:
        return self._runner.find_receipt(name, SliceResult)

    def find_cut(self, name: str) -> UnitCut | None:
        return self._runner.find_receipt(name, UnitCut)

    def add(self, name: str, result: SliceResult | UnitCut) -> None:
        self._runner.add_receipt(name, result, self._sync_thread)

    def check_files(self, name: str, result: SliceResult) -> None:
        if not has_its_files(self._runner.files, result):
            raise _make_lost_files_error(f"{work_path(name)}*")


class StageResults:
    """The results of units, in order, read from their receipts: decoded, all of them would be ten times as large."""

    def __init__(self, runner: StageRunner, units: Iterable[StageUnit]) -> None:
        self._runner = runner
        self._units = units

    def __iter__(self) -> Iterator[SliceResult]:
        for unit in self._units:
            result = self._runner.find_result(unit)
            if result is None:
                raise _make_lost_files_error(f"{unit.stem}*")
            yield result


def _tell_idle_workers(desc: str, options: RunOptions, num_workers: int, num_slices: int) -> None:
    """Say why a stage uses fewer workers than were asked for; in the log of events even if no number was asked for."""
    num_used = max(num_slices, 1)  # what is left may be units to join
    if num_used >= num_workers:
        return
    reason = f"its input makes only {format_count(num_used, 'task')}"
    if options.workers != "auto":
        _log.warning("%s: uses %d of the %d workers: %s", desc, num_used, num_workers, reason)
    if options.events is not None:
        options.events.write("workers_idle", job=desc, workers=num_used, of=num_workers, reason=reason)


def _make_lost_files_error(files: str) -> DamagedWorkError:
    return DamagedWorkError(
        f"files of the work folder disappeared during the run: {files}",
        help="run the same command again: it rebuilds them",
    )


def has_its_files(files: RunFiles, result: object) -> bool:
    """Tell whether the files of a result are there with the sizes that it names."""
    return all(files.find_size(path) == size for path, size in _list_files(result))


def _list_files(result: object) -> list[tuple[str, int]]:
    stored = getattr(result, "files", None)
    return [] if stored is None else [(file.path, file.bytes) for file in stored()]


def _has_intact_leftovers(root: Location, result: object) -> bool:
    """Tell whether leftovers that a finished run has kept for an update are unchanged: they may be months old."""
    leftovers = result.leftovers if isinstance(result, SliceResult) else []
    return all(file.data.is_intact(file.data.below(root)) for file in leftovers)
