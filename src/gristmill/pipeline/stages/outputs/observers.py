"""What watches the records of a slice on their way from the reader through the steps to the sink.

A slice has one way for its records, and a list of observers. Each sees every cell after it was read and every batch
after each step, in order, and adds what it has found to the result: the books (below), quarantined and dropped records
and scores (`outputs`), and in debug mode what is shown. None of them changes a record.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.books import Account
from gristmill.core.records import INPUT_IDS, TEXT, count_values
from gristmill.shards.stored_files import StoredFile
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import relative_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    import pyarrow as pa

    from gristmill.core.records import QuarantinedRecord, Records, StepResult, Texts
    from gristmill.core.step import LocalStep
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.readers.cells import CellBatch


class StepPlace(NamedTuple):
    """A step, and where it stands."""

    source: str
    number: int
    """Its index in the stage."""
    step: LocalStep


class SliceObserver:
    """Watches the records of one slice. What an observer does not override does nothing."""

    def after_read(self, source: str, cell: CellBatch) -> None:
        """Called when a cell has been read."""

    def after_step(self, place: StepPlace, before: Records, applied: StepResult) -> None:
        """Called when a step has been applied; the records of a cell may come in several batches."""

    def end_cell(self) -> None:
        """Called when all records of a cell are in the sink."""

    def commit(self) -> Mapping[str, Any]:
        """Finish all files, and return what is added to the slice's result, as fields of a `SliceResult`."""
        return {}


class BookKeeper(SliceObserver):
    """Counts the records that come in and those that each step passes on. All its books balance."""

    def __init__(self, entry_account: str | None, steps: Sequence[LocalStep]) -> None:
        self.entry = Account(step=entry_account or "")
        """The account of the records coming in."""
        self._accounts = [Account(step=step.name) for step in steps]
        self._texts: Texts | None = None
        """The texts of the cell, if they are strings."""

    def after_read(self, source: str, cell: CellBatch) -> None:  # noqa: ARG002
        account = self.entry
        account.records_in += cell.rows.num_rows + sum(bad.num_records for bad in cell.quarantined)
        account.records_out += cell.rows.num_rows
        if cell.num_blank:
            account.counters["blank"] += cell.num_blank
        account.counters.update(+cell.counters)
        _add_quarantined(account, cell.quarantined)
        _add_amounts(account, cell.rows)
        self._texts = cell.texts

    def after_step(self, place: StepPlace, before: Records, applied: StepResult) -> None:
        account = self._accounts[place.number]
        account.records_in += before.num_rows
        account.created += applied.created
        account.records_out += applied.batch.num_rows
        account.dropped.update(Counter(applied.dropped))
        account.counters.update(applied.counters)
        _add_quarantined(account, applied.quarantined)
        _add_amounts(account, applied.batch)
        if applied.texts is not None:
            account.text_bytes += applied.texts.num_bytes

    def end_cell(self) -> None:
        if self._texts is not None:  # measured now, because the steps have looked at the sizes already
            self.entry.text_bytes += self._texts.num_bytes

    def commit(self) -> Mapping[str, Any]:
        # After some barriers the first step accounts for what comes in, and the entry account has no name.
        return {"books": [account for account in (self.entry, *self._accounts) if account.step]}


def _add_quarantined(account: Account, records: Sequence[QuarantinedRecord]) -> None:
    for record in records:
        account.quarantined[record.reason] += record.num_records
        if record.is_unread:
            account.counters["unread_bytes"] += record.num_bytes
        if record.is_malformed:
            account.counters["malformed_bytes"] += record.num_bytes


def _add_amounts(account: Account, batch: pa.RecordBatch) -> None:
    """Add how much text or how many tokens come out. That is a difference of offsets, so it costs nothing."""
    if TEXT in batch.schema.names:
        account.text_bytes += count_values(batch.column(TEXT))
    elif INPUT_IDS in batch.schema.names:
        account.tokens += count_values(batch.column(INPUT_IDS))


class LineFile:
    """A file of lines that a slice may write. It is opened for the first line, because most slices have none."""

    def __init__(self, stem: OutputStem, kind: str, open_files: ExitStack) -> None:
        self._root = stem.root
        self._path = stem.root / f"{stem.stem}.{kind}.jsonl"
        self._run_id = stem.run_id
        self._open_files = open_files
        self._file: PendingFile | None = None

    def write(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._open_files.enter_context(PendingFile(self._path, self._run_id))
        self._file.write(line)

    def commit(self) -> list[StoredFile]:
        """Give the file its name; no file if there was no line."""
        file = self._file
        if file is None:
            return []
        file.commit(sync=False)
        path = relative_name(file.path, self._root)
        return [StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)]
