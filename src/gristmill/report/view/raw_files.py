"""Raw files, before any recipe exists: JSON lines, Parquet, Arrow and third-party tars, read one record at a time.

A record that cannot be read becomes a `BadRecord`, and the others are still shown. Memory is bounded by one piece of a
file and one record of at most 64 MiB, regardless of what the file says about itself.
"""

from __future__ import annotations

import bisect
from array import array
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.json_values import decode_json
from gristmill.report.view.describe import describe_record, list_pictures
from gristmill.report.view.rows import RowRange, Rows
from gristmill.report.view.search import make_line_blocks, make_record_blocks
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.storage.codecs import decompress, find_codec
from gristmill.storage.files import open_input, open_stream_source
from gristmill.storage.tar_index import index_tar
from gristmill.storage.tar_scan import read_content, split_sample_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gristmill.report.view.rows import RowBlock
    from gristmill.storage.tar_index import TarIndex
    from gristmill.storage.tar_scan import TarMember

MAX_RECORD_BYTES = 64 << 20
_PIECE = 1 << 20
_ROWS_AT_ONCE = 64
_LINES_AT_ONCE = 512
_ARROW_FILE = b"ARROW1"
RECORD_ERRORS = (*READ_ERRORS, RecursionError, TypeError)


class FileRows(Rows):
    """The records of raw files, one file after another. Files are the sources."""

    def __init__(self, paths: list[Path]) -> None:
        self.title = ", ".join(path.name for path in paths[:3]) + (" …" if len(paths) > 3 else "")
        self._paths = paths
        self._files = [open_raw_file(path) for path in paths]
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

    def _read(self, number: int) -> RawRecord:
        file = bisect.bisect_right(self._starts, number) - 1
        try:
            return self._files[file].row(number - self._starts[file])
        except RECORD_ERRORS as error:
            return BadRecord(f"the record cannot be read: {error}")

    def describe_row(self, number: int) -> dict[str, Any]:
        file = bisect.bisect_right(self._starts, number) - 1
        origin = f"{self._ranges[file].source}, record {number - self._starts[file]:,}"
        record = self._read(number)
        if isinstance(record, BadRecord):
            return {"number": number, "origin": origin, "bad": record.problem, "text": record.text}
        try:
            return {"number": number, "origin": origin, **describe_record(record)}
        except RecursionError:
            return {"number": number, "origin": origin, "bad": "the record is nested too deeply to be shown"}

    def read_pictures(self, number: int) -> list[bytes]:
        record = self._read(number)
        return [] if isinstance(record, BadRecord) else [content for _, content in list_pictures(record)]

    def read_blocks(self, start: int, end: int) -> Iterator[RowBlock]:
        for path, part in zip(self._paths, self._ranges, strict=True):
            if part.start < end and part.start + part.rows > start:
                file = open_raw_file(path)
                if isinstance(file, JsonLinesFile):
                    yield from make_line_blocks(file.read_chunks(), _decode_for_search, part.start)
                else:
                    yield from make_record_blocks(map(_make_searchable, file.rows()), part.start)


def _decode_for_search(line: bytes) -> dict[str, Any]:
    return _make_searchable(decode_line(line))


def _make_searchable(record: RawRecord) -> dict[str, Any]:
    return {"text": record.text} if isinstance(record, BadRecord) else record


class BadRecord(msgspec.Struct, frozen=True):
    """A record that cannot be read, and what there is of it."""

    problem: str
    text: str = ""


RawRecord = dict[str, Any] | BadRecord


class RawFile(Protocol):
    """The records of a file."""

    num_rows: int
    note: str
    """What is wrong with the file as a whole."""

    def row(self, index: int) -> RawRecord: ...

    def rows(self) -> Iterator[RawRecord]: ...


class JsonLinesFile:
    """Lines of JSON. All lines are counted at once, at some GB/s, with 8 bytes a MiB to find them again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._codec = find_codec(str(path))
        self.note = ""
        counts, last = [], b"\n"
        try:
            for piece in self._read_pieces():
                counts.append(piece.count(b"\n"))
                last = piece[-1:]
        except (CorruptStreamError, EOFError) as error:
            self.note = f"{path.name} is damaged: {error}"
        self._ends = np.cumsum([0, *counts])
        self.num_rows = int(self._ends[-1]) + (last != b"\n")
        self._lines: Iterator[bytes | BadRecord] = iter(())
        self._next = -1

    def row(self, index: int) -> RawRecord:
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

    def rows(self) -> Iterator[RawRecord]:
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
            for piece in self._read_pieces(first_piece):
                *lines, rest = piece.split(b"\n")
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
        with open_input(str(self._path), first * _PIECE) as stream:
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


def decode_line(line: bytes | BadRecord) -> RawRecord:
    """Decode a line; one that is no JSON becomes a bad record."""
    if isinstance(line, BadRecord):
        return line
    try:
        value: Any = decode_json(line)
    except RECORD_ERRORS as error:
        return BadRecord(f"the line is not JSON: {error}", line[:10_000].decode(errors="replace"))
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

    def row(self, index: int) -> RawRecord:
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

    def rows(self) -> Iterator[RawRecord]:
        for part in range(len(self._ends) - 1):
            for batch in self._open_part(part):
                yield from (_decode_row(batch, row) for row in range(batch.num_rows))


def _decode_row(batch: pa.RecordBatch, index: int) -> RawRecord:
    try:
        row = batch.slice(index, 1)
        row.validate(full=True)
        record: dict[str, Any] = row.to_pylist()[0]
    except RECORD_ERRORS as error:
        return BadRecord(f"the row cannot be read: {error}")
    return record


def open_parquet(path: Path) -> BatchFile:
    """Open a Parquet file."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = pq.ParquetFile(str(path), buffer_size=_PIECE)
    metadata = file.metadata
    part_rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    return BatchFile(part_rows, lambda part: file.iter_batches(_ROWS_AT_ONCE, row_groups=[part], use_threads=False))


def open_arrow(path: Path) -> BatchFile:
    """Open an Arrow file or an Arrow stream."""
    with open_input(str(path)) as stream:
        is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE

    def open_batches(_: int) -> Iterator[pa.RecordBatch]:
        with open_stream_source(path) as mapped:
            if is_file:
                with pa.ipc.open_file(mapped) as file:
                    yield from (file.get_batch(number) for number in range(file.num_record_batches))
            else:
                with pa.ipc.open_stream(mapped) as stream:
                    yield from stream

    return BatchFile([sum(batch.num_rows for batch in open_batches(0))], open_batches)


class TarFile:
    """The samples of a tar: consecutive members with one key. A member without a key is shown alone."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._members: TarIndex = index_tar(self._path)
        self.note = f"{path.name} is damaged: {self._members.fault}" if self._members.fault else ""
        keys = (_find_key(member) or number for number, member in enumerate(self._members.members()))
        sizes = array("Q", [0])
        sizes.extend(sum(1 for _ in group) for _, group in groupby(keys))
        self._starts = np.cumsum(sizes)
        self.num_rows = len(sizes) - 1

    def row(self, index: int) -> RawRecord:
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

    def rows(self) -> Iterator[RawRecord]:
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


_OPENERS: dict[str, Callable[[Path], RawFile]] = {
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".json": JsonLinesFile,
    ".parquet": open_parquet,
    ".arrow": open_arrow,
    ".tar": TarFile,
}


def open_raw_file(path: Path) -> RawFile:
    """Open a file by its suffix.

    Raises:
        UsageError: It has another format, or is not what its name says.
    """
    suffix = next((suffix for suffix in reversed(path.suffixes) if suffix.lower() in _OPENERS), None)
    if suffix is None:
        raise UsageError(
            f"{path} has no format that can be shown",
            help=f"known are {', '.join(_OPENERS)}; JSON lines may be compressed",
        )
    opener = _OPENERS[suffix.lower()]
    if opener is not JsonLinesFile and find_codec(str(path)) is not None:
        raise UsageError(f"{path} is compressed as a whole, so no row can be found in it", help="unpack it first")
    try:
        return opener(path)
    except READ_ERRORS as error:
        raise UsageError(f"{path} cannot be read as {suffix[1:]}: {error}", help="check what the file is") from error
