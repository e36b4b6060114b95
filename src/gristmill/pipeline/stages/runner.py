"""Running one leg: the units of all sources as tasks, with what is already done left out.

A unit that is one task writes its shards itself; one that is cut into several tasks, or written as Parquet, is joined
afterwards. Either way its receipt is kept under the unit's own fingerprint, which knows nothing of the cutting.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.errors import GristmillError
from gristmill.engine.tasks import Stopwatch, Task, run_tasks
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.units import Span, Unit, cut_into_slices
from gristmill.pipeline.stages.join import JoinTask, merge_results, run_join
from gristmill.pipeline.stages.poison import find_poison
from gristmill.pipeline.stages.sink import SinkResult
from gristmill.pipeline.stages.slice_task import SliceResult, SliceTask, run_slice, set_up_worker
from gristmill.pipeline.stages.unpack import UnpackResult
from gristmill.pipeline.work_folder import WORK_FOLDER
from gristmill.storage.checksums import file_checksum
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import msgspec

    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.stages.options import RunOptions
    from gristmill.pipeline.stages.receipts import Receipts
    from gristmill.pipeline.stages.slice_task import SourceStage, StageContext
    from gristmill.pipeline.stages.stored import StoredRecords

T = TypeVar("T", bound="msgspec.Struct")


@dataclass(frozen=True, slots=True)
class StageUnit:
    """One unit in one leg."""

    source: SourcePlan
    fingerprint: str
    inputs: tuple[Span | StoredRecords, ...]
    epoch: int = 0
    """How often a `mix` has taken its records before."""

    @property
    def stem(self) -> str:
        """Where its files go; named by what they will hold, so a later run finds them again."""
        return f"{WORK_FOLDER}/work/{self.fingerprint}"


class StageRunner:
    """Runs tasks with the receipts of one output folder."""

    def __init__(self, plan: Plan, options: RunOptions, receipts: Receipts, finished: Receipts) -> None:
        self._plan = plan
        self._options = options
        self._receipts = receipts
        self._finished = finished
        """Of the dataset that is there: what of it still fits is used again."""
        self.stopwatch = Stopwatch()

    def run(self, stage: StageContext, units: Sequence[StageUnit], desc: str) -> None:
        """See that each unit has its receipt."""
        undone = [unit for unit in units if self.find_result(unit) is None]
        self.run_tasks(run_slice, stage, LazyTasks(lambda: self._make_undone_slices(undone, stage)), desc, find_poison)
        unjoined = [unit for unit in undone if self.find_result(unit) is None]
        for unit in unjoined:
            if stage.sources[unit.source.name].write is None:
                parts = self._find_slice_results(unit, stage)
                stored = SinkResult([part for result in parts for part in result.split_files])
                self._receipts.add(unit.fingerprint, merge_results(parts, stored))
        self.run_tasks(run_join, stage, LazyTasks(lambda: self._make_join_tasks(unjoined, stage)), f"{desc}, joining")

    def _make_undone_slices(self, units: Sequence[StageUnit], stage: StageContext) -> Iterator[Task]:
        for unit in units:
            for task in self._cut_into_slices(unit, stage.sources[unit.source.name]):
                if self.find_receipt(task.id, SliceResult) is None:
                    yield task

    def _make_join_tasks(self, units: Sequence[StageUnit], stage: StageContext) -> Iterator[Task]:
        for unit in units:
            if stage.sources[unit.source.name].write is not None:
                yield Task(
                    unit.fingerprint, JoinTask(unit.source.name, self._find_slice_results(unit, stage), unit.stem)
                )

    def find_result(self, unit: StageUnit) -> SliceResult | None:
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
        """Run the tasks that have no receipt yet; gives the results of all tasks, in order."""
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
        """Run tasks and write their receipts as they finish; `here`: in this process, one after the other."""
        if not tasks:
            return
        options = self._options
        if here:
            options = replace(options, backend="serial", workers="auto", timeout=None)
        elif function is run_slice and stage.runs_untrusted_templates and options.backend != "processes":
            # Nothing in this process could end a template that does not end.
            workers = 1 if options.backend == "serial" else options.workers
            options = replace(options, backend="processes", workers=workers)
        done = run_tasks(
            function,
            tasks,
            workers=options.workers,
            backend=options.backend,
            setup=partial(set_up_worker, stage, loads=function is run_slice),
            timeout=options.timeout,
            on_poison=on_poison if options.backend == "processes" else None,
            desc=desc,
            num_bytes=getattr(tasks, "num_bytes", 0) if function is run_slice else 0,
            progress=options.progress,
            monitor=options.monitor,
            stopwatch=self.stopwatch,
            events=options.events,
        )
        for task, result in done:
            self._receipts.add(task.id, result)
        self._receipts.sync()

    def _cut_into_slices(self, unit: StageUnit, leg: SourceStage) -> Iterator[Task]:
        """The unit's tasks. A single one that needs no joining carries the unit's own fingerprint."""
        parts: Sequence[tuple[Any, ...]] = [unit.inputs]
        spans = tuple(source for source in unit.inputs if isinstance(source, Span))
        if spans:
            parts = cut_into_slices(Unit(spans), self._plan.recipe.slice_bytes, unit.source.cell_sizes)
        is_whole = len(parts) == 1 and (leg.write is None or leg.write.format != "parquet")
        for number, part in enumerate(parts):
            name = (
                unit.fingerprint if is_whole else fingerprint.of(unit.fingerprint, number, self._identify_slice(part))
            )
            # What a later leg reads need not be joined: each task writes a stream of its own.
            complete = is_whole or leg.write is None
            yield Task(name, SliceTask(unit.source.name, part, f"{WORK_FOLDER}/work/{name}", complete=complete))

    @staticmethod
    def _identify_slice(part: Sequence[Any]) -> list[Any]:
        return [source.identity() for source in part if isinstance(source, Span)]

    def _find_slice_results(self, unit: StageUnit, stage: StageContext) -> tuple[SliceResult, ...]:
        """What the unit's tasks came to."""
        tasks = self._cut_into_slices(unit, stage.sources[unit.source.name])
        results = [self.find_receipt(task.id, SliceResult) for task in tasks]
        return tuple(result for result in results if result is not None)

    def find_receipt(self, name: str, kind: type[T]) -> T | None:
        """What was done under this name, if its files are still there."""
        for receipts in (self._receipts, self._finished):
            result = receipts.get(name, kind)
            if result is not None and _has_its_files(self._plan.output, result):
                return (
                    None
                    if receipts is self._finished and not _has_intact_leftovers(self._plan.output, result)
                    else result
                )
        return None


class LazyTasks(Collection[Task]):
    """Tasks that are made when their turn comes: all at once they would be a kilobyte each, and more with results."""

    def __init__(self, make: Callable[[], Iterator[Task]]) -> None:
        self._make = make
        sizes = [getattr(task.payload, "size", 0) for task in make()]
        self._length = len(sizes)
        self.num_bytes = sum(sizes)
        """What their progress will add up to; 0: not known."""

    def __iter__(self) -> Iterator[Task]:
        return self._make()

    def __len__(self) -> int:
        return self._length

    def __contains__(self, task: object) -> bool:
        return any(task is found for found in self)


class StageResults:
    """What units came to, in order, from their receipts: decoded all at once they would be ten times as large."""

    def __init__(self, runner: StageRunner, units: Sequence[StageUnit]) -> None:
        self._runner = runner
        self._units = units

    def __iter__(self) -> Iterator[SliceResult]:
        for unit in self._units:
            result = self._runner.find_result(unit)
            if result is None:
                raise _make_lost_files_error(f"{unit.stem}*")
            yield result


def _make_lost_files_error(what: str) -> GristmillError:
    return GristmillError(
        f"files of the work folder disappeared during the run: {what}",
        help="run the same command again: it rebuilds them",
    )


def _has_its_files(root: Path, result: object) -> bool:
    """Whether a result's files have the sizes that it says."""
    files: list[tuple[str, int]] = []
    if isinstance(result, SliceResult):
        for part in (*result.split_files, *result.held_files, *result.leftovers):
            files += [(file.path, file.bytes) for file in (part.data, part.origins) if file is not None]
        files += [(file.path, file.bytes) for file in (*result.quarantine, *result.dropped)]
    elif isinstance(result, UnpackResult):
        files = result.stored_files()
    elif (stored := getattr(result, "files", None)) is not None:
        files = [(file.path, file.bytes) for file in stored()]
    return all(_file_size(path_below(root, path)) == size for path, size in files)


def _has_intact_leftovers(root: Path, result: object) -> bool:
    """Whether what a finished run has kept for an update is what it was: nobody has looked after it since."""
    leftovers = result.leftovers if isinstance(result, SliceResult) else []
    return all(file_checksum(part.data.below(root)) == part.data.xxh3 for part in leftovers)


def _file_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
