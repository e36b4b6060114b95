"""Files that the reader of an installed package reads.

A reader is a function from a path to the records of that file, registered under the name of its format:

    def read_ini(path: str) -> Iterator[dict[str, object]]: ...

A record becomes a JSON object, so it is handled like JSON records: the text, named columns, other columns, values that
JSON cannot hold. Its position is its number in the file. A cell is 4 MiB of these objects. The file is read from start
to end by one task, since only the reader knows where records begin. Cost: about 1 µs a value on top of the reader's.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import CorruptStreamError, GristmillError, UsageError
from gristmill.core.records import QuarantinedRecord
from gristmill.readers.cells import CELL_BYTES, StreamDamage
from gristmill.readers.formats import file_format
from gristmill.readers.texts.csv_file import RowRecords
from gristmill.readers.texts.delimited_file import RawCell
from gristmill.readers.texts.json_fields import REFUSED_LINE, encode_json_line
from gristmill.readers.texts.json_lines import LINE_END, JsonLinesReader
from gristmill.runtime.plugins import READER, find_plugin

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import pyarrow as pa

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart
    from gristmill.readers.read import Read
    from gristmill.readers.texts.delimited_file import CutRecords


def open_file(part: FilePart, schema: pa.Schema) -> PluginReader:
    """Open a file for reading."""
    format_name = file_format(part.file.path, part.read.format)
    return PluginReader(part.read, PluginFile(part.file, format_name, part.cell_bytes), schema)


def sample_records(read: Read, file: SourceFile, most: int) -> Iterator[bytes]:
    """Return the records in the first bytes of a file."""
    num_bytes = 0
    records = read_plugin_records(file.path, file_format(file.path, read.format))
    with closing(records), suppress(CorruptStreamError):
        for line in records:
            if not line.startswith(REFUSED_LINE):
                yield line
            num_bytes += len(line)
            if num_bytes >= most:
                return


def read_plugin_records(path: str, format: str) -> Generator[bytes]:
    """Read the records of a file as lines of JSON, with the reader that provides this format.

    Raises:
        UsageError: The reader cannot be loaded, or it fails.
        CorruptStreamError: The reader has found the file damaged.
    """
    plugin = find_plugin(READER, format)
    if plugin is None:
        raise UsageError(f"format {format!r}: its reader is not installed", help="install the package that provides it")
    reader = plugin.load()
    if not callable(reader):
        raise plugin.make_type_error(reader, "a function from a path to records")
    num_records = 0
    try:
        records = reader(path)
        if not isinstance(records, Iterable) or isinstance(records, (str, bytes)):
            raise TypeError(f"it must return an iterable of dicts, not {records!r:.100}")
        for record in records:
            yield encode_json_line(record)
            num_records += 1
    except GristmillError:
        raise
    except Exception as error:
        raise UsageError(
            f"{plugin} failed in {path} after {num_records:,} records: {type(error).__name__}: {error}",
            help=f"fix the file or {plugin.package.name}; a reader that meets a damaged file raises CorruptStreamError",
        ) from error


class PluginFile:
    """The records of one file, cut into raw cells."""

    can_cut = False

    def __init__(self, file: SourceFile, format: str, cell_bytes: int = CELL_BYTES) -> None:
        self.file = file
        self._format = format
        self._cell_bytes = cell_bytes

    def cell_sizes(self) -> list[int]:
        raise NotImplementedError("the cells are known only when the file has been read")

    def raw_cells(self, first: int = 0, stop: int | None = None) -> Generator[RawCell]:
        """Cut the cells `first` to `stop`; cells before them have to be read, too."""
        with closing(self._cut_all()) as cells:
            for raw in cells:
                if stop is not None and raw.cell >= stop:
                    return
                if raw.cell >= first:
                    yield raw

    def _cut_all(self) -> Generator[RawCell]:
        cell = num_bytes = first_record = 0
        lines: list[bytes] = []
        rest: QuarantinedRecord | None = None
        with closing(read_plugin_records(self.file.path, self._format)) as records:
            try:
                for line in records:
                    if num_bytes >= self._cell_bytes:
                        yield _join_lines(cell, first_record, lines)
                        cell, first_record = cell + 1, first_record + len(lines)
                        lines, num_bytes = [], 0
                    lines.append(line)
                    num_bytes += len(line)
            except CorruptStreamError as error:
                rest = StreamDamage.from_error(error).quarantine_rest(self.file.id, first_record + len(lines))
        yield _join_lines(cell, first_record, lines, rest)


def _join_lines(cell: int, first_record: int, lines: list[bytes], rest: QuarantinedRecord | None = None) -> RawCell:
    data = memoryview(b"".join(lines))
    return RawCell(cell, first_record, data, is_terminated=True, num_left_out=0, rest=rest)


class PluginReader(JsonLinesReader):
    """A reader of files by the function of an installed package, cell by cell."""

    def __init__(self, read: Read, cells: PluginFile, schema: pa.Schema) -> None:
        super().__init__(read, cells, schema)
        self._is_from_python = True

    def _cut_cell(self, raw: RawCell) -> CutRecords:
        """Cut the lines of a cell. Positions are numbers of records, not of bytes."""
        stops = np.flatnonzero(np.frombuffer(raw.data, np.uint8) == LINE_END[0]).astype(np.int64)
        starts = np.concatenate([np.zeros(min(1, len(stops)), np.int64), stops[:-1] + 1])
        cut = RowRecords(raw, starts, stops, [], raw.start + np.arange(len(stops)))
        most = self._read.max_record_bytes
        large = np.flatnonzero(stops - starts > most)
        for index in large.tolist():
            num_bytes = int(stops[index] - starts[index])
            message = f"{num_bytes} bytes as JSON, more than max_record_bytes ({most})"
            position = int(cut.positions[index])
            record = QuarantinedRecord(self._cells.file.id, position, 0, "too_large", message, None, num_bytes)
            cut.quarantined.append(record)
        cut.drop(large.tolist())
        return cut

    def _account_for_rest(
        self, rest: QuarantinedRecord, batch: pa.RecordBatch, quarantined: list[QuarantinedRecord]
    ) -> tuple[pa.RecordBatch, int]:
        quarantined.append(rest)
        return batch, 0
