"""The task that joins the slices of a unit, and the sum of their results.

It is run for units of several slices, and for formats in which no slice can write the unit's files (`unit_output`).
Where the records of a cell were divided among slices, they become one batch first, so that the cell has one block, as
if a single slice had read it. `interleave_rows` joins rows of several sequences into one, a block at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.books import add_books
from gristmill.pipeline.stages.outputs.quarantine import join_runs
from gristmill.pipeline.stages.outputs.sinks import SinkResult
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import LoadedContext, SliceResult
from gristmill.pipeline.stages.stored import StoredInput
from gristmill.shards.stored_files import StoredFile
from gristmill.storage.commit import PendingFile
from gristmill.storage.stores.uploads import collect_uploads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.outputs.split_files import OutputStem, ScoreBlocks
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.shards.score_file import ScoreLayout


@dataclass(frozen=True, slots=True)
class JoinTask:
    """The slices of one unit, in order."""

    source: str
    results: tuple[SliceResult, ...]
    stem: str
    """The start of the paths of the unit's files, below the output folder."""
    part_counts: tuple[int, ...] = ()
    """For each run of slices that are the parts of one cell how many they are, and 1 for every other slice. Empty: the
    slices are leftovers of units, which are packed together even if there is only one."""

    def describe_place(self, num_bytes: int) -> str:  # noqa: ARG002  (it counts none)
        """Describe what the task does."""
        return f"joining a shard of {self.source}"


def run_join(task: Task, context: Context) -> SliceResult:
    """Run a `JoinTask`; `context.state` is the `StageContext`, perhaps with its kernels loaded."""
    stage: StageContext = context.state.context if isinstance(context.state, LoadedContext) else context.state
    join: JoinTask = task.payload
    output = stage.sources[join.source].output
    stem = open_stem(stage.root, join.stem, stage.run_id, syncs=False, source=join.source)
    with collect_uploads() as uploads:
        results = list(_join_cells(join, stage, stem))
    uploads.complete()  # cells may be read again here
    if not join.part_counts or output.needs_join(len(results)):
        files = [file for result in results for file in result.split_files]
        return merge_results(results, output.join(files, stem))
    return results[0] if len(results) == 1 else merge_unjoined(results)


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


def _join_cells(join: JoinTask, stage: StageContext, stem: OutputStem) -> Iterator[SliceResult]:
    """Give the results of slices, with those of a cell's parts joined into one."""
    rest = iter(join.results)
    counts = join.part_counts or (1,) * len(join.results)
    output = stage.sources[join.source].output
    for number, count in enumerate(counts):
        parts = list(islice(rest, count))
        # A cell that is the whole unit is written as such, if no joining follows.
        is_unit = len(counts) == 1 and not output.needs_join(1)
        cell_stem = stem if is_unit else replace(stem, stem=f"{stem.stem}-cell{number}")
        yield parts[0] if count == 1 else _join_parts(parts, join.source, stage, cell_stem, len(counts))


def _join_parts(
    parts: Sequence[SliceResult], source: str, stage: StageContext, stem: OutputStem, num_slices: int
) -> SliceResult:
    """Make the result of a cell from those of its parts, as the slice would have made it that reads the cell."""
    books = add_books(part.books for part in parts)
    steps = [account.step for account in books]
    join_runs(source, [part.part_quarantine for part in parts], steps, stage.max_quarantine)
    output = stage.sources[source].output
    with output.open_sink(stage.place_sink(source, stem), num_slices) as sink:
        for split in sorted({file.split for part in parts for file in part.split_files}):
            files = [file for part in parts for file in part.split_files if file.split == split]
            batches = [batch for file in files for batch in StoredInput(file.data, file.rows).batches(stem.root)]
            sink.add(pa.concat_batches(batches))
        sink_result = sink.commit()
    quarantine = _join_quarantine(parts, len(books), stem)
    scores = _join_scores(parts, stage.sources[source].score_layout, stem)
    return msgspec.structs.replace(merge_results(parts, sink_result), quarantine=quarantine, scores=scores)


def _join_scores(parts: Sequence[SliceResult], layout: ScoreLayout | None, stem: OutputStem) -> list[ScoreBlocks]:
    """Make one block of the scores of a cell's parts."""
    if layout is None:
        return []
    from gristmill.pipeline.stages.outputs.score_writer import ScoreWriter  # noqa: PLC0415  (few recipes need it)

    writer = ScoreWriter(layout, ())
    writer.join_cell(stem.root, [blocks for part in parts for blocks in part.scores])
    return writer.write(stem)


def _join_quarantine(parts: Sequence[SliceResult], num_accounts: int, stem: OutputStem) -> list[StoredFile]:
    """Join the quarantined records of a cell's parts into one file, step by step; no file if there are none."""
    files = [
        entry.file
        for number in range(num_accounts)
        for part in parts
        for entry in part.part_quarantine
        if entry.account == number and entry.file is not None
    ]
    if not files:
        return []
    path = f"{stem.stem}.quarantine.jsonl"
    with PendingFile(stem.root / path, stem.run_id) as joined:
        for file in files:
            joined.write(file.read_intact(stem.root))
        joined.commit(sync=stem.syncs)
    return [StoredFile(path=path, bytes=joined.num_bytes, xxh3=joined.checksum)]


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
