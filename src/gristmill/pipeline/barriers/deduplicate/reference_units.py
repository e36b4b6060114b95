"""The documents of `against`: read into the work folder like those of any source, and never written."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.core.books import Account
from gristmill.pipeline.barriers.deduplicate.barrier_units import collect_barrier_units
from gristmill.pipeline.planning.plan import SourcePlan
from gristmill.pipeline.planning.split_stages import Stage
from gristmill.pipeline.stages.input_units import InputUnits
from gristmill.pipeline.stages.join import add_books
from gristmill.pipeline.stages.runner import StageResults
from gristmill.pipeline.stages.slice_task import SourceStage
from gristmill.steps.deduplicate.deduplicate import AGAINST, DeduplicateAgainst
from gristmill.steps.read import plan_schema

if TYPE_CHECKING:
    from gristmill.pipeline.barriers.deduplicate.barrier_units import BarrierUnit
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.slice_task import StageContext
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

_log = logging.getLogger("gristmill")


def read_against_units(step: Deduplicate, plan: Plan, runner: StageRunner, stage: StageContext) -> list[BarrierUnit]:
    """Its units, read."""
    if not isinstance(step, DeduplicateAgainst):
        return []
    schema = plan_schema(step.read, step.files, keeps_record=False)
    source = SourcePlan(AGAINST, step.read, tuple(step.files), schema, (Stage((), step),), (schema,), [])
    leg = SourceStage(step.read, schema, (), schema, None)
    stage = replace(stage, sources={**stage.sources, AGAINST: leg})
    inputs = InputUnits(replace(plan, sources=(source,)), runner, stage, "")
    inputs.unpack_files()
    units = list(inputs.prepare_units(source))
    runner.run(stage, units, "deduplicate: against")
    results = StageResults(runner, units)
    num_bad = sum(
        Account.from_dict(state).quarantined.total() for state in add_books(result.books for result in results)
    )
    if num_bad:
        _log.warning("deduplicate: %s records of against could not be read, and are not compared", f"{num_bad:,}")
    return collect_barrier_units(units, results, is_against=True)
