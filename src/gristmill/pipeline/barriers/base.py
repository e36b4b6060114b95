"""The protocol of barriers: what happens between two stages, when all records of the first have been seen.

A global step ends a stage. `execution.py` gathers the sources that come to the same step, makes the step's barrier
(from the table below), and asks it once for the units of the next stage. A barrier may run separate tasks; each leaves
a receipt, so a run that was killed resumes between them. All barriers act on training records; records of other splits
pass as they are. Barriers that edit texts find the batch of each note, and replace texts, with the two functions at the
end.

The table is the only place that knows which barrier belongs to which global step. To add a step, write its step file,
its barrier file, and one line here. The barrier of a step from an installed package is the package's entry point of the
same name in `gristmill.barriers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, StepResult, select_rows
from gristmill.core.splits import TRAIN
from gristmill.core.step import LocalStep
from gristmill.pipeline.stages.stored import StoredInput
from gristmill.runtime.plugins import BARRIER, GROUPS, find_plugin
from gristmill.steps.edit_columns import put_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.step import GlobalStep
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.outputs.split_files import Annotator
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.stage_context import SliceResult, StageContext
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.shards.manifest import Decontaminated, Deduplicated, KeptBest
    from gristmill.shards.stored_files import StoredFile


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
    best: KeptBest | None = None
    """Entry of the manifest about the values of the best documents."""
    evidence: Mapping[str, list[StoredFile]] = field(default_factory=dict)
    """By source: files of JSON lines for `dropped/`, whether or not the recipe keeps dropped records."""


class Barrier(Protocol):
    """Decides what becomes of the records that have come to one global step."""

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        """Make the units of the next stage.

        Called once in a run, in the parent process, with all sources that come to an equal step. Must give the same
        units for any number of workers, however often the run was stopped.
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
    return [StoredInput(file.data, file.rows, file.split) for file in result.split_files]


def list_training_inputs(result: SliceResult) -> list[StoredInput]:
    """List the files with training records among `list_stored_inputs`."""
    return [stored_input for stored_input in list_stored_inputs(result) if stored_input.split == TRAIN]


class _EditText(LocalStep, tag="edit_text", frozen=True, kw_only=True):
    """The step in whose name texts are replaced: no column is added."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return StepResult(batch)


def pair_with_notes(
    batches: Iterable[pa.RecordBatch], notes: NDArray[Any], first_row: int
) -> Iterator[tuple[pa.RecordBatch, NDArray[Any]]]:
    """Pair each batch with its notes, whose `row` then counts from the start of the batch.

    `notes` are those of a whole unit, by `row`; the stream begins at row `first_row` of the unit.
    """
    row = first_row
    for batch in batches:
        in_batch = notes[slice(*np.searchsorted(notes["row"], [row, row + batch.num_rows]))].copy()
        in_batch["row"] -= np.uint32(row)
        yield batch, in_batch
        row += batch.num_rows


def replace_texts(
    step: str, batch: pa.RecordBatch, texts: Mapping[int, str], is_kept: NDArray[np.bool_], help: str | None = None
) -> pa.RecordBatch:
    """Replace the texts of some rows, also in the JSON records; only rows that are kept are left.

    Raises:
        UsageError: A JSON record cannot be edited; the message names the step, and `help` says what to do.
    """
    if texts:
        column = [texts.get(row, text) for row, text in enumerate(batch.column(TEXT).to_pylist())]
        batch, quarantined = put_columns(_EditText(), batch, {TEXT: pa.array(column, batch.column(TEXT).type)})
        if quarantined:
            raise UsageError(f"{step}: the text of a record cannot be edited: {quarantined[0].message}", help=help)
    return select_rows(batch, is_kept)


BARRIERS: dict[str, str] = {
    "gristmill.steps.decontaminate.decontaminate.Decontaminate": (
        "gristmill.pipeline.barriers.decontamination.DecontaminateBarrier"
    ),
    "gristmill.steps.deduplicate.deduplicate.Deduplicate": (
        "gristmill.pipeline.barriers.deduplicate.deduplication.DeduplicateBarrier"
    ),
    "gristmill.steps.deduplicate.deduplicate.DeduplicatePieces": (
        "gristmill.pipeline.barriers.duplicate_pieces.PiecesBarrier"
    ),
    "gristmill.steps.keep_best.Cap": "gristmill.pipeline.barriers.best.BestBarrier",
    "gristmill.steps.keep_best.KeepBest": "gristmill.pipeline.barriers.best.BestBarrier",
    "gristmill.steps.sampling.KeepStage": "gristmill.pipeline.barriers.limit_and_split.KeepBarrier",
    "gristmill.steps.sampling.Limit": "gristmill.pipeline.barriers.limit_and_split.LimitBarrier",
    "gristmill.steps.mix.Mix": "gristmill.pipeline.barriers.mix_barrier.MixBarrier",
    "gristmill.steps.sampling.Shuffle": "gristmill.pipeline.barriers.shuffle.ShuffleBarrier",
    "gristmill.steps.sampling.SplitByCount": "gristmill.pipeline.barriers.limit_and_split.SplitBarrier",
}
"""By the class of a global step: the class that makes its barrier from the step, imported when a recipe needs it. A
subclass has the barrier of its base."""


def make_barrier(step: GlobalStep) -> Barrier:
    """Make the barrier of a step.

    Raises:
        UsageError: No barrier is registered for the step's class.
    """
    bases = (f"{base.__module__}.{base.__qualname__}" for base in type(step).__mro__)
    home = next((BARRIERS[base] for base in bases if base in BARRIERS), None)
    make = _load_plugin_barrier(step) if home is None else _import_barrier(home)
    return make(step)


def find_annotator(step: GlobalStep) -> Annotator | None:
    """Find what notes for the step's barrier what it has to know of records, while the stage before it runs."""
    barrier = make_barrier(step)
    return barrier.annotator if isinstance(barrier, AnnotatingBarrier) else None


def _import_barrier(home: str) -> Callable[[Any], Barrier]:
    module, _, name = home.rpartition(".")
    barrier: Callable[[Any], Barrier] = getattr(import_module(module), name)
    return barrier


def _load_plugin_barrier(step: GlobalStep) -> Callable[[Any], Barrier]:
    """Load the barrier of a step that is not built in."""
    plugin = find_plugin(BARRIER, step.name)
    if plugin is None:
        raise UsageError(
            f"step {step.name} needs all records at once, and no barrier is registered for {type(step).__name__}",
            help=f"give its package an entry point {step.name} in {GROUPS[BARRIER]}, or make it a LocalStep",
        )
    loaded = plugin.load()
    if not (isinstance(loaded, type) and callable(getattr(loaded, "pass_sources", None))):
        raise plugin.make_type_error(loaded, "a class with the method pass_sources")
    return loaded
