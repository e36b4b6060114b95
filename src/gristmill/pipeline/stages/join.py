"""The task that joins the slices of a unit, and the sum of their results.

It is run for units of several slices, and for formats in which no slice can write the unit's files (`unit_output`).
`interleave_rows` joins rows of several sequences into one, a block at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.books import add_books
from gristmill.pipeline.stages.outputs.sinks import SinkResult
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import LoadedContext, SliceResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.stage_context import StageContext


@dataclass(frozen=True, slots=True)
class JoinTask:
    """The slices of one unit, in order."""

    source: str
    results: tuple[SliceResult, ...]
    stem: str
    """The start of the paths of the unit's files, below the output folder."""

    def describe_place(self, num_bytes: int) -> str:  # noqa: ARG002  (it counts none)
        """Describe what the task does."""
        return f"joining a shard of {self.source}"


def run_join(task: Task, context: Context) -> SliceResult:
    """Run a `JoinTask`; `context.state` is the `StageContext`, perhaps with its kernels loaded."""
    stage: StageContext = context.state.context if isinstance(context.state, LoadedContext) else context.state
    join: JoinTask = task.payload
    stem = open_stem(stage.root, join.stem, stage.run_id, syncs=False, source=join.source)
    files = [file for result in join.results for file in result.split_files]
    return merge_results(join.results, stage.sources[join.source].output.join(files, stem))


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
        scores=[blocks for result in results for blocks in result.scores],
        score_histograms=_add_histograms(results),
    )


def _add_histograms(results: Sequence[SliceResult]) -> dict[str, list[tuple[int, int]]]:
    if not any(result.score_histograms for result in results):
        return {}
    from gristmill.shards.score_file import add_histograms  # noqa: PLC0415  (few recipes have filters by scores)

    return add_histograms(result.score_histograms for result in results)


def merge_unjoined(results: Sequence[SliceResult]) -> SliceResult:
    """Make the result of a unit whose files are those of its slices, split by split, as a single slice lists them."""
    files = [file for result in results for file in result.split_files]
    return merge_results(results, SinkResult(sorted(files, key=lambda file: file.split)))


class RowCursor:
    """A position in a sequence of batches, from which rows are taken in order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        """Take the next rows, as views of the batches that hold them."""
        while num_rows:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches)
            piece = self._rest.slice(0, num_rows)
            self._rest = self._rest.slice(piece.num_rows)
            num_rows -= piece.num_rows
            yield piece


def interleave_rows(sources: NDArray[np.int32], cursors: Sequence[RowCursor]) -> pa.RecordBatch:
    """Build a batch whose row i is the next row of cursor `sources[i]`.

    With sources [1, 0, 1] the rows are the first of cursor 1, the first of cursor 0, and the second of cursor 1.
    """
    counts = np.bincount(sources, minlength=len(cursors))
    pieces = [piece for cursor, count in zip(cursors, counts.tolist(), strict=True) for piece in cursor.take(count)]
    # The pieces are joined source by source, so a stable sort of `sources` lists the places in the same order: the k-th
    # joined row belongs to the k-th place of the sort.
    rows = np.empty(len(sources), dtype=np.int64)
    rows[np.argsort(sources, kind="stable")] = np.arange(len(sources))
    return pa.concat_batches(pieces).take(pa.array(rows))
