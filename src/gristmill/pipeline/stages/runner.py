"""Running one stage: the units of all sources as tasks, with those that are already done left out.

A unit is cut into slices, which workers run. One whose slices do not write its files is joined afterwards
(`unit_output`). Either way its receipt is kept under the unit's own fingerprint, which does not depend on the slices:
another `slice_bytes` finds it again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.errors import GristmillError
from gristmill.engine.parallel_run import IN_PROCESS_BACKENDS
from gristmill.engine.tasks import Stopwatch, Task, run_tasks
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.units import Span, Unit, cut_into_slices
from gristmill.pipeline.stages.join import JoinTask, merge_results, run_join
from gristmill.pipeline.stages.outputs.sinks import SinkResult
from gristmill.pipeline.stages.poison import find_poison
from gristmill.pipeline.stages.slice_run import run_slice
from gristmill.pipeline.stages.slice_task import SliceResult, SliceTask
from gristmill.pipeline.stages.stage_context import set_up_worker
from gristmill.pipeline.stages.unpack import UnpackResult
from gristmill.pipeline.work_folder import work_path
from gristmill.storage.checksums import compute_file_checksum
from gristmill.storage.stored_paths import path_below
from gristmill.storage.sync_thread import SyncThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import msgspec

    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.stages.options import RunOptions
    from gristmill.pipeline.stages.outputs.unit_output import UnitOutput
    from gristmill.pipeline.stages.receipts import Receipts
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.pipeline.stages.stored import UnitInput

T = TypeVar("T", bound="msgspec.Struct")


@dataclass(frozen=True, slots=True)
class StageUnit:
    """A unit in one stage. A barrier makes new units for the next stage."""

    source: SourcePlan
    fingerprint: str
    inputs: tuple[UnitInput, ...]
    epoch: int = 0
    """How often a `mix` has used its records before."""

    @property
    def stem(self) -> str:
        """The start of the paths of its files. It names what they will hold, so a later run finds them again."""
        return work_path(self.fingerprint)


class StageRunner:
    """Runs tasks, and keeps the receipts of one output folder."""

    def __init__(self, plan: Plan, options: RunOptions, receipts: Receipts, finished: Receipts) -> None:
        self._plan = plan
        self._options = options
        self._receipts = receipts
        self._finished = finished
        """Receipts of the dataset that is being updated, whose files are reused where they are still valid."""
        self.stopwatch = Stopwatch()

    def run(self, stage: StageContext, units: Sequence[StageUnit], desc: str) -> None:
        """Run the units that have no receipt yet."""
        undone = [unit for unit in units if self.find_result(unit) is None]
        self.run_tasks(run_slice, stage, LazyTasks(lambda: self._make_undone_slices(undone, stage)), desc, find_poison)
        unjoined = [unit for unit in undone if self.find_result(unit) is None]
        self._merge_unjoined(unjoined, stage)
        self.run_tasks(run_join, stage, LazyTasks(lambda: self._make_join_tasks(unjoined, stage)), f"{desc}, joining")

    def _make_undone_slices(self, units: Sequence[StageUnit], stage: StageContext) -> Iterator[Task]:
        for unit in units:
            for task in self._cut_into_slices(unit, stage.sources[unit.source.name].output):
                if self.find_receipt(task.id, SliceResult) is None:
                    yield task

    def _merge_unjoined(self, units: Sequence[StageUnit], stage: StageContext) -> None:
        """Write the receipts of units whose files are those of their slices. There is nothing to do for a worker."""
        for unit in units:
            results = self._find_slice_results(unit, stage)
            if not stage.sources[unit.source.name].output.needs_join(len(results)):
                files = [file for result in results for file in result.split_files]
                self._receipts.add(unit.fingerprint, merge_results(results, SinkResult(files)))

    def _make_join_tasks(self, units: Sequence[StageUnit], stage: StageContext) -> Iterator[Task]:
        for unit in units:
            results = self._find_slice_results(unit, stage)
            if stage.sources[unit.source.name].output.needs_join(len(results)):
                yield Task(unit.fingerprint, JoinTask(unit.source.name, results, unit.stem))

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
        here: bool = False,
    ) -> list[T]:
        """Run the tasks that have no receipt yet, and return the results of all tasks, in order."""
        missing = [task for task in tasks if self.find_receipt(task.id, kind) is None]
        self.run_tasks(function, stage, missing, desc, here=here)
        results = [self.find_receipt(task.id, kind) for task in tasks]
        if None in results:
            raise _make_lost_files_error(desc)
        return [result for result in results if result is not None]

    def run_tasks(
        self,
        function: Callable[..., Any],
        stage: StageContext,
        tasks: Collection[Task],
        desc: str,
        on_poison: Callable[..., Any] | None = None,
        *,
        here: bool = False,
    ) -> None:
        """Run tasks and write their receipts as they finish; `here`: in this process, one after another."""
        if not tasks:
            return
        options = self._options
        if here:
            options = replace(options, backend="serial", workers="auto", timeout=None, pin="none")
        elif function is run_slice and stage.runs_untrusted_templates and options.backend in IN_PROCESS_BACKENDS:
            # Nothing in this process could stop a template that never ends.
            workers = 1 if options.backend == "serial" else options.workers
            options = replace(options, backend="processes", workers=workers)
        finished_tasks = run_tasks(
            function,
            tasks,
            workers=options.workers,
            backend=options.backend,
            setup=partial(set_up_worker, stage, loads=function is run_slice),
            timeout=options.timeout,
            retries=options.retries,
            pin=options.pin,
            on_poison=None if options.backend in IN_PROCESS_BACKENDS else on_poison,
            desc=desc,
            num_bytes=getattr(tasks, "num_bytes", 0) if function is run_slice else 0,
            progress=options.progress,
            monitor=options.monitor,
            stopwatch=self.stopwatch,
            events=options.events,
        )
        # A receipt says that a task's files are on the disk. Waiting for that in the worker would delay its next task.
        with SyncThread[tuple[str, Any]](lambda finished: self._receipts.add(*finished)) as sync_thread:
            for task, result in finished_tasks:
                files = result.files() if isinstance(result, SliceResult) else ()  # others are synced by their tasks
                sync_thread.add((task.id, result), [file.below(self._plan.output) for file in files])
        self._receipts.sync()

    def _cut_into_slices(self, unit: StageUnit, output: UnitOutput) -> Iterator[Task]:
        """Cut a unit into tasks. A single slice that needs no joining has the unit's own fingerprint as its name.

        Slices of one unit need names that differ from the unit's, because each has a receipt of its own. They tell
        where the unit was cut: receipts of slices are of no use to a run with other `slice_bytes`.
        """
        slices: Sequence[tuple[UnitInput, ...]] = [unit.inputs]
        spans = tuple(span for span in unit.inputs if isinstance(span, Span))
        if spans:
            slices = cut_into_slices(Unit(spans), self._plan.recipe.slice_bytes, unit.source.cell_sizes)
        is_unit = len(slices) == 1 and not output.needs_join(1)
        for number, inputs in enumerate(slices):
            identities = [span.identity() for span in inputs if isinstance(span, Span)]
            name = unit.fingerprint if is_unit else fingerprint.of(unit.fingerprint, number, identities)
            yield Task(name, SliceTask(unit.source.name, inputs, work_path(name), len(slices)))

    def _find_slice_results(self, unit: StageUnit, stage: StageContext) -> tuple[SliceResult, ...]:
        """Find the results of a unit's slices, in order."""
        tasks = self._cut_into_slices(unit, stage.sources[unit.source.name].output)
        results = []
        for task in tasks:
            result = self.find_receipt(task.id, SliceResult)
            if result is None:  # all slices were run, so its files have disappeared since
                raise _make_lost_files_error(f"{task.payload.stem}*")
            results.append(result)
        return tuple(results)

    def find_receipt(self, name: str, kind: type[T]) -> T | None:
        """Find the result of a task, if it is done and its files are still there.

        Receipts are no proof that files are: someone may have cleaned up, or the disk was restored from a backup. Sizes
        are compared, which costs a `stat` for each file; checksums are left to `verify`.
        """
        root = self._plan.output
        result = self._receipts.get(name, kind)
        if result is not None and _has_its_files(root, result):
            return result
        result = self._finished.get(name, kind)
        is_reusable = result is not None and _has_its_files(root, result) and _has_intact_leftovers(root, result)
        return result if is_reusable else None


class LazyTasks(Collection[Task]):
    """Tasks that are made when their turn comes: a list would hold a kilobyte for each, and more with results."""

    def __init__(self, make: Callable[[], Iterator[Task]]) -> None:
        self._make = make
        sizes = [getattr(task.payload, "size", 0) for task in make()]
        self._length = len(sizes)
        self.num_bytes = sum(sizes)
        """What their progress adds up to; 0: not known."""

    def __iter__(self) -> Iterator[Task]:
        return self._make()

    def __len__(self) -> int:
        return self._length

    def __contains__(self, task: object) -> bool:
        return any(task is other for other in self)


class StageResults:
    """The results of units, in order, read from their receipts: decoded, all of them would be ten times as large."""

    def __init__(self, runner: StageRunner, units: Sequence[StageUnit]) -> None:
        self._runner = runner
        self._units = units

    def __iter__(self) -> Iterator[SliceResult]:
        for unit in self._units:
            result = self._runner.find_result(unit)
            if result is None:
                raise _make_lost_files_error(f"{unit.stem}*")
            yield result


def _make_lost_files_error(files: str) -> GristmillError:
    return GristmillError(
        f"files of the work folder disappeared during the run: {files}",
        help="run the same command again: it rebuilds them",
    )


def _has_its_files(root: Path, result: object) -> bool:
    """Tell whether the files of a result are there with the sizes that it names."""
    files: list[tuple[str, int]] = []
    if isinstance(result, UnpackResult):
        files = result.stored_files()
    elif (stored := getattr(result, "files", None)) is not None:
        files = [(file.path, file.bytes) for file in stored()]
    return all(_read_file_size(path_below(root, path)) == size for path, size in files)


def _has_intact_leftovers(root: Path, result: object) -> bool:
    """Tell whether leftovers that a finished run has kept for an update are unchanged: they may be months old."""
    leftovers = result.leftovers if isinstance(result, SliceResult) else []
    return all(compute_file_checksum(file.data.below(root)) == file.data.xxh3 for file in leftovers)


def _read_file_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
