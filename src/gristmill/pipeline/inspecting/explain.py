"""One record through a recipe: what each step measures in it and does to it, and where the record would be dropped.

Later steps see a record that a step drops all the same, with the columns that the step would have added, so that one
call shows the outcome at every step. Cost: a plan of the recipe, and reading the file up to the record.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK, ORIGIN, RECORD, SPLIT, TEXT, TRAINED
from gristmill.core.step import Finding, find_untrusted_template
from gristmill.pipeline.inspecting.find import find_record
from gristmill.pipeline.inspecting.trace import RemovedDocument, find_removed_parts
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.planning.trials import run_with_limits
from gristmill.pipeline.stages.outputs.dropped import parse_positions
from gristmill.readers.source import open_reader
from gristmill.shards.dataset import Origin, open_dataset
from gristmill.shards.stored_files import MANIFEST
from gristmill.steps.column_names import list_value_columns
from gristmill.steps.edit_columns import put_columns
from gristmill.storage.locations import parse_location

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import QuarantinedRecord, SourceFile, StepResult
    from gristmill.core.step import LocalStep
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.stages.outputs.dropped import InputPosition

KEPT, CHANGED, DROPPED, QUARANTINED, NOT_KNOWN, NOT_TRIED = (
    "kept",
    "changed",
    "dropped",
    "quarantined",
    "not known: it depends on the other records",
    "not tried: it needs columns that an earlier step would have added",
)


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one step for the record."""

    step: str
    outcome: str
    reason: str = ""
    findings: list[Finding] = []
    counts: dict[str, int] = {}
    """Other things that the step counted, such as the tokens that it cut."""


class ChatExample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the examples that `render` makes of a chat."""

    spans: list[tuple[str, bool]]
    """Its text in pieces, each with whether it is trained."""
    tokens: int | None = None
    """None: no step counts them, or one has dropped some of the examples."""
    trained_tokens: int | None = None
    split: str | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and its outcome at each step."""

    source: str
    file: str
    number: int
    """Which record of the file it is, from 0."""
    position: int
    record: dict[str, Any]
    steps: list[StepOutcome]
    leaves_at: str | None
    """The first step that drops or quarantines it; None: it stays to the end, as far as is known."""
    is_certain: bool = True
    """Whether every step up to there has been tried: what a barrier decides depends on the other records."""
    examples: list[ChatExample] = []
    """Of a chat: what it is rendered to."""
    removed: RemovedDocument | None = None
    """The entry of the finished dataset, if `deduplicate` has removed the record there."""

    @property
    def undecided_at(self) -> str | None:
        """The first step that was not tried, or that decides by all records."""
        return next((outcome.step for outcome in self.steps if outcome.outcome in (NOT_KNOWN, NOT_TRIED)), None)


def explain(
    recipe: Recipe, place: str, number: int = 0, *, wanted: str = "", tell: Callable[[str], object] = str
) -> Explanation:
    """Send one record through the recipe.

    Args:
        recipe: The recipe.
        place: A file of a source; or a position as in files of dropped records (`web:a.jsonl@1234`); or the folder of a
            finished dataset.
        number: Which record of the file, from 0; or which record of the dataset, which is followed back to its input.
        wanted: The value to look for, as `id=abc`, instead of a place: the first record of the inputs that has it.
        tell: Called with what is being done.
    """
    position = None
    if not wanted and (parse_location(place) / MANIFEST).is_file():
        dataset = open_dataset(place)
        if not 0 <= number < len(dataset):
            raise UsageError(f"there is no record {number}: {place} has {len(dataset):,}")
        origin = dataset.origins(number)[0]
        position = origin.position
        place = origin.path
    plan = make_plan(recipe, tell=tell)
    if wanted:
        files = [(source, file) for source in plan.sources for file in source.files]
        index, position = find_record(wanted, [(source.read, file) for source, file in files], tell)
        source, file = files[index]
    else:
        source, file, position = _find_place(plan.sources, recipe, place, position)
    record = _read_record(source, file, number, position)
    if record is None and position is not None:
        raise UsageError(
            f"there is no record at position {position:,} of {file.path}",
            help="the file has changed since the position was noted, or no record begins there",
        )
    if record is None:
        raise UsageError(f"there is no record {number} in {file.path}", help="records are counted from 0")
    number, position, batch = record
    if not isinstance(batch, pa.RecordBatch):
        reading = StepOutcome(step="read", outcome=QUARANTINED, reason=f"{batch.reason}: {batch.message}")
        return Explanation(
            source=source.name,
            file=file.path,
            number=number,
            position=position,
            record={},
            steps=[reading],
            leaves_at="read",
        )
    removals = _find_known_removals(plan, Origin(source.name, file.path, position, 0))
    outcomes, examples = _try_all_steps(source, batch, recipe.seed, removals)
    words = [outcome.outcome for outcome in outcomes]
    end = next((index for index, word in enumerate(words) if word in (DROPPED, QUARANTINED)), None)
    return Explanation(
        source=source.name,
        file=file.path,
        number=number,
        position=position,
        record=_record_values(batch),
        steps=outcomes,
        leaves_at=None if end is None else outcomes[end].step,
        examples=examples,
        is_certain=not {NOT_KNOWN, NOT_TRIED} & set(words[:end]),
        removed=next((document for parts in removals.removed for document in parts.values()), None),
    )


Trials = tuple[list[StepOutcome], list[ChatExample]]
"""The outcome of each step, and the examples of a chat."""


@dataclass(frozen=True, slots=True)
class _KnownRemovals:
    """The removals that a finished run knows: which record is a copy of which shows only when all were compared."""

    removed: list[dict[int, RemovedDocument]]
    """For each `deduplicate`, what it has removed of the record, by part; empty without a finished run."""
    is_current: bool
    """Whether the dataset is what the recipe would make of its inputs now."""

    def find_outcome(self, number: int, step: str, batch: pa.RecordBatch, *, is_there: bool) -> StepOutcome:
        """Find what the `number`th `deduplicate` does to the parts in a batch; `is_there`: none was dropped before."""
        parts = batch.column(ORIGIN).field("part").to_pylist()
        removed = self.removed[number] if number < len(self.removed) else {}
        reasons = [removed[part].reason for part in parts if part in removed]
        since = "" if self.is_current else ", in the finished dataset; the recipe or its inputs have changed since"
        if len(reasons) == len(parts):
            return StepOutcome(step=step, outcome=DROPPED, reason=reasons[0] + since)
        if reasons:
            reason = f"{len(reasons)} of {len(parts)} parts are dropped as {reasons[0]}{since}"
            return StepOutcome(step=step, outcome=CHANGED, reason=reason)
        return StepOutcome(step=step, outcome=KEPT if self.is_current and is_there else NOT_KNOWN)


def _find_known_removals(plan: Plan, origin: Origin) -> _KnownRemovals:
    if not (plan.output / MANIFEST).is_file():
        return _KnownRemovals([], is_current=False)
    dataset = open_dataset(plan.output)
    is_current = plan.fingerprint is not None and plan.fingerprint == dataset.manifest.fingerprint
    return _KnownRemovals(find_removed_parts(dataset, origin), is_current)


def _find_place(
    sources: tuple[SourcePlan, ...], recipe: Recipe, place: str, position: int | None
) -> tuple[SourcePlan, SourceFile, int | None]:
    """Find the source and the file of a place, and the position if the place names one."""
    if position is None and not parse_location(place).exists():
        positions = parse_positions(place, [source.name for source in sources])
        if positions:
            return *_find_position(sources, recipe, positions), positions[0].position
    return *_find_file(sources, recipe, place), position


def _find_position(
    sources: tuple[SourcePlan, ...], recipe: Recipe, positions: list[InputPosition]
) -> tuple[SourcePlan, SourceFile]:
    """Find the first of the positions whose file a source of the recipe reads."""
    for position in positions[:-1]:
        named = tuple(source for source in sources if position.is_in_source(source.name))
        with suppress(UsageError):
            return _find_file(named, recipe, position.file)
    return _find_file(sources, recipe, positions[-1].file)


def _find_file(sources: tuple[SourcePlan, ...], recipe: Recipe, place: str) -> tuple[SourcePlan, SourceFile]:
    """Find the source that reads a file, by its path from here, from the recipe's folder, or from the source's root."""
    paths = {place, recipe.path(place), str(Path(place).absolute())}
    known_names = {}
    for source in sources:
        for file in source.files:
            if file.path in paths or file.relative == place:
                return source, file
            known_names[file.relative] = file.path
    nearest = find_nearest(place, known_names)
    raise UsageError(
        f"no source of the recipe reads {place}",
        help=f'did you mean "{nearest}"?' if nearest else f"it reads {', '.join(list(known_names)[:3])}, …",
    )


def _read_record(
    source: SourcePlan, file: SourceFile, number: int, position: int | None
) -> tuple[int, int, pa.RecordBatch | QuarantinedRecord] | None:
    """Read a record by its number or position: both, and it alone in a batch, or why it cannot be read.

    Records that cannot be read are numbered, too.
    """
    num_before = 0
    for cell in open_reader(source.read, file, source.schema).read_cells():
        positions = cell.batch.column(ORIGIN).field("position").to_pylist()
        records: list[tuple[int, int | QuarantinedRecord]] = [(at, row) for row, at in enumerate(positions)]
        records += [(quarantined.position, quarantined) for quarantined in cell.quarantined]
        records.sort(key=lambda item: item[0])
        for index, (at, record) in enumerate(records):
            if (num_before + index == number) if position is None else at == position:
                return num_before + index, at, cell.batch.slice(record, 1) if isinstance(record, int) else record
        num_before += len(records)
    return None


def _try_all_steps(source: SourcePlan, batch: pa.RecordBatch, seed: int, removals: _KnownRemovals) -> Trials:
    """Send the record through every step; in a worker with limits if one of them runs an untrusted template."""
    arguments = source, batch, seed, removals
    steps = [step for stage in source.stages for step in stage.steps]
    templates = [*filter(None, map(find_untrusted_template, steps))]
    if not templates:
        return _try_steps(*arguments)
    trials: Trials = run_with_limits(lambda arguments: _try_steps(*arguments), arguments, templates[0], steps=steps)
    return trials


def _try_steps(source: SourcePlan, batch: pa.RecordBatch, seed: int, removals: _KnownRemovals) -> Trials:
    outcomes: list[StepOutcome] = []
    examples: list[ChatExample] = []
    num_deduplicated = 0
    is_there = True
    for stage in source.stages:
        for step in stage.steps:
            missing = [name for name in step.columns_needed() if name not in batch.schema.names]
            if missing:
                outcomes.append(StepOutcome(step=step.name, outcome=NOT_TRIED))
                continue
            outcome, batch = _try_step(step, batch, seed)
            is_there &= outcome.outcome in (KEPT, CHANGED)
            if is_there:
                examples = _list_examples(batch, examples)
            if not step.traits.is_added_by_plan:
                outcomes.append(outcome)
        if stage.global_step is not None and stage.global_step.traits.lists_removals:
            outcome = removals.find_outcome(num_deduplicated, stage.global_step.name, batch, is_there=is_there)
            num_deduplicated += 1
            is_there &= outcome.outcome in (KEPT, CHANGED)
            outcomes.append(outcome)
        elif stage.global_step is not None and not stage.global_step.traits.is_added_by_plan:
            outcomes.append(StepOutcome(step=stage.global_step.name, outcome=NOT_KNOWN))
        if stage.global_step is not None:
            sample_step = stage.global_step.sample_step()
            batch = batch if sample_step is None else sample_step.apply(batch, seed).batch
    return outcomes, examples


def _list_examples(batch: pa.RecordBatch, examples: list[ChatExample]) -> list[ChatExample]:
    """List the examples of a chat after a step: their text once it is rendered, their tokens once they are counted."""
    names, rows = batch.schema.names, batch.to_pylist()
    if TRAINED in names and TEXT in names:
        return [ChatExample(spans=_mark_trained(row[TEXT], row[TRAINED] or []), split=row.get(SPLIT)) for row in rows]
    if LOSS_MASK not in names or len(rows) != len(examples):
        return examples
    return [
        msgspec.structs.replace(
            example, tokens=len(row[INPUT_IDS]), trained_tokens=sum(row[LOSS_MASK]), split=row.get(SPLIT)
        )
        for example, row in zip(examples, rows, strict=True)
    ]


def _mark_trained(text: str, places: Sequence[int]) -> list[tuple[str, bool]]:
    """Cut a text at the byte ranges that are trained.

    >>> _mark_trained("Hé: yes.", [5, 8])
    [('Hé: ', False), ('yes', True), ('.', False)]
    """
    data = text.encode()
    ends = [0, *places, len(data)]
    pieces = [(data[start:end].decode(), number % 2 == 1) for number, (start, end) in enumerate(pairwise(ends))]
    return [piece for piece in pieces if piece[0]]


def _try_step(step: LocalStep, batch: pa.RecordBatch, seed: int) -> tuple[StepOutcome, pa.RecordBatch]:
    """Apply a step to the record; returns the outcome, and the record that the next step sees."""
    findings = step.explain(batch.slice(0, 1))
    kernel = step.load()
    kernel.begin_cell()
    result: StepResult = kernel.apply(batch, seed)
    if result.batch.num_rows:
        word = KEPT if _record_values(result.batch) == _record_values(batch) else CHANGED
        counts = {name: count for name, count in result.counters.items() if count}
        return StepOutcome(step=step.name, outcome=word, findings=findings, counts=counts), result.batch
    if result.quarantined:
        word, reason = QUARANTINED, f"{result.quarantined[0].reason}: {result.quarantined[0].message}"
    else:
        word, reason = DROPPED, ", ".join(result.dropped)
    outcome = StepOutcome(step=step.name, outcome=word, reason=reason, findings=findings)
    return outcome, _add_missing_columns(step, batch, findings)


def _add_missing_columns(step: LocalStep, batch: pa.RecordBatch, findings: list[Finding]) -> pa.RecordBatch:
    """Add the columns that a step would have added to a record that it drops; their values are its findings."""
    values = {name: finding.value for finding in findings for name in (finding.name, f"score_{finding.name}")}
    added = step.columns_added()
    if not any(name in values for name in added):
        return batch
    schema = step.output_schema(batch.schema)
    columns = {name: pa.array([values.get(name)], schema.field(name).type) for name in added}
    extended, quarantined = put_columns(step, batch, columns)
    return batch if quarantined else extended


def _record_values(batch: pa.RecordBatch) -> dict[str, Any]:
    """Read the values of the record as they are now."""
    names = [field.name for field in list_value_columns(batch.schema) if field.name not in (RECORD, SPLIT)]
    values: dict[str, Any] = batch.slice(0, 1).select(names).to_pylist()[0] if names else {}
    return values
