"""The protocol of barriers: what happens between two stages, when all records of the first have been seen.

A global step ends a stage. `execution.py` gathers the sources that come to the same step, makes the step's barrier
(`table.py`), and asks it once for the units of the next stage. A barrier may run tasks of its own; each leaves a
receipt, so a run that was killed resumes between them. All barriers act on training records; records of other splits
pass as they are.

To add a global step, write its step file, its barrier file, and one line in `table.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gristmill.core.splits import TRAIN
from gristmill.pipeline.stages.stored import StoredInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gristmill.core.step import LocalStep
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.outputs.split_files import Annotator
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.slices.slice_task import SliceResult
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.shards.manifests.step_outcomes import Decontaminated, Deduplicated
    from gristmill.shards.manifests.stored_files import StoredFile


@dataclass(frozen=True, slots=True)
class BarrierSource:
    """A source at a barrier: the units of the stage that has ended, and the result of each."""

    name: str
    units: Collection[StageUnit]
    results: Iterable[SliceResult]
    """One result for each unit, in order. Every iteration reads them from their receipts again."""

    def unit_results(self) -> Iterator[tuple[StageUnit, SliceResult]]:
        """Iterate over the units with their results."""
        return zip(self.units, self.results, strict=True)


@dataclass(frozen=True, slots=True)
class BarrierRun:
    """The run that a barrier belongs to: its plan, and the means to run tasks."""

    plan: Plan
    runner: StageRunner
    context: StageContext
    """The context of the stage that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierOutcome:
    """The decision of a barrier: the units of the next stage, and how their records enter it."""

    units: Mapping[str, Iterable[StageUnit]]
    """Units of the next stage by source, iterated once; fingerprints tell what the barrier did to their records."""
    entry_account: str | None
    """Name of the account that counts the records coming in; None: the prepended steps account for them."""
    entry_counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By source: counters of that account that depend on all units, so that no receipt of one may hold them."""
    prepended_steps: tuple[LocalStep, ...] = ()
    """Local steps that the next stage runs before its own."""
    deduplicated: Deduplicated | None = None
    """Entry of the manifest about the duplicates that were removed."""
    decontaminated: Decontaminated | None = None
    """Entry of the manifest about the benchmark items that were found."""
    evidence: Mapping[str, list[StoredFile]] = field(default_factory=dict)
    """By source: files of JSON lines for `dropped/`, whether or not the recipe keeps dropped records."""


class Barrier(Protocol):
    """Decides what becomes of the records that have come to one global step."""

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        """Make the units of the next stage.

        Called once in a run, in the parent process, with all sources that come to an equal step. Must give the same
        units whatever the number of workers and however often the run was stopped.
        """


@runtime_checkable
class AnnotatingBarrier(Barrier, Protocol):
    """A barrier whose work begins in the stage before it, on each unit as it is written."""

    @property
    def annotator(self) -> Annotator:
        """What notes in the stage's tasks what the barrier has to know.

        A file may come without its annotation (`SplitFile.annotation`): when an earlier run wrote it for another step.
        Then the barrier has to read the records itself.
        """


def list_stored_inputs(result: SliceResult) -> list[StoredInput]:
    """List what a unit of an earlier stage left in the work folder, one input for each file."""
    return [StoredInput(file.data.path, file.rows, file.split) for file in result.split_files]


def list_training_inputs(result: SliceResult) -> list[StoredInput]:
    """List the files with training records among `list_stored_inputs`."""
    return [stored_input for stored_input in list_stored_inputs(result) if stored_input.split == TRAIN]
