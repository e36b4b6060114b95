"""A recipe's steps cut into legs: what runs in one pass, from barrier to barrier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.steps.deduplicate.deduplicate import AddCopyCounts, Deduplicate
from gristmill.steps.records.columns import require_column
from gristmill.steps.records.source_column import SOURCE, NameSource
from gristmill.steps.split import AssignSplit, Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from gristmill.core.step import Step


@dataclass(frozen=True, slots=True)
class Stage:
    """Local steps that run in one pass, and the barrier that they end at (None: the output)."""

    steps: tuple[LocalStep, ...]
    barrier: Step | None

    @property
    def all_steps(self) -> tuple[Step, ...]:
        return self.steps if self.barrier is None else (*self.steps, self.barrier)


def split_into_stages(steps: Sequence[Step]) -> tuple[Stage, ...]:
    """The steps in order, cut behind each barrier."""
    legs: list[Stage] = []
    local: list[LocalStep] = []
    for step in steps:
        if step.is_global:
            legs.append(Stage(tuple(local), step))
            local = []
        elif isinstance(step, LocalStep):
            local.append(step)
        else:
            raise UsageError(f"step {step.name} cannot stand here")
    return (*legs, Stage(tuple(local), None))


def find_stage_schemas(schema: pa.Schema, legs: Sequence[Stage]) -> tuple[pa.Schema, ...]:
    """The columns after each leg's local steps, from those that are read."""
    schemas = []
    for leg in legs:
        for step in leg.steps:
            for column in step.columns_needed():
                require_column(step.name, column, schema)
            schema = step.output_schema(schema)
        schemas.append(schema)
        if leg.barrier is not None:
            schema = leg.barrier.output_schema(schema)  # type: ignore[attr-defined]
    return tuple(schemas)


def list_source_column_notes(legs: Sequence[Stage], schemas: Sequence[pa.Schema]) -> list[str]:
    """Where records have a column of the name that tells the source of records in one lane."""
    joins = [isinstance(leg.barrier, GlobalStep) and leg.barrier.joins_sources for leg in legs]
    if True not in joins or SOURCE not in schemas[joins.index(True)].names:
        return []
    return [f'records have a column "{SOURCE}" of their own, which stays: which source they are from, origins say']


def collect_sample_steps(legs: Sequence[Stage]) -> tuple[LocalStep, ...]:
    """What sample records go through: local steps, and what barriers do where that shows in the columns."""
    return tuple(step for leg in legs for step in _list_sample_steps(leg))


def replace_steps(legs: Sequence[Stage], steps: Sequence[LocalStep]) -> tuple[Stage, ...]:
    """The legs with these `collect_sample_steps` in place of their own."""
    found = iter(steps)
    given = [[next(found) for _ in _list_sample_steps(leg)] for leg in legs]
    return tuple(replace(leg, steps=tuple(some[: len(leg.steps)])) for leg, some in zip(legs, given, strict=True))


def select_stored_columns(legs: Sequence[Stage], sizes: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], ...]:
    """Sizes of the columns that each barrier stores, from the sizes before and after each of the sampled steps."""
    stored, place = [], 0
    for leg in legs[:-1] if sizes else ():
        stored.append(dict(sizes[place + len(leg.steps)]))
        place += len(_list_sample_steps(leg))
    return tuple(stored)


def _list_sample_steps(leg: Stage) -> tuple[LocalStep, ...]:
    if isinstance(leg.barrier, Split):
        return (*leg.steps, AssignSplit(split=leg.barrier, bounds=(0, 0)))
    if isinstance(leg.barrier, Deduplicate) and leg.barrier.count:
        return (*leg.steps, AddCopyCounts())
    if isinstance(leg.barrier, GlobalStep) and leg.barrier.joins_sources:
        return (*leg.steps, NameSource(source=""))
    return leg.steps
