"""Stored streams of which texts and records are read again, from lines of the source's files.

A run whose first steps are `read` and `deduplicate` would else write every byte of its input twice, as text and as
record, before it writes what stays.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import ORIGIN, RECORD, RECORD_BYTES, RECORD_LINES, RECORD_TYPE, TEXT, TEXT_BYTES
from gristmill.pipeline.stages.stored import StoredInput
from gristmill.steps.read.json_files.known_lines import KnownLines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from gristmill.core.records import SourceFile
    from gristmill.steps.read import Read
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesInput(StoredInput):
    """A stream of origins and sizes, whose records are lines of the source's files."""

    read: Read
    schema: pa.Schema
    """The columns of the records."""
    files: tuple[SourceFile, ...]
    """The files that the records come from."""

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (part of `StoredRecords`)
        """Read the records, as if they were stored."""
        return self.read_selected(root, lambda batch, _: batch)

    def read_texts(self, root: Location, rows: NDArray[np.int64]) -> Iterator[pa.Array]:
        """Read the texts of ascending rows."""
        with _ContentReader(self, {TEXT_BYTES: self.schema.field(TEXT)}) as reader:
            start = 0
            for batch in StoredInput.batches(self, root):
                batch_rows = rows[slice(*np.searchsorted(rows, [start, start + batch.num_rows]))] - start
                if len(batch_rows):
                    yield reader.fill(batch.take(pa.array(batch_rows))).column(TEXT)
                start += batch.num_rows

    def read_selected(
        self,
        root: Location,
        select: Callable[[pa.RecordBatch, int], pa.RecordBatch],
        *,
        are_written: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Read some records from the source's files (`SelectedRecords`)."""
        fields = {TEXT_BYTES: self.schema.field(TEXT), RECORD_BYTES: self.schema.field(RECORD)}
        if are_written:
            fields = {RECORD_BYTES: pa.field(RECORD_LINES, RECORD_TYPE)}
        with _ContentReader(self, fields) as reader:
            start = 0
            for batch in StoredInput.batches(self, root):
                yield reader.fill(select(batch, start))
                start += batch.num_rows


class _ContentReader:
    """Puts content in place of sizes: `fields` tells which field comes in place of which column."""

    def __init__(self, source: LinesInput, fields: Mapping[str, pa.Field]) -> None:
        self._source = source
        self._fields = fields
        self._files = {file.id: file for file in source.files}
        self._open_file = ExitStack()
        self._lines: KnownLines | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open_file.__exit__(kind, error, traceback)

    def fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        origins = batch.column(ORIGIN)
        files = origins.field("file").to_numpy()
        positions = origins.field("position").to_numpy().astype(np.int64)
        sizes = batch.column(RECORD_BYTES).to_numpy()
        borders = [0, *(np.flatnonzero(files[1:] != files[:-1]) + 1).tolist(), len(files)] if len(files) else []
        pieces = [
            self._enter_file(int(files[start])).read(positions[start:stop], sizes[start:stop])
            for start, stop in pairwise(borders)
        ]
        for name, field in self._fields.items():
            column = pa.concat_arrays([piece[field.name] for piece in pieces]) if pieces else pa.array([], field.type)
            batch = batch.set_column(batch.schema.get_field_index(name), field, column)
        return batch

    def _enter_file(self, number: int) -> KnownLines:
        if self._lines is None or self._lines.file.id != number:
            self._open_file.close()
            lines = KnownLines(self._source.read, self._files[number], pa.schema(self._fields.values()))
            self._lines = self._open_file.enter_context(lines)
        return self._lines
