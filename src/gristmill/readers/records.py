"""A file as records, without a recipe: for the viewer, for benchmarks and for whoever looks into a file.

`open_records` finds the format as a run does. JSON lines, Parquet, Arrow and tars are read at any number; every other
format is read forwards by the reader of runs, so that an earlier record costs reading from the start. A record that
cannot be read becomes a `BadRecord`, and the others are still there. Memory is bounded by one piece of a file and one
record of at most 64 MiB, regardless of what the file says about itself.
"""

from __future__ import annotations

import posixpath
from array import array
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.json_values import decode_json
from gristmill.core.records import ORIGIN, RECORD
from gristmill.readers.formats import file_format, find_format
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import list_source_files, open_reader
from gristmill.readers.tables.parquet import open_parquet
from gristmill.readers.texts.delimited_file import BYTE_ORDER_MARK
from gristmill.readers.texts.json_array import find_elements
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.storage.codecs import decompress, find_codec
from gristmill.storage.files import open_input, open_stream_source
from gristmill.storage.locations import parse_location
from gristmill.storage.paths import find_files
from gristmill.storage.tar_index import index_tar
from gristmill.storage.tar_scan import read_content, split_sample_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gristmill.readers.cells import CellBatch
    from gristmill.storage.tar_index import TarIndex
    from gristmill.storage.tar_scan import TarMember

MAX_RECORD_BYTES = 64 << 20
_PIECE = 1 << 20
_ROWS_AT_ONCE = 64
_LINES_AT_ONCE = 512
_ARROW_FILE = b"ARROW1"
RECORD_ERRORS = (*READ_ERRORS, RecursionError, TypeError)


def open_records(path: str) -> RecordFile:
    """Open a file by its name.

    Raises:
        UsageError: Its format is not known, or it is not what its name says.
    """
    kind = file_format(path)
    if kind == "webdataset" and find_codec(path) is not None:
        raise UsageError(f"{path} is compressed as a whole, so no row can be found in it", help="unpack it first")
    try:
        if kind == "jsonl" or (kind == "json" and find_elements(Read(read=path), path) is None):
            return JsonLinesFile(path)
        if kind == "parquet":
            return _open_parquet_file(path)
        if kind == "arrow":
            return _open_arrow_file(path)
        return TarFile(path) if kind == "webdataset" else ForwardFile(path, kind)
    except READ_ERRORS as error:
        raise UsageError(f"{path} cannot be read as {kind}: {error}", help="check what the file is") from error


class BadRecord(msgspec.Struct, frozen=True):
    """A record that cannot be read, and what there is of it."""

    problem: str
    text: str = ""


Record = dict[str, Any] | BadRecord


class RecordFile(Protocol):
    """The records of a file, addressable by number."""

    num_rows: int
    note: str
    """What is wrong with the file as a whole."""

    def row(self, index: int) -> Record: ...

    def rows(self) -> Iterator[Record]: ...


class JsonLinesFile:
    """Lines of JSON. All lines are counted at once, at some GB/s, with 8 bytes a MiB to find them again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._codec = find_codec(path)
        self.note = ""
        counts, last = [], b"\n"
        try:
            for piece in self._read_pieces():
                counts.append(piece.count(b"\n"))
                last = piece[-1:]
        except (CorruptStreamError, EOFError) as error:
            self.note = f"{posixpath.basename(path)} is damaged: {error}"
        self._ends = np.cumsum([0, *counts])
        self.num_rows = int(self._ends[-1]) + (last != b"\n")
        self._lines: Iterator[bytes | BadRecord] = iter(())
        self._next = -1

    def row(self, index: int) -> Record:
        if not self._next <= index < self._next + 10_000 or self._next < 0:
            # Line i begins after line break i, which is in this piece; a compressed file is read from its start.
            piece = 0 if self._codec is not None else max(0, int(np.searchsorted(self._ends, index, side="left")) - 1)
            self._lines, self._next = self._read_lines(piece), int(self._ends[piece])
            if piece:
                next(self._lines, None)  # the end of the line before
                self._next += 1
        line: bytes | BadRecord = b""
        while self._next <= index:
            line = next(self._lines, BadRecord("the file has become shorter"))
            self._next += 1
        return decode_line(line)

    def rows(self) -> Iterator[Record]:
        return map(decode_line, self._read_lines(0))

    def read_chunks(self) -> Iterator[bytes]:
        """Read groups of whole lines, for a search; of a line that is too long, the beginning."""
        lines = (line.text.encode() if isinstance(line, BadRecord) else line for line in self._read_lines(0))
        while group := list(islice(lines, _LINES_AT_ONCE)):
            yield b"\n".join(group)

    def _read_lines(self, first_piece: int) -> Iterator[bytes | BadRecord]:
        pending: list[bytes] = []
        num_pending = 0
        try:
            for number, piece in enumerate(self._read_pieces(first_piece), first_piece):
                *lines, rest = (piece if number else piece.removeprefix(BYTE_ORDER_MARK)).split(b"\n")
                for line in lines:
                    num_pending += len(line)
                    is_long = num_pending > MAX_RECORD_BYTES
                    yield _make_too_long(num_pending, pending) if is_long else b"".join([*pending, line])
                    pending, num_pending = [], 0
                num_pending += len(rest)
                if num_pending <= MAX_RECORD_BYTES or not pending:
                    pending.append(rest)
        except (CorruptStreamError, EOFError):
            pass  # `note` says so
        if num_pending:
            yield _make_too_long(num_pending, pending) if num_pending > MAX_RECORD_BYTES else b"".join(pending)

    def _read_pieces(self, first: int = 0) -> Iterator[bytes]:
        with open_input(self._path, first * _PIECE) as stream:
            if self._codec is not None:
                yield from decompress(stream, self._codec)
                return
            while piece := _read_full(stream):
                yield piece


def _read_full(stream: Any) -> bytes:
    """Read a whole piece, so that piece n begins at n MiB."""
    data: bytes = stream.read(_PIECE)
    while data and len(data) % _PIECE and (more := stream.read(_PIECE - len(data) % _PIECE)):
        data += more
    return data


def _make_too_long(num_bytes: int, pending: list[bytes]) -> BadRecord:
    beginning = b"".join(pending[:1])[:1000].decode(errors="replace")
    return BadRecord(f"the line has {num_bytes:,} bytes, more than the {MAX_RECORD_BYTES:,} that are read", beginning)


def _make_bad(problem: str, content: bytes | None) -> BadRecord:
    return BadRecord(problem, (content or b"")[:10_000].decode(errors="replace"))


def decode_line(line: bytes | BadRecord) -> Record:
    """Decode a line; one that is no JSON becomes a bad record."""
    if isinstance(line, BadRecord):
        return line
    try:
        value: Any = decode_json(line)
    except RECORD_ERRORS as error:
        return _make_bad(f"the line is not JSON: {error}", line)
    return value if isinstance(value, dict) else {"value": value}


class BatchFile:
    """Arrow batches, read forwards: an earlier row than the last one costs reading from the start of its part."""

    note = ""

    def __init__(self, part_rows: list[int], open_part: Callable[[int], Iterator[pa.RecordBatch]]) -> None:
        self._ends = np.cumsum([0, *part_rows])
        self.num_rows = int(self._ends[-1])
        self._open_part = open_part
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None
        self._first = self._part = -1

    def row(self, index: int) -> Record:
        part = int(np.searchsorted(self._ends, index, side="right")) - 1
        if self._batch is None or part != self._part or index < self._first:
            self._batches, self._part = self._open_part(part), part
            self._first, self._batch = int(self._ends[part]), next(self._batches, None)
            if self._batch is None:
                raise EOFError("the file ends before this row")
        while index >= self._first + self._batch.num_rows:
            self._first += self._batch.num_rows
            self._batch = next(self._batches, None)
            if self._batch is None:
                raise EOFError("the file ends before this row")
        return _decode_row(self._batch, index - self._first)

    def rows(self) -> Iterator[Record]:
        for part in range(len(self._ends) - 1):
            for batch in self._open_part(part):
                yield from (_decode_row(batch, row) for row in range(batch.num_rows))


def _decode_row(batch: pa.RecordBatch, index: int) -> Record:
    try:
        row = batch.slice(index, 1)
        row.validate(full=True)
        record: dict[str, Any] = row.to_pylist()[0]
    except RECORD_ERRORS as error:
        return BadRecord(f"the row cannot be read: {error}")
    return record


def _open_parquet_file(path: str) -> BatchFile:
    def open_batches(part: int) -> Iterator[pa.RecordBatch]:
        with open_input(path) as stream, open_parquet(stream, path) as file:
            yield from file.iter_batches(_ROWS_AT_ONCE, row_groups=[part], use_threads=False)

    with open_input(path) as stream, open_parquet(stream, path) as file:
        part_rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    return BatchFile(part_rows, open_batches)


def _open_arrow_file(path: str) -> BatchFile:
    with open_input(path) as stream:
        is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE

    def open_batches(_: int) -> Iterator[pa.RecordBatch]:
        with open_stream_source(parse_location(path)) as mapped:
            if is_file:
                with pa.ipc.open_file(mapped) as file:
                    yield from (file.get_batch(number) for number in range(file.num_record_batches))
            else:
                with pa.ipc.open_stream(mapped) as stream:
                    yield from stream

    return BatchFile([sum(batch.num_rows for batch in open_batches(0))], open_batches)


class ForwardFile:
    """Records as a run reads them: JSON arrays, CSV, texts, web archives, and what plugins read."""

    note = ""

    def __init__(self, path: str, kind: str) -> None:
        read = Read(read=path)
        [file] = list_source_files("file", read, find_files(path))
        has_text = find_format(kind).content != "objects"
        schema = plan_schema(read, [file], keeps_record=True, has_text=has_text)
        self._reader = open_reader(read, file, schema)
        self.num_rows = sum(cell.batch.num_rows + len(cell.quarantined) for cell in self._reader.read_cells())
        self._records: Iterator[Record] = iter(())
        self._next = self.num_rows

    def row(self, index: int) -> Record:
        if index < self._next:
            self._records, self._next = self.rows(), 0
        record: Record = BadRecord("the file has become shorter")
        while self._next <= index:
            record = next(self._records, record)
            self._next += 1
        return record

    def rows(self) -> Iterator[Record]:
        return chain.from_iterable(map(_list_records, self._reader.read_cells()))


def _list_records(cell: CellBatch) -> Iterator[Record]:
    """Iterate over the records of a cell, the quarantined ones at their places."""
    batch = cell.batch
    positions = batch.column(ORIGIN).field("position").to_pylist()
    if RECORD in batch.schema.names:
        records: list[Record] = list(map(decode_line, batch.column(RECORD).to_pylist()))
    else:
        records = batch.drop_columns([ORIGIN]).to_pylist()
    bad = ((entry.position, _make_bad(entry.message, entry.raw)) for entry in cell.quarantined)
    return map(itemgetter(1), sorted(chain(zip(positions, records, strict=True), bad), key=itemgetter(0)))


class TarFile:
    """The samples of a tar: consecutive members with one key. A member without a key is shown alone."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._members: TarIndex = index_tar(self._path)
        self.note = f"{posixpath.basename(path)} is damaged: {self._members.fault}" if self._members.fault else ""
        keys = (_find_key(member) or number for number, member in enumerate(self._members.members()))
        sizes = array("Q", [0])
        sizes.extend(sum(1 for _ in group) for _, group in groupby(keys))
        self._starts = np.cumsum(sizes)
        self.num_rows = len(sizes) - 1

    def row(self, index: int) -> Record:
        record: dict[str, Any] = {}
        with open_input(self._path) as stream:
            for member in self._members.members(int(self._starts[index]), int(self._starts[index + 1])):
                key = _find_key(member)
                record["__key__" if key else "member"] = key or member.name
                name = member.name[len(key) + 1 :] if key else "content"
                if member.is_lost():
                    record = {"damaged": member.name}
                elif not member.isreg():
                    record[name] = "a folder" if member.isdir() else "not a file: a link or a device"
                elif member.size > MAX_RECORD_BYTES:
                    record[name] = f"{member.size:,} bytes, more than the {MAX_RECORD_BYTES:,} that are read"
                else:
                    content = read_content(stream, member)
                    record[name] = "the tar has become shorter" if content is None else _decode_member(name, content)
        return record

    def rows(self) -> Iterator[Record]:
        return map(self.row, range(self.num_rows))


def _find_key(member: TarMember) -> str:
    parts = None if member.is_lost() else split_sample_name(member.name)
    return parts[0] if parts else ""


def _decode_member(name: str, content: bytes) -> Any:
    """Decode a member that is JSON or text; anything else stays bytes."""
    extension = name.rpartition(".")[2].lower()
    try:
        if extension in ("json", "jsonl"):
            return decode_json(content)
        if extension in ("txt", "text", "cls", "md", "html", "svg", "xml", "csv", "yaml"):
            return content.decode()
    except RECORD_ERRORS:
        pass
    return content
