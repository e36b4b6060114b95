"""Raw files, before any recipe exists: the records of any format that a run reads, shown one at a time."""

from __future__ import annotations

import bisect
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.readers.records import RECORD_ERRORS, BadRecord, JsonLinesFile, Record, decode_line, open_records
from gristmill.report.view.column_queries import ColumnQueries, name_kinds
from gristmill.report.view.describe import describe_record, list_pictures
from gristmill.report.view.rows import RowBlock, RowRange, Rows
from gristmill.report.view.search import make_line_blocks, make_record_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FileRows(Rows):
    """The records of raw files, one file after another. Files are the sources."""

    def __init__(self, paths: list[Path]) -> None:
        self.title = ", ".join(path.name for path in paths[:3]) + (" …" if len(paths) > 3 else "")
        self._paths = paths
        self._files = [open_records(str(path)) for path in paths]
        self.note = " ".join(file.note for file in self._files if file.note)
        names = [path.name for path in paths]
        names = names if len(set(names)) == len(names) else [str(path) for path in paths]
        self._starts = [0]
        for file in self._files:
            self._starts.append(self._starts[-1] + file.num_rows)
        self._ranges = [
            RowRange(source=name, start=start, rows=file.num_rows)
            for name, start, file in zip(names, self._starts, self._files, strict=False)
        ]

    @property
    def ranges(self) -> list[RowRange]:
        return self._ranges

    def _read(self, number: int) -> Record:
        file = bisect.bisect_right(self._starts, number) - 1
        try:
            return self._files[file].row(number - self._starts[file])
        except RECORD_ERRORS as error:
            return BadRecord(f"the record cannot be read: {error}")

    def describe_row(self, number: int) -> dict[str, Any]:
        file = bisect.bisect_right(self._starts, number) - 1
        source = self._ranges[file].source
        place = {"number": number, "origin": f"{source}, record {number - self._starts[file]:,}", "source": source}
        record = self._read(number)
        if isinstance(record, BadRecord):
            return {**place, "bad": record.problem, "text": record.text}
        try:
            return {**place, **describe_record(record)}
        except RecursionError:
            return {**place, "bad": "the record is nested too deeply to be shown"}

    @cached_property
    def queries(self) -> ColumnQueries | None:
        if not all(path.suffix == ".parquet" for path in self._paths):
            return None
        import pyarrow.dataset as pads  # noqa: PLC0415  (0.1 s)

        try:
            table = pads.dataset([str(path) for path in self._paths], format="parquet")
        except (pa.ArrowException, OSError):  # what cannot be read says so in its rows
            return None
        return ColumnQueries(name_kinds(table.schema), lambda: table)

    def read_pictures(self, number: int) -> list[bytes]:
        record = self._read(number)
        return [] if isinstance(record, BadRecord) else [content for _, content in list_pictures(record)]

    def read_blocks(self, start: int, end: int) -> Iterator[RowBlock]:
        for path, part in zip(self._paths, self._ranges, strict=True):
            if part.start < end and part.start + part.rows > start:
                file = open_records(str(path))
                if isinstance(file, JsonLinesFile):
                    yield from make_line_blocks(file.read_chunks(), _decode_for_search, part.start)
                else:
                    yield from make_record_blocks(map(_make_searchable, file.rows()), part.start)


def _decode_for_search(line: bytes) -> dict[str, Any]:
    return _make_searchable(decode_line(line))


def _make_searchable(record: Record) -> dict[str, Any]:
    return {"text": record.text} if isinstance(record, BadRecord) else record
