"""The tasks of a stage: the slices of its units, and for each unit the joining of its slices as soon as all are done.

Tasks are made when their turn comes: a list would hold a kilobyte for each, and more with results. Only units with
slices under way are held. A unit that is joined is joined before new slices are started, so that the last joins run
alongside the last slices and not after them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gristmill.core.recipe import AUTO
from gristmill.engine.tasks import NOT_READY, Task
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.units import (
    Span,
    Unit,
    UnitCut,
    choose_cut,
    cut_into_slices,
)
from gristmill.pipeline.stages.join import JoinTask, merge_unjoined
from gristmill.pipeline.stages.stage_context import SliceResult, SliceTask, measure_input
from gristmill.pipeline.work_folder import work_path
from gristmill.storage.locations import is_remote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import Literal

    from gristmill.engine.tasks import NotReady
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.pipeline.stages.stored import UnitInput


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

    @property
    def size(self) -> int:
        """How much input it has."""
        return sum(map(measure_input, self.inputs))


class ReceiptBook(Protocol):
    """The receipts that tasks are checked against, and added to."""

    def find_slice(self, name: str) -> SliceResult | None:
        """Find the result of a slice or a unit, if it is done and its files are there."""

    def find_cut(self, name: str) -> UnitCut | None:
        """Find the cut of a unit that an earlier run has started."""

    def add(self, name: str, result: SliceResult | UnitCut) -> None:
        """Write down a result or a cut, after all that was added before it; a result when its files are on the disk."""

    def check_files(self, name: str, result: SliceResult) -> None:
        """Raise `GristmillError` if files of a result have disappeared."""


@dataclass(slots=True)
class _StartedUnit:
    """A unit of which slices are under way."""

    unit: StageUnit
    cut: UnitCut
    slices: list[Task]
    results: dict[str, SliceResult] = field(default_factory=dict)
    """Results of slices, by name."""
    is_noted: bool = False
    """Whether its cut has a receipt."""


class CutChooser:
    """Chooses how units are cut: by the recipe's `slice_bytes`, or so that all workers are busy to the end.

    On a store, joining reads all that the slices of a unit have written and writes it again, which takes longer than
    waiting for the last units. So they stay whole where there is one for each worker, and no step is slow.
    """

    def __init__(
        self, slice_bytes: int | Literal["auto"], num_workers: int, stage: StageContext, num_units: int
    ) -> None:
        self._slice_bytes = slice_bytes
        self._has_unit_for_each = is_remote(stage.root) and num_units >= num_workers
        self._num_workers = num_workers
        self._stages = stage.sources

    @property
    def keeps_noted_cuts(self) -> bool:
        """Whether a unit that an earlier run has started keeps its slices; a size that is asked for is obeyed."""
        return self._slice_bytes == AUTO

    def choose(self, unit: StageUnit, bytes_after: int) -> UnitCut:
        """Choose the cut of a unit, which is followed by this much input in the stage."""
        name = unit.source.name
        stage, slice_bytes = self._stages[name], self._slice_bytes
        is_slow = any(step.is_slow for step in stage.steps)
        if slice_bytes == AUTO and self._has_unit_for_each and stage.output.needs_join(2) and not is_slow:
            slice_bytes = max(unit.size, stage.layout.unit_bytes)
        return choose_cut(slice_bytes, self._num_workers, bytes_after, stage.layout)


class UnitTasks:
    """The tasks of units that have no receipt yet. To be iterated while `finish_task` is told of every result."""

    def __init__(
        self, units: Collection[StageUnit], stage: StageContext, chooser: CutChooser, receipts: ReceiptBook
    ) -> None:
        self._units = units
        self._stage = stage
        self._chooser = chooser
        self._receipts = receipts
        self._started: dict[str, _StartedUnit] = {}
        """Units with slices under way, by the names of these slices."""
        self._to_join: deque[_StartedUnit] = deque()
        self.num_slices, self._num_joins, self.num_bytes = self._measure()

    def __len__(self) -> int:
        return self.num_slices + self._num_joins

    def __iter__(self) -> Iterator[Task | NotReady]:
        for started in self._cut_units():
            missing = self._find_missing(started)
            self._started |= dict.fromkeys((task.id for task in missing), started)
            if not missing:
                self._end_slices(started)
            for task in missing:
                yield from self._take_joins()
                yield task
        while self._started or self._to_join:
            yield from self._take_joins()
            if self._started:
                yield NOT_READY

    def finish_task(self, task: Task, result: SliceResult) -> None:
        """Write the receipt of a task. The last one of a unit's slices makes its joining ready."""
        started = self._started.pop(task.id, None)
        if started is None or task.id == started.unit.fingerprint:  # a join, or a unit that is one slice
            self._receipts.add(task.id, result)
            return
        if not started.is_noted:
            # Before its first slice: a run that resumes finds no slice without the cut that it belongs to.
            self._receipts.add(_name_cut(started.unit), started.cut)
            started.is_noted = True
        self._receipts.add(task.id, result)
        started.results[task.id] = result
        if len(started.results) == len(started.slices):
            self._end_slices(started)

    def list_unjoined(self) -> Iterator[tuple[str, SliceResult]]:
        """Iterate over the results of slices whose unit is not done, each with the name of its source."""
        for started in {id(started): started for started in (*self._started.values(), *self._to_join)}.values():
            for result in started.results.values():
                yield started.unit.source.name, result

    def _measure(self) -> tuple[int, int, int]:
        """Count the slices and the joins that have to be run, and the bytes of the slices."""
        num_slices = num_joins = num_bytes = 0
        for started in self._cut_units():
            sizes = [task.payload.size for task in self._find_missing(started)]
            num_slices += len(sizes)
            num_joins += self._must_join(started)
            num_bytes += sum(sizes)
        return num_slices, num_joins, num_bytes

    def _cut_units(self) -> Iterator[_StartedUnit]:
        """Cut all units in order: as an earlier run did, or by what is left of the stage."""
        bytes_after = sum(unit.size for unit in self._units)
        for unit in self._units:
            bytes_after -= unit.size
            noted = self._receipts.find_cut(_name_cut(unit)) if self._chooser.keeps_noted_cuts else None
            cut = noted or self._chooser.choose(unit, bytes_after)
            yield _StartedUnit(unit, cut, self._cut_into_slices(unit, cut), is_noted=noted is not None)

    def _cut_into_slices(self, unit: StageUnit, cut: UnitCut) -> list[Task]:
        """Cut a unit into tasks. A single slice that needs no joining has the unit's own fingerprint as its name.

        Slices of one unit need names that differ from the unit's, because each has a receipt. They tell
        where the unit was cut: receipts of slices are of no use to a run with another cut.
        """
        slices: Sequence[tuple[UnitInput, ...]]
        spans = tuple(span for span in unit.inputs if isinstance(span, Span))
        if spans:
            slices = cut_into_slices(Unit(spans), cut, unit.source.cell_sizes, unit.source.layout.cell_bytes)
        else:
            slices = _group_inputs(unit, cut)
        is_unit = len(slices) == 1 and not self._stage.sources[unit.source.name].output.needs_join(1)
        tasks = []
        for number, inputs in enumerate(slices):
            identities = [span.identity() for span in inputs if isinstance(span, Span)]
            name = unit.fingerprint if is_unit else fingerprint.of(unit.fingerprint, number, len(slices), identities)
            tasks.append(Task(name, SliceTask(unit.source.name, inputs, work_path(name), len(slices))))
        return tasks

    def _must_join(self, started: _StartedUnit) -> bool:
        return self._stage.sources[started.unit.source.name].output.needs_join(len(started.slices))

    def _end_slices(self, started: _StartedUnit) -> None:
        """Have a unit joined whose slices are done; if there is nothing to do for a worker, write its receipt."""
        if self._must_join(started):
            self._to_join.append(started)
        else:
            self._receipts.add(started.unit.fingerprint, merge_unjoined(self._list_results(started)))

    def _take_joins(self) -> Iterator[Task]:
        while self._to_join:
            started = self._to_join.popleft()
            unit = started.unit
            yield Task(unit.fingerprint, JoinTask(unit.source.name, self._list_results(started), unit.stem))

    def _find_missing(self, started: _StartedUnit) -> list[Task]:
        """Find the slices of a unit that have to be run. The results of the others are kept for its joining."""
        for task in started.slices:
            result = self._receipts.find_slice(task.id)
            if result is not None:
                started.results[task.id] = result
        return [task for task in started.slices if task.id not in started.results]

    def _list_results(self, started: _StartedUnit) -> tuple[SliceResult, ...]:
        """List the results of a unit's slices, in order."""
        for name, result in started.results.items():
            self._receipts.check_files(name, result)
        return tuple(started.results[task.id] for task in started.slices)


def _name_cut(unit: StageUnit) -> str:
    return fingerprint.of(unit.fingerprint, "cut")


def _group_inputs(unit: StageUnit, cut: UnitCut) -> list[tuple[UnitInput, ...]]:
    """Group the stored streams of a unit into slices; a stream, which is what one slice has left, is never cut."""
    if cut.min_bytes == cut.max_bytes:
        return [unit.inputs]
    groups: list[list[UnitInput]] = [[]]
    bytes_left, num_bytes = unit.size, 0
    for stored in unit.inputs:
        size = measure_input(stored)
        if groups[-1] and num_bytes + size > cut.choose_size(bytes_left):
            bytes_left -= num_bytes
            groups.append([])
            num_bytes = 0
        groups[-1].append(stored)
        num_bytes += size
    return [tuple(group) for group in groups]
