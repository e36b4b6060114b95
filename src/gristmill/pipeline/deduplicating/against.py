"""The documents of `against`: read into the work folder like those of any source, and never written."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.core.books import Account
from gristmill.pipeline.deduplicating.arrived import arrived
from gristmill.pipeline.first_units import FirstUnits
from gristmill.pipeline.join import add_books
from gristmill.pipeline.leg import Leg
from gristmill.pipeline.legs import UnitResults
from gristmill.pipeline.plan import SourcePlan
from gristmill.pipeline.work import SourceLeg
from gristmill.steps.deduplicate import AGAINST, DeduplicateAgainst
from gristmill.steps.read import plan_schema

if TYPE_CHECKING:
    from gristmill.pipeline.deduplicating.arrived import Arrived
    from gristmill.pipeline.legs import LegRunner
    from gristmill.pipeline.plan import Plan
    from gristmill.pipeline.work import Stage
    from gristmill.steps.deduplicate import Deduplicate

_log = logging.getLogger("gristmill")


def against_units(step: Deduplicate, plan: Plan, runner: LegRunner, stage: Stage) -> list[Arrived]:
    """Its units, read."""
    if not isinstance(step, DeduplicateAgainst):
        return []
    schema = plan_schema(step.read, step.files, keeps_record=False)
    source = SourcePlan(AGAINST, step.read, tuple(step.files), schema, (Leg((), step),), (schema,), [])
    leg = SourceLeg(step.read, schema, (), schema, None)
    stage = replace(stage, legs={**stage.legs, AGAINST: leg})
    inputs = FirstUnits(replace(plan, sources=(source,)), runner, stage, "")
    inputs.unpack()
    units = list(inputs.units(source))
    runner.run(stage, units, "deduplicate: against")
    results = UnitResults(runner, units)
    num_bad = sum(
        Account.from_dict(state).quarantined.total() for state in add_books(result.books for result in results)
    )
    if num_bad:
        _log.warning("deduplicate: %s records of against could not be read, and are not compared", f"{num_bad:,}")
    return arrived(units, results, is_against=True)
