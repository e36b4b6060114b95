"""The scores of a task: what its steps measure becomes bare blocks of a score file (`shards/score_file.py`).

A document's row is begun by the first step that measures, and filled in by later ones. Steps in between may drop,
reorder or create records, so rows are followed by their numbers where a step says what it dropped, else by origins.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.records import ORIGIN
from gristmill.pipeline.stages.outputs.split_files import ScoreBlocks
from gristmill.shards.manifest import StoredFile
from gristmill.shards.score_file import (
    LANGUAGE,
    ScoredStep,
    ScoreEncoder,
    ScoreLayout,
    add_histograms,
    count_bins,
)
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.records import StepResult
    from gristmill.core.step import LocalStep
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.storage.locations import Location


def describe_stage(source: str, number: int, stages: Sequence[Sequence[LocalStep]]) -> ScoreLayout | None:
    """Describe the score file of a source's stage; None if no step of it measures.

    `stages` are the local steps of all stages of the source, and `number` is the index of the stage.
    """
    times: Counter[str] = Counter()
    scored: list[list[ScoredStep]] = []
    for steps in stages:
        scored.append([])
        for step in steps:
            scores = step.describe_scores()
            if scores is not None:
                times[scores.step] += 1
                scored[-1].append(ScoredStep(**msgspec.structs.asdict(scores), number=times[scores.step]))
    return ScoreLayout(source=source, stage=number + 1, steps=scored[number]) if scored[number] else None


@dataclass(slots=True)
class StageScores:
    """The blocks of all units of a source in one stage, in order, and the sum of their histograms."""

    layout: ScoreLayout
    blocks: list[ScoreBlocks] = field(default_factory=list)
    histograms: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, blocks: Sequence[ScoreBlocks], histograms: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        """Add those of the next unit."""
        self.blocks += blocks
        self.histograms = add_histograms([self.histograms, histograms])


class ScoreWriter:
    """Collects the scores of the records of a task, cell by cell, and writes a block for each."""

    def __init__(self, layout: ScoreLayout, steps: Sequence[LocalStep]) -> None:
        self._layout = layout
        self._encoder = ScoreEncoder(layout)
        described = (step.describe_scores() is not None for step in steps)
        scored = iter(layout.steps)
        self._scored = [next(scored) if is_scored else None for is_scored in described]
        """For each step of the stage what it measures."""
        self._cell: list[pa.RecordBatch] = []
        self._batch: _ScoredBatch | None = None
        self._bins: dict[str, Counter[int]] = {}
        self._num_rows = 0
        self._blocks: list[pa.Buffer] = []

    def add(self, number: int, batch: pa.RecordBatch, applied: StepResult) -> None:
        """Add what a step has measured; `number` is its index in the stage, and `batch` what it got."""
        step = self._scored[number]
        if step is not None and self._batch is None:
            self._batch = _ScoredBatch(batch, step.language_column)
        if self._batch is not None:
            if step is not None:
                self._batch.put(step, applied)
            self._batch.follow(batch, applied)

    def end_batch(self) -> None:
        """Take the rows of a batch that has passed all steps."""
        if self._batch is not None:
            self._cell.append(self._batch.make_rows(self._encoder.schema))
            self._batch = None

    def join_cell(self, root: Location, parts: Iterable[ScoreBlocks]) -> None:
        """Make one block of those of a cell's parts, as if one task had read the whole cell."""
        for part in parts:
            content = b"".join((self._encoder.header(), part.read(root), self._encoder.footer()))
            self._cell += pa.ipc.open_stream(pa.py_buffer(content))
        self.end_cell()

    def end_cell(self) -> None:
        """Encode the rows of the cell as one block."""
        rows = pa.concat_batches(self._cell) if self._cell else None
        self._cell = []
        if rows is not None and rows.num_rows:
            for name, bins in count_bins(rows, self._layout).items():
                self._bins.setdefault(name, Counter()).update(bins)
            self._num_rows += rows.num_rows
            self._blocks.append(self._encoder.block(rows))

    @property
    def histograms(self) -> dict[str, list[tuple[int, int]]]:
        """For each score the bins that are not empty, with their counts."""
        return {name: sorted(bins.items()) for name, bins in self._bins.items()}

    def write(self, stem: OutputStem) -> list[ScoreBlocks]:
        """Write all blocks to a file of the task; no file if there are none."""
        if not self._blocks:
            return []
        path = f"{stem.stem}.scores"
        with PendingFile(stem.root / path, stem.run_id) as file:
            for block in self._blocks:
                file.write(block)
            file.commit(sync=stem.syncs)
        stored = StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)
        return [ScoreBlocks(file=stored, num_bytes=file.num_bytes, rows=self._num_rows)]


class _ScoredBatch:
    """The rows of one batch, from the first step that measures to the last."""

    def __init__(self, batch: pa.RecordBatch, language_column: str) -> None:
        self._origins: list[pa.StructArray] = [batch.column(ORIGIN)]
        self._num_rows = batch.num_rows
        self._rows = np.arange(batch.num_rows)
        """For each record that is left the number of its row."""
        self._columns: dict[str, tuple[NDArray[np.int64], NDArray[Any] | pa.Array]] = {}
        """For each column the numbers of the rows that have a value, and the values."""
        if language_column in batch.schema.names:
            languages = batch.column(language_column)
            if pa.types.is_string(languages.type) or pa.types.is_large_string(languages.type):
                self._columns[LANGUAGE] = self._rows, languages.cast(pa.string())

    def put(self, step: ScoredStep, applied: StepResult) -> None:
        """Put down what a step has measured in the records that reached it."""
        scores = applied.scores
        if scores is None:
            return
        for name, values in scores.values.items():
            self._columns[step.column(name)] = self._rows, values
        codes = applied.codes if applied.codes is not None else np.zeros(len(self._rows), np.uint8)
        self._columns[step.column("reason")] = self._rows, codes
        if scores.tables is not None:
            self._columns[step.column("table")] = self._rows, scores.tables.astype(np.uint16)
        if scores.languages is not None:
            self._columns[LANGUAGE] = self._rows, scores.languages

    def follow(self, batch: pa.RecordBatch, applied: StepResult) -> None:
        """Find the rows of the records that a step has left."""
        is_filter = not applied.quarantined and not applied.created
        if is_filter and applied.codes is not None:
            self._rows = self._rows[applied.codes == 0]
        elif applied.batch.num_rows != batch.num_rows or not applied.batch.column(ORIGIN).equals(batch.column(ORIGIN)):
            self._match_origins(batch, applied.batch)

    def _match_origins(self, before: pa.RecordBatch, after: pa.RecordBatch) -> None:
        """Find the rows of records by their origins; records with new origins get new rows."""
        known = dict(zip(_list_origins(before), self._rows.tolist(), strict=True))
        rows = []
        new_records: list[int] = []
        for record, origin in enumerate(_list_origins(after)):
            if origin not in known:
                known[origin] = self._num_rows + len(new_records)
                new_records.append(record)
            rows.append(known[origin])
        self._rows = np.array(rows, np.int64)
        if new_records:
            self._origins.append(after.column(ORIGIN).take(pa.array(new_records)))
            self._num_rows += len(new_records)

    def make_rows(self, schema: pa.Schema) -> pa.RecordBatch:
        """Make the rows of the file."""
        columns = [
            self._spread(field, *self._columns[field.name])
            if field.name in self._columns
            else pa.nulls(self._num_rows, field.type)
            for field in list(schema)[1:]
        ]
        return pa.RecordBatch.from_arrays([pa.concat_arrays(self._origins), *columns], schema=schema)

    def _spread(self, field: pa.Field, rows: NDArray[np.int64], values: NDArray[Any] | pa.Array) -> pa.Array:
        """Put values into their rows; the others are null."""
        array = pa.array(values, field.type)
        if len(rows) == self._num_rows and array.null_count == 0 and bool((rows[:-1] < rows[1:]).all()):
            return array
        places = np.full(self._num_rows, -1, np.int64)
        places[rows] = np.arange(len(rows))
        return array.take(pa.array(places, mask=places < 0))


def _list_origins(batch: pa.RecordBatch) -> list[tuple[int, int, int]]:
    origins = batch.column(ORIGIN)
    return list(zip(*(origins.field(name).to_pylist() for name in ("file", "position", "part")), strict=True))
