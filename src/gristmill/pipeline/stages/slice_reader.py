"""Reading a slice: its inputs as a sequence of cells.

One cell is in memory at a time (about 4 MiB of input), for any size of the file. Small files share one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import DamagedWorkError
from gristmill.pipeline.planning.units import Span, cluster_small_files
from gristmill.pipeline.stages.stage_context import BYTES_PER_ROW
from gristmill.readers.cells import CellBatch
from gristmill.readers.small_files import read_small_files
from gristmill.readers.source import open_reader
from gristmill.readers.texts.json_lines import is_from_python
from gristmill.steps.record_functions import quarantine_row
from gristmill.storage.files import VersionChecks, check_unchanged, compute_file_checksum, find_version
from gristmill.storage.locations import is_remote, parse_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.core.books import Account
    from gristmill.core.records import SourceFile
    from gristmill.engine.tasks import Context
    from gristmill.pipeline.stages.stage_context import SliceTask, StageContext
    from gristmill.pipeline.stages.stored import StoredRecords
    from gristmill.shards.stored_files import StoredFile, StoredRange


_POISON_MESSAGE = "this record ended every worker that ran it, alone and with others (in which step is not known)"


class SliceReader:
    """Reads the cells of one slice, in order, and reports progress.

    `account` is the account of the records coming in. The reader adds what only it knows: empty files, and what the
    barrier before the stage has dropped or copied.
    """

    def __init__(self, stage: StageContext, task: SliceTask, context: Context, account: Account) -> None:
        self._stage = stage
        self._source = stage.sources[task.source]
        self._task = task
        self._context = context
        self._account = account
        self._schema = self._source.schema
        self.paths: dict[int, str] = {}
        """Relative paths of the files read so far, by the file's id."""
        self.cell_number = 0
        """The number of the cell that is being read or was read last."""
        self._checks = VersionChecks()
        self._size = task.size
        self._progress = 0.0
        """How much of the inputs is done."""

    def read_cells(self) -> Iterator[CellBatch]:
        """Read all cells. Positions are reported before each, so that a death or a timeout names its cell."""
        for cell in self._read_inputs():
            if self._task.trial is None:  # the positions of a trial are rows
                self._context.at(self.cell_number)
            yield self._exclude_poison(cell) if self._task.excluded else cell
            self.cell_number += 1

    def finish(self) -> None:
        """Check that the inputs were those of the plan, and report that all are done.

        Sizes of cells are estimates, and their sum may be less.
        """
        self._checks.wait()
        self._advance(self._size - self._progress)

    def read_dropped(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Read the records that the barrier before this stage has dropped of the inputs, each batch with its reason."""
        for stored in self._task.inputs:
            if not isinstance(stored, Span):
                for reason, batch in stored.dropped_batches(self._stage.work, self._stage.seed):
                    self._context.at(self.cell_number)  # each batch has the whole timeout
                    yield reason, batch

    def _read_inputs(self) -> Iterator[CellBatch]:
        for stored_records in self._task.inputs:
            if not isinstance(stored_records, Span):
                yield from self._read_stored(stored_records)
        spans = (span for span in self._task.inputs if isinstance(span, Span))
        for cluster in cluster_small_files(spans, self._source.layout.cell_bytes):
            if len(cluster) > 1:
                yield from self._read_cluster(cluster)
            else:
                yield from self._read_span(*cluster)

    def _read_span(self, span: Span) -> Iterator[CellBatch]:
        self._enter_file(span)
        if span.piece is not None and span.piece.index_file is not None:
            span.piece.index_file.read_intact(self._stage.work)
        if span.piece is not None and span.piece.content is not None:  # in a file of our own, in the work folder
            yield from self._read_piece(span, span.piece.content, span.piece.version)
            return
        _check_records_from_python(span.file)
        try:
            yield from self._read_span_cells(span)
        except Exception:
            _check_unchanged(span)  # if the file changed, report that instead: the error is its consequence
            raise
        self._add_check(span)

    def _read_piece(self, span: Span, content: StoredRange, version: str) -> Iterator[CellBatch]:
        """Read a piece that was unpacked before. On a store it would be fetched twice to be hashed."""
        work = self._stage.work
        path = content.file.below(work)
        if not is_remote(path):
            content.read(work)
            yield from self._read_span_cells(span)
            return
        try:
            yield from self._read_span_cells(span)
        except Exception:
            self._check_piece(content.file, version)
            raise
        self._check_piece(content.file, version)

    def _check_piece(self, file: StoredFile, version: str) -> None:
        """Raise `DamagedWorkError` if a file on a store is not what was written. Another version may be a copy."""
        path = file.below(self._stage.work)
        if find_version(path) != (file.bytes, version) and not file.is_intact(path):
            raise file.make_work_error(self._stage.work, "was changed or removed") from None

    def _read_span_cells(self, span: Span) -> Iterator[CellBatch]:
        cell_bytes = self._source.layout.cell_bytes
        reader = open_reader(self._source.read, span.file, self._schema, piece=span.piece, cell_bytes=cell_bytes)
        num_cells = span.num_bytes / cell_bytes if span.stop is None else span.stop - span.first
        for cell in reader.read_cells(span.first, span.stop):
            yield cell
            self._advance(span.num_bytes / max(num_cells, 1))

    def _read_cluster(self, cluster: Iterable[Span]) -> Iterator[CellBatch]:
        last: deque[Span] = deque(maxlen=1)
        try:
            yield from read_small_files(self._source.read, self._open_in_turn(cluster, last), self._schema)
        except Exception:
            _check_unchanged(last[0])
            raise

    def _open_in_turn(self, cluster: Iterable[Span], last: deque[Span]) -> Iterator[SourceFile]:
        """Yield the files of a cluster one by one; `last` holds the current one."""
        for span in cluster:
            self._context.at(self.cell_number)  # each file has the whole timeout, not a thousand of them together
            self._enter_file(span)
            last.append(span)
            _check_records_from_python(span.file)
            yield span.file
            self._add_check(span)
            self._advance(span.num_bytes)

    def _add_check(self, span: Span) -> None:
        self._checks.add(span.file.path, span.file.num_bytes, span.file.version)

    def _enter_file(self, span: Span) -> None:
        self.paths[span.file.id] = span.file.relative
        if not span.file.num_bytes:
            self._account.counters["empty_files"] += 1

    def _read_stored(self, stored_records: StoredRecords) -> Iterator[CellBatch]:
        num_records = 0
        for number, batch in enumerate(stored_records.batches(self._stage.work, self._stage.seed)):
            num_records += batch.num_rows
            if stored_records.is_copy:
                # The originals have come in before, so the copies are created here. Whoever takes the cell counts its
                # records as coming in, which is taken back first.
                self._account.records_in -= batch.num_rows
                self._account.created += batch.num_rows
            yield CellBatch(number, batch)
            self._advance(batch.num_rows * BYTES_PER_ROW)
        for reason, count in stored_records.count_dropped(num_records).items():
            self._account.records_in += count
            self._account.dropped[reason] += count
        self._account.counters.update(stored_records.counters)

    def _advance(self, amount: float) -> None:
        """Report that more of the inputs is done; never more than all of them."""
        before, self._progress = self._progress, min(self._progress + amount, self._size)
        self._context.count(bytes=int(self._progress) - int(before))

    def _exclude_poison(self, cell: CellBatch) -> CellBatch:
        """Quarantine the rows of a cell that have ended their workers (`poison`)."""
        reasons = {row: reason for number, row, reason in self._task.excluded if number == self.cell_number}
        batch = cell.batch
        poison = [quarantine_row(batch, row, reasons[row], _POISON_MESSAGE) for row in sorted(reasons)]
        is_kept = np.ones(batch.num_rows, dtype=bool)
        is_kept[list(reasons)] = False
        rows = batch.filter(pa.array(is_kept))
        return replace(cell, rows=rows, texts=None, quarantined=[*cell.quarantined, *poison])


def _check_unchanged(span: Span) -> None:
    check_unchanged(span.file.path, span.file.num_bytes, span.file.version)


@lru_cache(maxsize=64)
def _check_records_from_python(file: SourceFile) -> None:
    """Check a file of records from Python, which this run has written, before this process reads it first.

    A file is hashed once in each process, because its tasks begin anywhere in it. Damage after that goes unnoticed by
    this process. A store tells of changes by versions.
    """
    path = parse_location(file.path)
    if not is_remote(path) and is_from_python(file.path) and compute_file_checksum(path) != file.content:
        raise DamagedWorkError(
            f"{path}, records from Python as this run has written them, is damaged",
            help="check the disk that holds it; the same command writes it again",
        )
