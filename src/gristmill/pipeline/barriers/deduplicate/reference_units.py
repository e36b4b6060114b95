"""The documents of `against`: read into the work folder like those of any source, and never written to the output."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.core.books import add_books
from gristmill.pipeline.barriers.deduplicate.barrier_units import collect_barrier_units
from gristmill.pipeline.barriers.deduplicate.kept_units import find_kept_units
from gristmill.pipeline.barriers.deduplicate.sign import DocumentSigner
from gristmill.pipeline.planning.sources.source_plan import SourcePlan
from gristmill.pipeline.planning.split_stages import Stage
from gristmill.pipeline.stages.input_units import InputUnits
from gristmill.pipeline.stages.outputs.unit_output import StoredStreams
from gristmill.pipeline.stages.runner import StageResults
from gristmill.pipeline.stages.stage_context import SourceStage
from gristmill.steps.deduplicate.deduplicate import AGAINST, DeduplicateAgainst
from gristmill.steps.read import plan_schema

if TYPE_CHECKING:
    from gristmill.pipeline.barriers.base import BarrierRun
    from gristmill.pipeline.barriers.deduplicate.barrier_units import BarrierUnit
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

_log = logging.getLogger("gristmill")


def read_against_units(step: Deduplicate, run: BarrierRun) -> list[BarrierUnit]:
    """Read the files of `against`, and give their units; none where the step has no `against`."""
    if not isinstance(step, DeduplicateAgainst):
        return []
    signed_units = find_kept_units(step, run) if step.signed_folders else None
    if signed_units is not None:
        return signed_units
    schema = plan_schema(step.read, step.files, keeps_record=False)
    source = SourcePlan(AGAINST, step.read, tuple(step.files), schema, (Stage((), step),), (schema,), [])
    stage = SourceStage(step.read, schema, (), StoredStreams(schema, DocumentSigner(step)))
    context = replace(run.context, sources={**run.context.sources, AGAINST: stage})
    inputs = InputUnits(replace(run.plan, sources=(source,)), run.runner, context, "")
    inputs.unpack_files()
    units = list(inputs.prepare_units(source))
    run.runner.run(context, units, "deduplicate: against")
    results = StageResults(run.runner, units)
    books = add_books(result.books for result in results)
    num_quarantined = sum(account.quarantined.total() for account in books)
    if num_quarantined:
        _log.warning(
            "deduplicate: %s records of against could not be read, and are not compared", f"{num_quarantined:,}"
        )
    return list(collect_barrier_units(zip(units, results, strict=True), is_against=True))
