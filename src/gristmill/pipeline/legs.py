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
from gristmill.pipeline import fingerprint
from gristmill.pipeline.join import JoinTask, merge_results, run_join
from gristmill.pipeline.output import WORK
from gristmill.pipeline.poison import find_poison
from gristmill.pipeline.sink import Written
from gristmill.pipeline.units import Span, Unit, cut_for_tasks
from gristmill.pipeline.unpack import UnpackResult
from gristmill.pipeline.work import PartResult, PartTask, run_part, set_up
from gristmill.storage.checksums import file_checksum
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import msgspec

    from gristmill.pipeline.options import RunOptions
    from gristmill.pipeline.plan import Plan, SourcePlan
    from gristmill.pipeline.receipts import Receipts
    from gristmill.pipeline.stored import StoredBucket, StoredChoice, StoredInput, StoredInterleaving
    from gristmill.pipeline.work import SourceLeg, Stage

T = TypeVar("T", bound="msgspec.Struct")


@dataclass(frozen=True, slots=True)
class UnitWork:
    """One unit in one leg."""

    source: SourcePlan
    fingerprint: str
    inputs: tuple[Span | StoredInput | StoredChoice | StoredBucket | StoredInterleaving, ...]
    epoch: int = 0
    """How often a `mix` has taken its records before."""

    @property
    def stem(self) -> str:
        """Where its files go; named by what they will hold, so a later run finds them again."""
        return f"{WORK}/work/{self.fingerprint}"


class LegRunner:
    """Runs tasks with the receipts of one output folder."""

    def __init__(self, plan: Plan, options: RunOptions, receipts: Receipts, finished: Receipts) -> None:
        self._plan = plan
        self._options = options
        self._receipts = receipts
        self._finished = finished
        """Of the dataset that is there: what of it still fits is used again."""
        self.stopwatch = Stopwatch()

    def run(self, stage: Stage, units: Sequence[UnitWork], desc: str) -> None:
        """See that each unit has its receipt."""
        undone = [unit for unit in units if self.result(unit) is None]
        self.run_all(run_part, stage, LazyTasks(lambda: self._undone_slices(undone, stage)), desc, find_poison)
        unjoined = [unit for unit in undone if self.result(unit) is None]
        for unit in unjoined:
            if stage.legs[unit.source.name].write is None:
                parts = self._parts(unit, stage)
                stored = Written([part for result in parts for part in result.parts])
                self._receipts.add(unit.fingerprint, merge_results(parts, stored))
        self.run_all(run_join, stage, LazyTasks(lambda: self._joins(unjoined, stage)), f"{desc}, joining")

    def _undone_slices(self, units: Sequence[UnitWork], stage: Stage) -> Iterator[Task]:
        for unit in units:
            for task in self._slices(unit, stage.legs[unit.source.name]):
                if self.receipt(task.id, PartResult) is None:
                    yield task

    def _joins(self, units: Sequence[UnitWork], stage: Stage) -> Iterator[Task]:
        for unit in units:
            if stage.legs[unit.source.name].write is not None:
                yield Task(unit.fingerprint, JoinTask(unit.source.name, self._parts(unit, stage), unit.stem))

    def result(self, unit: UnitWork) -> PartResult | None:
        return self.receipt(unit.fingerprint, PartResult)

    def run_all(
        self,
        function: Callable[..., Any],
        stage: Stage,
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
        elif function is run_part and stage.runs_foreign_templates and options.backend != "processes":
            # Nothing in this process could end a template that does not end.
            workers = 1 if options.backend == "serial" else options.workers
            options = replace(options, backend="processes", workers=workers)
        done = run_tasks(
            function,
            tasks,
            workers=options.workers,
            backend=options.backend,
            setup=partial(set_up, stage, loads=function is run_part),
            timeout=options.timeout,
            on_poison=on_poison if options.backend == "processes" else None,
            desc=desc,
            num_bytes=getattr(tasks, "num_bytes", 0) if function is run_part else 0,
            progress=options.progress,
            monitor=options.monitor,
            stopwatch=self.stopwatch,
            events=options.events,
        )
        for task, result in done:
            self._receipts.add(task.id, result)
        self._receipts.sync()

    def _slices(self, unit: UnitWork, leg: SourceLeg) -> Iterator[Task]:
        """The unit's tasks. A single one that needs no joining carries the unit's own fingerprint."""
        parts: Sequence[tuple[Any, ...]] = [unit.inputs]
        spans = tuple(source for source in unit.inputs if isinstance(source, Span))
        if spans:
            parts = cut_for_tasks(Unit(spans), self._plan.recipe.slice_bytes, unit.source.cell_sizes)
        is_whole = len(parts) == 1 and (leg.write is None or leg.write.format != "parquet")
        for number, part in enumerate(parts):
            name = unit.fingerprint if is_whole else fingerprint.of(unit.fingerprint, number, self._cut_name(part))
            # What a later leg reads need not be joined: each task writes a stream of its own.
            complete = is_whole or leg.write is None
            yield Task(name, PartTask(unit.source.name, part, f"{WORK}/work/{name}", complete=complete))

    @staticmethod
    def _cut_name(part: Sequence[Any]) -> list[Any]:
        return [source.identity() for source in part if isinstance(source, Span)]

    def _parts(self, unit: UnitWork, stage: Stage) -> tuple[PartResult, ...]:
        """What the unit's tasks came to."""
        tasks = self._slices(unit, stage.legs[unit.source.name])
        results = [self.receipt(task.id, PartResult) for task in tasks]
        return tuple(result for result in results if result is not None)

    def receipt(self, name: str, kind: type[T]) -> T | None:
        """What was done under this name, if its files are still there."""
        for receipts in (self._receipts, self._finished):
            result = receipts.get(name, kind)
            if result is not None and _is_there(self._plan.output, result):
                return None if receipts is self._finished and not _are_sound(self._plan.output, result) else result
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


class UnitResults:
    """What units came to, in order, from their receipts: decoded all at once they would be ten times as large."""

    def __init__(self, runner: LegRunner, units: Sequence[UnitWork]) -> None:
        self._runner = runner
        self._units = units

    def __iter__(self) -> Iterator[PartResult]:
        for unit in self._units:
            result = self._runner.result(unit)
            if result is None:
                raise GristmillError(
                    f"files of the work folder have gone while the run needed them: {unit.stem}*",
                    help="run the same command again: it makes them anew",
                )
            yield result


def _is_there(root: Path, result: object) -> bool:
    """Whether a result's files have the sizes that it says."""
    files: list[tuple[str, int]] = []
    if isinstance(result, PartResult):
        for part in (*result.parts, *result.held, *result.leftovers):
            files += [(file.path, file.bytes) for file in (part.data, part.origins) if file is not None]
        files += [(file.path, file.bytes) for file in (*result.quarantine, *result.dropped)]
    elif isinstance(result, UnpackResult):
        files = result.stored_files()
    elif (stored := getattr(result, "files", None)) is not None:
        files = [(file.path, file.bytes) for file in stored()]
    return all(_size(path_below(root, path)) == size for path, size in files)


def _are_sound(root: Path, result: object) -> bool:
    """Whether what a finished run has kept for an update is what it was: nobody has looked after it since."""
    leftovers = result.leftovers if isinstance(result, PartResult) else []
    return all(file_checksum(part.data.below(root)) == part.data.xxh3 for part in leftovers)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
