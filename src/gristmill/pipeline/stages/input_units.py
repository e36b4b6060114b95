"""The units of a source's first stage, from its files. Large compressed files are unpacked on the way.

Where a `limit` needs only the first records, files are unpacked and read only as far as it needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.engine.tasks import Task
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.units import CELLS_PER_UNIT, LAYOUT_VERSION, make_units
from gristmill.pipeline.stages.stored import SIZES_ONLY
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.pipeline.stages.unpack import UnpackResult, UnpackTask, run_unpack
from gristmill.pipeline.work_folder import stored_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.records import SourceFile
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.sources.source_plan import SourcePlan
    from gristmill.pipeline.planning.units import Span
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.stage_context import StageContext


class InputUnits:
    """Makes the first units of all sources; `stage` is the context of the first stage."""

    def __init__(self, plan: Plan, runner: StageRunner, stage: StageContext, salt: str) -> None:
        self._plan = plan
        self._runner = runner
        self._stage = stage
        self._salt = salt

    def unpack_files(self) -> None:
        """Unpack all large compressed files of sources that are read to their end."""
        self._run_unpack_tasks(
            [
                self._make_unpack_task(source, file, None)
                for source in self._plan.sources
                for file in source.files
                if source.must_unpack(file) and not source.is_limited
            ]
        )

    def prepare_units(self, source: SourcePlan) -> Iterator[StageUnit]:
        """Make the units of a source in path order; files of a limited source are unpacked when a unit needs them."""
        common = fingerprint.of(
            self._salt,
            LAYOUT_VERSION,
            self._plan.recipe.seed,
            source.name,
            source.read_parameters,
            source.schema.to_string(),
            fingerprint.describe_steps(source.stages[0].steps),
            fingerprint.describe_steps(self._plan.output_steps) if source.stages[0].global_step is None else None,
            self._plan.versions,
            self._plan.recipe.keep_dropped,
            self._plan.recipe.keep_scores,
        )
        ending = SIZES_ONLY if source.reads_again else ""
        scale = self._plan.recipe.unit_scale
        for unit in make_units(source.files, source.cell_sizes, lambda file: self._find_pieces(source, file), scale):
            name = fingerprint.of(common, [span.identity() for span in unit.spans])
            yield StageUnit(source, f"{name}{ending}", unit.spans)

    def _find_pieces(self, source: SourcePlan, file: SourceFile) -> Iterator[Span] | None:
        """Find what a compressed file was unpacked to; None if it is not unpacked."""
        return self._unpack_into_spans(source, file) if source.must_unpack(file) else None

    def _unpack_into_spans(self, source: SourcePlan, file: SourceFile) -> Iterator[Span]:
        num_spans = 0
        # The first unit alone is often all that a limit needs.
        for max_cells in (CELLS_PER_UNIT, None) if source.is_limited else (None,):
            task = self._make_unpack_task(source, file, max_cells)
            self._run_unpack_tasks([task])
            result = self._runner.find_receipt(task.id, UnpackResult)
            if result is not None:
                spans = result.make_spans(file, self._stage.work)
                yield from spans[num_spans:]
                num_spans = len(spans)

    def _make_unpack_task(self, source: SourcePlan, file: SourceFile, max_cells: int | None) -> Task:
        name = fingerprint.of("unpack", source.read_parameters, file.identity, self._plan.versions, max_cells)
        return Task(name, UnpackTask(source.name, file, stored_path(name), max_cells))

    def _run_unpack_tasks(self, tasks: list[Task]) -> None:
        undone = [task for task in tasks if self._runner.find_receipt(task.id, UnpackResult) is None]
        self._runner.run_tasks(run_unpack, self._stage, undone, "unpacking")
