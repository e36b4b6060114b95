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
from gristmill.pipeline.stages.outputs.observers import SliceObserver
from gristmill.pipeline.stages.outputs.split_files import ScoreBlocks
from gristmill.shards.canonical import canonicalize_array, canonicalize_batch, pack_bits
from gristmill.shards.score_file import LANGUAGE, ScoredStep, ScoreEncoder, ScoreHistograms, ScoreLayout, add_histograms
from gristmill.shards.stored_files import StoredFile
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.records import Records, StepResult
    from gristmill.core.step import LocalStep
    from gristmill.pipeline.stages.outputs.observers import StepPlace
    from gristmill.pipeline.stages.outputs.split_files import OutputStem


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


class ScoreWriter(SliceObserver):
    """Collects the scores of the records of a task, cell by cell, and writes a block for each."""

    def __init__(self, layout: ScoreLayout, steps: Sequence[LocalStep], stem: OutputStem) -> None:
        self._encoder = ScoreEncoder(layout)
        self._stem = stem
        described = (step.describe_scores() is not None for step in steps)
        scored = iter(layout.steps)
        self._scored = [next(scored) if is_scored else None for is_scored in described]
        """For each step of the stage what it measures."""
        self._cell: list[pa.RecordBatch] = []
        self._batch: _ScoredBatch | None = None
        self._histograms = ScoreHistograms(layout)
        self._num_rows = 0
        self._blocks: list[pa.Buffer] = []

    def after_step(self, place: StepPlace, before: Records, applied: StepResult) -> None:
        step = self._scored[place.number]
        if step is not None and self._batch is None:
            self._batch = _ScoredBatch(before.rows, step.language_column)
        if self._batch is None:
            return
        if step is not None:
            self._batch.put(step, applied)
        self._batch.follow(before.rows, applied)
        if place.number == len(self._scored) - 1:
            self._cell.append(self._batch.make_rows(self._encoder.schema))
            self._batch = None

    def end_cell(self) -> None:
        """Encode the rows of the cell as one block."""
        for rows in self._join_batches() if len(self._cell) > 1 else self._cell:
            if rows.num_rows:
                self._histograms.add(rows)
                self._num_rows += rows.num_rows
                self._blocks.append(self._encoder.block(rows))
        self._cell = []

    def _join_batches(self) -> list[pa.RecordBatch]:
        """Join the rows of the cell so far into one batch, if there are any."""
        return [canonicalize_batch(pa.concat_batches(self._cell), self._encoder.schema)] if self._cell else []

    def commit(self) -> Mapping[str, Any]:
        if not self._blocks:
            return {}
        stem = self._stem
        path = f"{stem.stem}.scores"
        with PendingFile(stem.root / path, stem.run_id) as file:
            for block in self._blocks:
                file.write(block)
            file.commit(sync=stem.syncs)
        stored = StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)
        checksum = int(file.checksum, 16)
        blocks = ScoreBlocks(file=stored, num_bytes=file.num_bytes, checksum=checksum, rows=self._num_rows)
        return {"scores": [blocks], "score_histograms": self._histograms.list_bins()}


class _ScoredBatch:
    """The rows of one batch, from the first step that measures to the last."""

    def __init__(self, batch: pa.RecordBatch, language_column: str) -> None:
        self._origins: list[pa.StructArray] = [batch.column(ORIGIN)]
        self._num_rows = batch.num_rows
        self._rows = np.arange(batch.num_rows)
        """For each record that is left the number of its row."""
        self._measured: list[_MeasuredRows] = []
        self._languages: tuple[NDArray[np.int64], pa.StringArray] | None = None
        """The numbers of the rows that have a language, and the languages."""
        if language_column in batch.schema.names:
            languages = batch.column(language_column)
            if pa.types.is_string(languages.type) or pa.types.is_large_string(languages.type):
                self._languages = self._rows, languages.cast(pa.string())

    def put(self, step: ScoredStep, applied: StepResult) -> None:
        """Put down what a step has measured in the records that reached it."""
        scores = applied.scores
        if scores is None:
            return
        codes = applied.codes if applied.codes is not None else np.zeros(len(self._rows), np.uint8)
        columns = {step.column(name): values for name, values in scores.values.items()}
        columns[step.column("reason")] = codes
        if scores.tables is not None:
            columns[step.column("table")] = scores.tables
        self._measured.append(_MeasuredRows(self._rows, columns))
        if scores.languages is not None:
            self._languages = self._rows, scores.languages

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
        """Make the rows of the file, in canonical form."""
        origins = self._origins[0] if len(self._origins) == 1 else pa.concat_arrays(self._origins)
        columns = {ORIGIN: canonicalize_array(origins), LANGUAGE: canonicalize_array(self._spread_languages())}
        for measured in self._measured:
            columns |= measured.make_columns(schema, self._num_rows)
        unmeasured = {name: np.empty(0) for name in schema.names if name not in columns}
        columns |= _MeasuredRows(np.empty(0, np.int64), unmeasured).make_columns(schema, self._num_rows)
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _spread_languages(self) -> pa.StringArray:
        """Put languages into their rows; the others are null."""
        if self._languages is None:
            return pa.nulls(self._num_rows, pa.string())
        rows, languages = self._languages
        if _are_all_rows(rows, self._num_rows):
            return languages
        places = np.full(self._num_rows, -1, np.int64)
        places[rows] = np.arange(len(rows))
        return languages.take(pa.array(places, mask=places < 0))


@dataclass(frozen=True, slots=True)
class _MeasuredRows:
    """The numbers of the rows that reached a step, and columns of what it has measured in them."""

    rows: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]

    def make_columns(self, schema: pa.Schema, num_rows: int) -> dict[str, pa.Array]:
        """Put values into their rows; the others are null. The form of the arrays is canonical."""
        places = slice(None) if _are_all_rows(self.rows, num_rows) else self.rows
        has_value = np.zeros(num_rows, np.bool_)
        has_value[places] = True
        num_nulls = num_rows - int(np.count_nonzero(has_value))
        validity = pack_bits(has_value) if num_nulls else None
        arrays = {}
        for name, values in self.columns.items():
            kind = schema.field(name).type
            spread = np.zeros(num_rows, kind.to_pandas_dtype())
            spread[places] = values
            arrays[name] = pa.Array.from_buffers(kind, num_rows, [validity, pa.py_buffer(spread)], num_nulls)
        return arrays


def _are_all_rows(rows: NDArray[np.int64], num_rows: int) -> bool:
    """Whether these are the numbers of all rows, in order."""
    return len(rows) == num_rows and bool((rows[:-1] < rows[1:]).all())


def _list_origins(batch: pa.RecordBatch) -> list[tuple[int, int, int]]:
    origins = batch.column(ORIGIN)
    return list(zip(*(origins.field(name).to_pylist() for name in ("file", "position", "part")), strict=True))
