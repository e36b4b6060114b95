"""The format of a file, from its name, and advice on a file that its reader refuses, from its first bytes.

Formats beyond `FORMATS` come from installed packages; their suffix is the name of the format. A reader is a function
from a path to the records of that file:

    def read_ini(path: str) -> Iterator[dict[str, object]]: ...

A record becomes a JSON object, so it is handled like JSON records: the text, named columns, other columns, values that
JSON cannot hold. Its position is its number in the file. A cell is 4 MiB of these objects. The file is read from start
to end by one task, since only the reader knows where records begin. Cost: about 1 µs a value on top of the reader's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import CorruptStreamError, GristmillError, UsageError
from gristmill.core.media import FILE_EXTENSIONS
from gristmill.core.records import QuarantinedRecord
from gristmill.readers.cells import CELL_BYTES, StreamDamage
from gristmill.readers.read import FORMATS, OWN_FORMATS, check_format
from gristmill.readers.texts.csv_file import RowRecords
from gristmill.readers.texts.delimited_file import RawCell
from gristmill.readers.texts.json_fields import encode_json_line
from gristmill.readers.texts.json_lines import LINE_END, JsonLinesReader
from gristmill.runtime.plugins import READER, find_plugin, list_plugin_names
from gristmill.storage.codecs import find_codec, strip_codec
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Generator

    import pyarrow as pa

    from gristmill.core.records import SourceFile
    from gristmill.readers.read import Read
    from gristmill.readers.texts.delimited_file import CutRecords


_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",  # also JSON lines: many corpora use this suffix for them
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".tar": "webdataset",
    **{f".{extension}": "files" for extension in FILE_EXTENSIONS},
    ".warc": "warc",
    ".wet": "warc",
}
JSON_FORMATS = ("jsonl", "json")
RECORD_FORMATS = (*JSON_FORMATS, "csv")
"""The formats whose records are read as JSON objects."""
_COMPRESSED_INSIDE = ("parquet", "arrow", "hugging_face")


def has_known_format(path: str) -> bool:
    """Whether a file's name says its format."""
    return posixpath.splitext(strip_codec(path))[1].lower() in _BY_SUFFIX


def file_format(path: str, declared: str | None = None) -> str:
    """Return the format of a file: what the recipe declares, else what its name says.

    >>> file_format("web/part-0001.jsonl.zst")
    'jsonl'
    >>> file_format("notes.log", declared="text")
    'text'
    """
    suffix = posixpath.splitext(strip_codec(path))[1].lower()
    if declared is not None and declared not in OWN_FORMATS:
        check_format(declared)
        format_name = declared
    elif suffix in _BY_SUFFIX:
        format_name = _BY_SUFFIX[suffix]
    elif suffix and find_plugin(READER, suffix[1:]) is not None:
        format_name = suffix[1:]
    else:
        names = ", ".join([*FORMATS, *list_plugin_names(READER)])
        raise UsageError(
            f"{path}: the format cannot be told from this name",
            help=f"name only the data files, or set format to one of {names}",
            unknown_reader=suffix[1:],
        )
    if format_name in _COMPRESSED_INSIDE and find_codec(path):
        raise UsageError(
            f"{path}: a {format_name} file inside another compression cannot be read",
            help="unpack it; its columns are compressed already",
        )
    return format_name


_FIRST_BYTES = 256
_KINDS = (
    (b"version https://git-lfs", "it is a pointer of Git LFS, not the file itself: run git lfs pull in its folder"),
    (b"/annex/objects/", "it is a pointer of git-annex, not the file itself: run git annex get in its folder"),
    (b"<!doctype html", "it is a web page, not data: the download was refused; check the address and the login"),
    (b"<html", "it is a web page, not data: the download was refused; check the address and the login"),
    (b"<?xml", "it is XML, perhaps an error message of a store, not the file; check the address and the login"),
    (b"PAR1", "it begins as Parquet and ends too early: its writer or its download was stopped; get the whole file"),
    (b"ARROW1", "it is an Arrow file: name it .arrow, or set format: arrow"),
    (b"\xff\xff\xff\xff", "it begins as an Arrow stream: name it .arrow, or set format: arrow"),
    (b"\x1f\x8b", "it is compressed with gzip: unpack it, or name it .jsonl.gz if it holds JSON lines"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: unpack it, or name it .jsonl.zst if it holds JSON lines"),
    (b"PK\x03\x04", "it is a zip archive: unpack it"),
    (b"{", "it looks like JSON: name it .jsonl, or set format: jsonl"),
    (b"[", "it looks like JSON: name it .jsonl, or set format: jsonl"),
)


def advise_on_file(path: str, expected_format: str) -> str:
    """Return what to do about a file that is not in the format that its name says (arrow, parquet)."""
    try:
        with open_input(path) as stream:
            first = stream.read(_FIRST_BYTES)
    except OSError:
        first = b""
    if not first.strip(b"\0"):
        problem = "it is empty" if not first else "it begins with zeros only: its disk or its writer failed"
        return f"{problem}: remove it, or rewrite it"
    for mark, advice in _KINDS:
        if first.lower().startswith(mark.lower()) and f"format: {expected_format}" not in advice:
            return advice
    return f"it begins with {first[:16]!r}: leave it out of read, set format to what it is, or rewrite it"


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
