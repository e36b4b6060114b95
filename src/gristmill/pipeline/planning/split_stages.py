"""A recipe's steps, split into stages: a stage is one pass over the records, up to the next barrier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.steps.records.columns import require_column
from gristmill.steps.records.source_column import SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from gristmill.core.step import Step


@dataclass(frozen=True, slots=True)
class Stage:
    """Local steps that run in one pass, and the global step at whose barrier they end (None: the output)."""

    steps: tuple[LocalStep, ...]
    global_step: GlobalStep | None

    @property
    def all_steps(self) -> tuple[Step, ...]:
        return self.steps if self.global_step is None else (*self.steps, self.global_step)


def split_into_stages(steps: Sequence[Step]) -> tuple[Stage, ...]:
    """Split the steps behind each global step."""
    stages: list[Stage] = []
    local: list[LocalStep] = []
    for step in steps:
        if isinstance(step, GlobalStep):
            stages.append(Stage(tuple(local), step))
            local = []
        elif isinstance(step, LocalStep):
            local.append(step)
        else:
            raise UsageError(f"step {step.name} cannot be used here")
    return (*stages, Stage(tuple(local), None))


def find_stage_schemas(schema: pa.Schema, stages: Sequence[Stage]) -> tuple[pa.Schema, ...]:
    """Find the columns after each stage's local steps, starting from those that are read."""
    schemas = []
    for stage in stages:
        for step in stage.steps:
            for column in step.columns_needed():
                require_column(step.name, column, schema)
            schema = step.output_schema(schema)
        schemas.append(schema)
        if stage.global_step is not None:
            schema = stage.global_step.output_schema(schema)
    return tuple(schemas)


def list_source_column_notes(stages: Sequence[Stage], schemas: Sequence[pa.Schema]) -> list[str]:
    """Note where records already have a column with the name that tells the source in a mixed lane."""
    joins = [stage.global_step is not None and stage.global_step.joins_sources for stage in stages]
    if True not in joins or SOURCE not in schemas[joins.index(True)].names:
        return []
    return [f'records have their own column "{SOURCE}", which is kept; origins tell which source a record is from']


def collect_sample_steps(stages: Sequence[Stage]) -> tuple[LocalStep, ...]:
    """Collect the steps that sample records go through: local steps, and stand-ins for barriers that change columns."""
    return tuple(step for stage in stages for step in _list_sample_steps(stage))


def replace_steps(stages: Sequence[Stage], sample_steps: Sequence[LocalStep]) -> tuple[Stage, ...]:
    """Replace the local steps of the stages by those that `collect_sample_steps` gave, adapted to the sample."""
    remaining = iter(sample_steps)
    adapted = [[next(remaining) for _ in _list_sample_steps(stage)] for stage in stages]
    return tuple(
        replace(stage, steps=tuple(steps[: len(stage.steps)])) for stage, steps in zip(stages, adapted, strict=True)
    )


def select_stored_columns(
    stages: Sequence[Stage], sizes: Sequence[Mapping[str, float]]
) -> tuple[dict[str, float], ...]:
    """Select the sizes of the columns that each barrier stores.

    `sizes` are those before the first and after each of the sample steps.
    """
    stage_sizes, index = [], 0
    for stage in stages[:-1] if sizes else ():
        stage_sizes.append(dict(sizes[index + len(stage.steps)]))
        index += len(_list_sample_steps(stage))
    return tuple(stage_sizes)


def _list_sample_steps(stage: Stage) -> tuple[LocalStep, ...]:
    """List the local steps of a stage, and the stand-in for its barrier if that changes the columns."""
    sample_step = stage.global_step.sample_step() if stage.global_step is not None else None
    return stage.steps if sample_step is None else (*stage.steps, sample_step)
