"""From a source's files to the units of its first leg. Large compressed files are unpacked on the way.

Where a `limit` will take the first records only, files are unpacked and read as far as it needs them and no further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.engine.tasks import Task
from gristmill.pipeline import fingerprint
from gristmill.pipeline.legs import UnitWork
from gristmill.pipeline.output import WORK
from gristmill.pipeline.units import CELLS_PER_UNIT, LAYOUT, make_units
from gristmill.pipeline.unpack import UnpackResult, UnpackTask, run_unpack
from gristmill.steps.limit import Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.records import SourceFile
    from gristmill.pipeline.legs import LegRunner
    from gristmill.pipeline.plan import Plan, SourcePlan
    from gristmill.pipeline.units import Span
    from gristmill.pipeline.work import Stage


class FirstUnits:
    """The units of all sources; `stage` is that of the first leg."""

    def __init__(self, plan: Plan, runner: LegRunner, stage: Stage, salt: str) -> None:
        self._plan = plan
        self._runner = runner
        self._stage = stage
        self._salt = salt

    def unpack(self) -> None:
        """All large compressed files of sources that are read to their end."""
        self._unpack(
            [
                self._task(source, file, None)
                for source in self._plan.sources
                for file in source.files
                if source.is_to_unpack(file) and not is_limited(source)
            ]
        )

    def units(self, source: SourcePlan) -> Iterator[UnitWork]:
        """In path order; those of a limited source are made ready one by one."""
        common = fingerprint.of(
            self._salt,
            LAYOUT,
            self._plan.recipe.seed,
            source.name,
            source.read_code,
            source.schema.to_string(),
            fingerprint.of_steps(source.legs[0].steps),
            fingerprint.of_steps(self._plan.output_steps) if source.legs[0].barrier is None else None,
            self._plan.versions,
            self._plan.recipe.keep_dropped,
        )
        for unit in make_units(source.files, source.cell_sizes, lambda file: self._pieces(source, file)):
            yield UnitWork(source, fingerprint.of(common, [span.identity() for span in unit.spans]), unit.spans)

    def _pieces(self, source: SourcePlan, file: SourceFile) -> Iterator[Span] | None:
        """What a compressed file was unpacked to; None if it is not."""
        return self._spans(source, file) if source.is_to_unpack(file) else None

    def _spans(self, source: SourcePlan, file: SourceFile) -> Iterator[Span]:
        num_given = 0
        # The first unit alone is often all that a limit asks for.
        for max_cells in (CELLS_PER_UNIT, None) if is_limited(source) else (None,):
            task = self._task(source, file, max_cells)
            self._unpack([task])
            result = self._runner.receipt(task.id, UnpackResult)
            if result is not None:
                spans = result.spans(file, self._plan.output)
                yield from spans[num_given:]
                num_given = len(spans)

    def _task(self, source: SourcePlan, file: SourceFile, max_cells: int | None) -> Task:
        name = fingerprint.of("unpack", source.read_code, file.identity, self._plan.versions, max_cells)
        return Task(name, UnpackTask(source.name, file, f"{WORK}/work/{name}", max_cells))

    def _unpack(self, tasks: list[Task]) -> None:
        undone = [task for task in tasks if self._runner.receipt(task.id, UnpackResult) is None]
        self._runner.run_all(run_unpack, self._stage, undone, "unpacking")


def is_limited(source: SourcePlan) -> bool:
    """Whether its first leg ends at a `limit`."""
    return isinstance(source.legs[0].barrier, Limit)
