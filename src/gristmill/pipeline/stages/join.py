"""The task that joins the slices of a unit, and the sum of their results.

It is run for units of several slices, and for formats in which no slice can write the unit's files (`unit_output`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.books import add_books
from gristmill.pipeline.stages.outputs.split_files import OutputStem
from gristmill.pipeline.stages.slice_task import SliceResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.outputs.sinks import SinkResult
    from gristmill.pipeline.stages.stage_context import StageContext


@dataclass(frozen=True, slots=True)
class JoinTask:
    """The slices of one unit, in order."""

    source: str
    results: tuple[SliceResult, ...]
    stem: str
    """The start of the paths of the unit's files, below the output folder."""


def run_join(task: Task, context: Context) -> SliceResult:
    """Run a `JoinTask`; `context.state` is the `StageContext`."""
    stage: StageContext = context.state
    join: JoinTask = task.payload
    files = [file for result in join.results for file in result.split_files]
    stem = OutputStem(stage.root, join.stem, stage.run_id, syncs=False)
    sink_result = stage.sources[join.source].output.join(files, stem)
    return merge_results(join.results, sink_result)


def merge_results(results: Sequence[SliceResult], sink_result: SinkResult) -> SliceResult:
    """Make the result of a unit: the sums of its slices, and the files that were made of theirs."""
    return SliceResult(
        split_files=sink_result.split_files,
        # Each slice holds its training records back as it writes them; joining adds those that it made itself.
        held_files=[file for result in results for file in result.held_files] + sink_result.held_files,
        leftovers=sink_result.leftovers,
        books=[*add_books(result.books for result in results), *sink_result.accounts],
        quarantine=[file for result in results for file in result.quarantine],
        dropped=[file for result in results for file in result.dropped],
    )
