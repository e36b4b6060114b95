"""One record through a recipe: what each step finds in it, what it makes of it, and where the record would leave.

A record that a step drops is shown to the steps behind it all the same, with the columns that the step would have made,
so that every verdict is seen at once. Cost: a
plan of the recipe, and reading the file up to the record.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.names import find_nearest
from gristmill.core.records import ORIGIN, RECORD, SPLIT
from gristmill.core.step import Finding  # noqa: TC001  (msgspec looks for it)
from gristmill.pipeline.inspecting.duplicate_lookup import RemovedDocument, find_removed_parts
from gristmill.pipeline.planning.input_positions import parse_positions
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.planning.trial import run_with_limits
from gristmill.shards.dataset import Origin, open_dataset
from gristmill.shards.manifest import MANIFEST
from gristmill.steps.read import open_reader
from gristmill.steps.records.columns import value_columns
from gristmill.steps.records.put_columns import put_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import QuarantinedRecord, SourceFile, StepResult
    from gristmill.core.step import GlobalStep, LocalStep
    from gristmill.pipeline.planning.input_positions import InputPosition
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan

KEPT, CHANGED, DROPPED, QUARANTINED, NOT_KNOWN, NOT_TRIED = (
    "kept",
    "changed",
    "dropped",
    "set aside",
    "not known: it depends on the other records",
    "not tried: it needs columns that an earlier step would have made",
)


class StepVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step makes of the record."""

    step: str
    verdict: str
    reason: str = ""
    findings: list[Finding] = []


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A record and its way."""

    source: str
    file: str
    position: int
    record: dict[str, Any]
    steps: list[StepVerdict]
    leaves_at: str | None
    """The first step that drops it or sets it aside; None: it stays to the end, as far as it is known."""
    is_certain: bool = True
    """Whether every step on its way has been tried: what a barrier decides depends on the other records."""
    removed: RemovedDocument | None = None
    """What the finished dataset says of it: a copy, and the document that stays for it."""

    @property
    def undecided_at(self) -> str | None:
        """The first step on its way that was not tried, or decides by all records."""
        return next((verdict.step for verdict in self.steps if verdict.verdict in (NOT_KNOWN, NOT_TRIED)), None)


def explain(recipe: Recipe, place: str, number: int = 0) -> Explanation:
    """Send one record through the recipe.

    `place` is a file, and the record its `number`th; or a place as files of dropped records give it
    (`web:a.jsonl@1234`); or a finished dataset, and the record the input that its `number`th came from.
    """
    position = None
    if (Path(place) / MANIFEST).is_file():
        dataset = open_dataset(place)
        if not 0 <= number < len(dataset):
            raise UsageError(f"there is no record {number}: {place} has {len(dataset):,}")
        origin = dataset.origins(number)[0]
        position = origin.position
        place = origin.path
    plan = make_plan(recipe)
    if position is None and not Path(place).exists():
        places = parse_positions(place, [source.name for source in plan.sources])
    else:
        places = []
    if places:
        position = places[0].position
        source, file = _find_place(plan.sources, recipe, places)
    else:
        source, file = _find_file(plan.sources, recipe, place)
    found = _read_record(source, file, number, position)
    if found is None and position is not None:
        raise UsageError(
            f"there is no record at position {position:,} of {file.path}",
            help="the file has changed since the place was written, or the number is not where a record begins",
        )
    if found is None:
        raise UsageError(f"there is no record {number} in {file.path}", help="records are counted from 0")
    if not isinstance(found, tuple):
        reading = StepVerdict(step="read", verdict=QUARANTINED, reason=f"{found.reason}: {found.message}")
        return Explanation(
            source=source.name, file=file.path, position=found.position, record={}, steps=[reading], leaves_at="read"
        )
    batch, position = found
    finished = _find_known_removals(plan, Origin(source.name, file.path, position, 0))
    verdicts = _judge_all_steps(source, batch, recipe.seed, finished)
    way = [verdict.verdict for verdict in verdicts]
    end = next((number for number, verdict in enumerate(way) if verdict in (DROPPED, QUARANTINED)), None)
    return Explanation(
        source=source.name,
        file=file.path,
        position=position,
        record=_record_values(batch),
        steps=verdicts,
        leaves_at=None if end is None else verdicts[end].step,
        is_certain=not {NOT_KNOWN, NOT_TRIED} & set(way[:end]),
        removed=next((document for parts in finished.removed for document in parts.values()), None),
    )


@dataclass(frozen=True, slots=True)
class _KnownRemovals:
    """Who is a copy of whom is only known when all records have been seen: of a finished run."""

    removed: list[dict[int, RemovedDocument]]
    """For each `deduplicate` what it has removed of the record, by part; empty without a finished run."""
    is_current: bool
    """The dataset is what the recipe would make of its inputs now."""

    def judge_parts(self, number: int, step: str, batch: pa.RecordBatch, *, is_there: bool) -> StepVerdict:
        """What the `number`th `deduplicate` does to the parts in the batch; `is_there`: none was dropped before."""
        parts = batch.column(ORIGIN).field("part").to_pylist()
        removed = self.removed[number] if number < len(self.removed) else {}
        gone = [removed[part].reason for part in parts if part in removed]
        since = "" if self.is_current else ", in the finished dataset; the recipe or its inputs have changed since"
        if len(gone) == len(parts):
            return StepVerdict(step=step, verdict=DROPPED, reason=gone[0] + since)
        if gone:
            reason = f"{len(gone)} of {len(parts)} parts are dropped as {gone[0]}{since}"
            return StepVerdict(step=step, verdict=CHANGED, reason=reason)
        return StepVerdict(step=step, verdict=KEPT if self.is_current and is_there else NOT_KNOWN)


def _find_known_removals(plan: Plan, origin: Origin) -> _KnownRemovals:
    if not (plan.output / MANIFEST).is_file():
        return _KnownRemovals([], is_current=False)
    dataset = open_dataset(plan.output)
    is_current = plan.fingerprint is not None and plan.fingerprint == dataset.manifest.fingerprint
    return _KnownRemovals(find_removed_parts(dataset, origin), is_current)


def _find_place(
    sources: tuple[SourcePlan, ...], recipe: Recipe, places: list[InputPosition]
) -> tuple[SourcePlan, SourceFile]:
    """The first of the places that a source of the recipe has."""
    for place in places[:-1]:
        named = tuple(source for source in sources if place.is_in_source(source.name))
        with suppress(UsageError):
            return _find_file(named, recipe, place.file)
    return _find_file(sources, recipe, places[-1].file)


def _find_file(sources: tuple[SourcePlan, ...], recipe: Recipe, place: str) -> tuple[SourcePlan, SourceFile]:
    """The source that reads the file: by its path from here, from the recipe's folder, or from the source's root."""
    wanted = {place, recipe.path(place), str(Path(place).absolute())}
    known = {}
    for source in sources:
        for file in source.files:
            if file.path in wanted or file.relative == place:
                return source, file
            known[file.relative] = file.path
    meant = find_nearest(place, known)
    raise UsageError(
        f"no source of the recipe reads {place}",
        help=f'did you mean "{meant}"?' if meant else f"it reads {', '.join(list(known)[:3])}, …",
    )


def _read_record(
    source: SourcePlan, file: SourceFile, number: int, position: int | None
) -> tuple[pa.RecordBatch, int] | QuarantinedRecord | None:
    """The record alone in a batch with its position, or why it cannot be read. Bad records are counted too."""
    before = 0
    for cell in open_reader(source.read, file, source.schema).read_cells():
        positions = cell.batch.column(ORIGIN).field("position").to_pylist()
        places: list[tuple[int, int | QuarantinedRecord]] = [(at, row) for row, at in enumerate(positions)]
        places += [(bad.position, bad) for bad in cell.quarantined]
        places.sort(key=lambda item: item[0])
        for index, (at, found) in enumerate(places):
            if (before + index == number) if position is None else at == position:
                return (cell.batch.slice(found, 1), at) if isinstance(found, int) else found
        before += len(places)
    return None


def _judge_all_steps(
    source: SourcePlan, batch: pa.RecordBatch, seed: int, finished: _KnownRemovals
) -> list[StepVerdict]:
    """Of every step; in a worker with limits where one of them runs a foreign template."""
    arguments = source, batch, seed, finished
    steps = [step for leg in source.stages for step in leg.steps]
    templates = [step.untrusted_template for step in steps if step.untrusted_template]
    if not templates:
        return list(_judge_steps(*arguments))
    verdicts: list[StepVerdict] = run_with_limits(
        lambda given: list(_judge_steps(*given)), arguments, templates[0], steps=steps
    )
    return verdicts


def _judge_steps(
    source: SourcePlan, batch: pa.RecordBatch, seed: int, finished: _KnownRemovals
) -> Iterator[StepVerdict]:
    num_deduplicated = 0
    is_there = True
    for leg in source.stages:
        for step in leg.steps:
            missing = [name for name in step.columns_needed() if name not in batch.schema.names]
            if missing:
                yield StepVerdict(step=step.name, verdict=NOT_TRIED)
                continue
            verdict, batch = _judge_step(step, batch, seed)
            is_there &= verdict.verdict in (KEPT, CHANGED)
            if not step.is_added_by_plan:
                yield verdict
        if leg.barrier is not None and leg.barrier.lists_removals:
            verdict = finished.judge_parts(num_deduplicated, leg.barrier.name, batch, is_there=is_there)
            num_deduplicated += 1
            is_there &= verdict.verdict in (KEPT, CHANGED)
            yield verdict
        elif leg.barrier is not None:
            yield StepVerdict(step=leg.barrier.name, verdict=NOT_KNOWN)
        if leg.barrier is not None:
            batch = _pass_barrier(leg.barrier, batch, seed)


def _judge_step(step: LocalStep, batch: pa.RecordBatch, seed: int) -> tuple[StepVerdict, pa.RecordBatch]:
    """What a step makes of the record, and what the next one is shown."""
    findings = step.explain(batch.slice(0, 1))
    kernel = step.load()
    kernel.begin_task()
    applied: StepResult = kernel.apply(batch, seed)
    if applied.batch.num_rows:
        verdict = KEPT if _record_values(applied.batch) == _record_values(batch) else CHANGED
        return StepVerdict(step=step.name, verdict=verdict, findings=findings), applied.batch
    if applied.quarantined:
        reason = f"{applied.quarantined[0].reason}: {applied.quarantined[0].message}"
        return StepVerdict(step=step.name, verdict=QUARANTINED, reason=reason, findings=findings), _add_missing_columns(
            step, batch, findings
        )
    reason = ", ".join(applied.dropped)
    return StepVerdict(step=step.name, verdict=DROPPED, reason=reason, findings=findings), _add_missing_columns(
        step, batch, findings
    )


def _add_missing_columns(step: LocalStep, batch: pa.RecordBatch, findings: list[Finding]) -> pa.RecordBatch:
    """A record that the step drops, with the columns that it would have made: their values are what it has found."""
    found = {name: finding.value for finding in findings for name in (finding.name, f"score_{finding.name}")}
    made = step.columns_added()
    if not any(name in found for name in made):
        return batch
    schema = step.output_schema(batch.schema)
    columns = {name: pa.array([found.get(name)], schema.field(name).type) for name in made}
    kept, bad = put_columns(step, batch, columns)
    return batch if bad else kept


def _pass_barrier(barrier: GlobalStep, batch: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """The record behind a barrier, with the columns that it has there."""
    sample_step = barrier.sample_step()
    return batch if sample_step is None else sample_step.apply(batch, seed).batch


def _record_values(batch: pa.RecordBatch) -> dict[str, Any]:
    """The record's values as they now are."""
    names = [field.name for field in value_columns(batch.schema) if field.name not in (RECORD, SPLIT)]
    values: dict[str, Any] = batch.slice(0, 1).select(names).to_pylist()[0] if names else {}
    return values
