"""The elements of a JSON array as records; a bad element affects no other, and an array may be larger than memory.

An element belongs to the cell of its first byte, and that is its position. In the middle of a file, a string cannot be
told from the text between strings: so everything before a cell is scanned for quotes and brackets (see `ScannedFile`).

An element over several lines is kept without its line ends: `record` is always one line.

The content of a `.json` file tells whether its records are lines or the elements of one array:

* It begins with "[": the records are the elements of that array.
* The first line is a whole object and others follow: JSON lines.
* It is one object, on one line or over many: the record itself, if it has the field of the text or a list of turns
  ("role", "from"); else the elements of its array of objects, if it has exactly one.
* Anything else: lines.

`field` names the array in an object: `data`, or `result.items` inside objects. Cost: the beginning of a file is read;
if it is one object, all of it is scanned once.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.checks import find_nearest
from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.records import RECORD_TYPE, QuarantinedRecord
from gristmill.readers.cells import CELL_BYTES, ElementRange
from gristmill.readers.texts import json_lines
from gristmill.readers.texts.cell_cutter import READ_BYTES
from gristmill.readers.texts.delimited_file import (
    BYTE_ORDER_MARK,
    CutRecords,
    ScannedCutter,
    ScannedFile,
    quarantine_unreadable,
    read_head,
    read_unpacked_chunks,
)
from gristmill.readers.texts.json_elements import ElementScanner
from gristmill.readers.texts.json_lines import JsonLinesReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart, UnpackedPiece
    from gristmill.readers.read import Read
    from gristmill.readers.texts.cell_cutter import ByteStream, CellCutter
    from gristmill.readers.texts.delimited_file import DelimitedFile, RawCell


_SPACE = b" \t\r\n"
_HEAD_BYTES = 64 << 10
_REST_OF_OBJECT = re.compile(rb'[\s}]*(?:\Z|,\s*"(?:[^"\\]|\\.)*"\s*:)')


class ElementCutter(ScannedCutter):
    """A cutter whose cells begin at an element, the first one at the opening bracket."""

    _scanner: ElementScanner

    def __init__(
        self,
        stream: ByteStream,
        start: int,
        elements: ElementRange,
        cell_bytes: int,
        num_bytes: int = 0,
        piece: UnpackedPiece | None = None,
    ) -> None:
        scanner = ElementScanner(is_open=start != elements.start or not elements.is_array)
        super().__init__(stream, start, scanner, cell_bytes, num_bytes, piece)
        self._is_whole = elements.is_whole
        # The end of a piece was checked when the piece was made.
        self._must_close = elements.is_array and piece is None
        self._has_closed = False

    def _find_end(self, border: int) -> int | None:
        size = super()._find_end(border)
        if size is None and self._scanner.is_closed and not self._has_closed:
            self._has_closed = True
            end = self.position - self._begin + self._scanner.end
            if not self._is_whole and not self._scanner.is_broken and self._continues_object(end):
                self._end, self._ended = self._offset(end), True  # ignore the rest of the object
            self._scanned = self._end - self._begin
        return size

    def _continues_object(self, end: int) -> bool:
        """Whether what follows the array can be the rest of an object, so that its bracket is no damaged byte."""
        while self._end - self._offset(end) < _HEAD_BYTES and self._read_more():
            pass
        rest = bytes(memoryview(self._buffer)[self._offset(end) : self._end][:_HEAD_BYTES])
        return _REST_OF_OBJECT.match(rest) is not None

    def _offset(self, position: int) -> int:
        """Return where a position of the stream is in the buffer."""
        return self._begin + position - self.position

    def _read_more(self) -> bool:
        has_more = super()._read_more()
        if not has_more and self.error is None and self._must_close and not self._scanner.is_closed:
            self.error = CorruptStreamError(
                "the array is not closed: the file is truncated, or a bracket is missing", reason="truncated_array"
            )
        return has_more


class ElementFile(ScannedFile):
    """The array of one file, or an unpacked piece of it, cut into raw cells."""

    def __init__(
        self,
        file: SourceFile,
        elements: ElementRange,
        max_record_bytes: int,
        piece: UnpackedPiece | None = None,
        cell_bytes: int = CELL_BYTES,
    ) -> None:
        super().__init__(file, elements.start, max_record_bytes, piece, cell_bytes)
        self._elements = elements

    @property
    def elements(self) -> ElementRange:
        return self._elements

    def _cutter(self, stream: ByteStream, start: int, num_bytes: int = 0) -> CellCutter:
        return ElementCutter(stream, start, self._elements, self._cell_bytes, num_bytes, self._piece)


def open_file(part: FilePart, schema: pa.Schema) -> JsonLinesReader:
    """Open a file for reading: the elements of its array, or its lines."""
    cells = open_cells(part)
    reader = JsonArrayReader if isinstance(cells, ElementFile) else JsonLinesReader
    return reader(part.read, cells, schema)


def open_cells(part: FilePart) -> DelimitedFile:
    """Open the plain bytes of the cells of a file."""
    elements = find_elements(part.read, part.file.path) if part.piece is None else part.piece.elements
    if elements is None:
        return json_lines.open_cells(part)
    return ElementFile(part.file, elements, part.read.max_record_bytes, part.piece, part.cell_bytes)


def sample_records(read: Read, file: SourceFile, most: int) -> Iterable[bytes]:
    """Return the records in the first bytes of a file."""
    elements = find_elements(read, file.path)
    if elements is None:
        return json_lines.sample_records(read, file, most)
    return _sample_elements(file, elements, most)


def _sample_elements(file: SourceFile, elements: ElementRange, most: int) -> Iterator[bytes]:
    data = read_head(file.path, elements.start, b"", most)
    split = ElementScanner(is_open=not elements.is_array).split(data)
    for start, stop in zip(split.starts.tolist(), split.stops.tolist(), strict=True):
        yield data[start:stop]
        if stop >= most:
            return
    if split.unfinished is not None:
        yield data[split.unfinished :]


class JsonArrayReader(JsonLinesReader):
    """A reader of the elements of an array, cell by cell."""

    _cells: ElementFile

    def _cut_cell(self, raw: RawCell) -> CutRecords:
        ranges = self._cells.elements
        is_opening = raw.start == ranges.start and ranges.is_array
        elements = ElementScanner(is_open=not is_opening).split(raw.data)
        starts, stops, quarantined = elements.starts, elements.stops, []
        if raw.rest is not None:
            raw.rest = self._rest(raw, raw.rest, elements.unfinished)
        elif elements.unfinished is not None:
            # An element that is too large, or the only record of the file.
            stop = elements.unfinished + len(bytes(raw.data[elements.unfinished :]).rstrip(_SPACE))
            starts, stops = np.append(starts, elements.unfinished), np.append(stops, stop)
        elif elements.end is not None:
            quarantined = self._quarantine_trailing(raw, elements.end)
        cut = CutRecords(raw, starts, stops, quarantined)
        sizes = stops - starts
        if elements.unfinished is not None and len(sizes) > len(elements.starts):
            sizes[-1] += raw.num_left_out
        self._quarantine_empty(cut)
        return quarantine_unreadable(cut, self._cells.file.id, sizes[sizes > 0], self._read.max_record_bytes)

    def _decode_together(self, cut: CutRecords) -> list[Any] | None:
        """Decode all elements in one call: a valid array has exactly the elements that the scanner found."""
        if not len(cut) or cut.quarantined or not cut.are_enclosed(b"{", b"}"):
            return None
        try:
            rows = self._fields.decode_array(b"".join((b"[", cut.raw.data[cut.starts[0] : cut.stops[-1]], b"]")))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return rows if len(rows) == len(cut) else None

    def _records(self, cut: CutRecords) -> pa.Array:
        data = bytes(cut.raw.data)
        if b"\n" in data or b"\r" in data:
            return pa.array([self._as_line(element) for element in map(bytes, cut)], RECORD_TYPE)
        return super()._records(cut)

    def _as_line(self, element: bytes) -> bytes:
        if b"\n" not in element and b"\r" not in element:
            return element
        try:
            return msgspec.json.format(element, indent=-1)
        except RecursionError:
            return element.translate(None, b"\r\n")  # line ends are between values: in strings they would be escaped

    def _rest(self, raw: RawCell, rest: QuarantinedRecord, unfinished: int | None) -> QuarantinedRecord:
        """Return the quarantined rest of a truncated array, with the beginning of its unfinished element."""
        if unfinished is None:
            return rest
        fragment = bytes(raw.data[unfinished:]).rstrip(_SPACE)
        return replace(
            rest,
            position=raw.start + unfinished,
            raw=None if raw.num_left_out else fragment,
            num_bytes=len(fragment) + raw.num_left_out + rest.num_bytes,
        )

    def _quarantine_trailing(self, raw: RawCell, end: int) -> list[QuarantinedRecord]:
        """Quarantine the text after the array, if that is not white space alone."""
        data = bytes(raw.data[end:])
        follows = data.strip(_SPACE)
        if not follows and not raw.num_left_out:
            return []
        return [
            QuarantinedRecord(
                file=self._cells.file.id,
                position=raw.start + end + len(data) - len(data.lstrip(_SPACE)),
                part=0,
                reason="after_array",
                message="something follows the array, or a bracket in it is damaged",
                raw=None if raw.num_left_out else follows,
                num_bytes=len(follows) + raw.num_left_out,
                is_malformed=True,
            )
        ]

    def _quarantine_empty(self, cut: CutRecords) -> None:
        """Quarantine empty places between two commas: unlike a blank line, each is a missing element."""
        empty = np.flatnonzero(cut.starts == cut.stops).tolist()
        cut.quarantined += [
            QuarantinedRecord(
                self._cells.file.id, int(cut.positions[index]), 0, "invalid_json", "no value before a comma or the end"
            )
            for index in empty
        ]
        cut.drop(empty)


_LINE_BYTES = 1 << 20
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:\s*')
_TURN_KEYS = {"role", "from"}
_WHOLE_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def find_elements(read: Read, path: str) -> ElementRange | None:
    """Find the array with the records of a `.json` file; None if it holds lines."""
    with closing(read_unpacked_chunks(path)) as chunks, closing(read_unpacked_chunks(path)) as again:
        return _find_in_document(read, path, _DocumentWalk(chunks), _DocumentWalk(again))


def find_elements_in(read: Read, path: str, data: bytes) -> ElementRange | None:
    """Like `find_elements`, for the content of a small file."""
    return _find_in_document(read, path, _DocumentWalk(iter((data,))), _DocumentWalk(iter((data,))))


def _find_in_document(read: Read, path: str, walk: _DocumentWalk, ahead: _DocumentWalk) -> ElementRange | None:
    """Find the array by a walk through the document; `ahead` is a second walk, to find its end without holding it."""
    start = walk.skip_space(len(BYTE_ORDER_MARK) if walk.peek(0, 3) == BYTE_ORDER_MARK else 0)
    first = walk.peek(start, 1)
    if read.field is not None:
        return _find_named_array(read.field, path, walk, start) if first else None
    if first == b"[":
        return ElementRange(start, is_array=True)
    if first != b"{":
        return None
    line, has_end = walk.line(start)
    if has_end and _is_object(line):
        if walk.peek(walk.skip_space(start + len(line)), 1):
            return None
        return _find_only_array(read, walk, start)
    if not _begins_document(walk.peek(start, _HEAD_BYTES)):
        return None
    if not has_end and (end := ahead.end_of(start)) is not None and ahead.peek(ahead.skip_space(end), 1):
        return None  # lines, and the first one is long
    return _find_only_array(read, walk, start) or ElementRange(start, is_array=False)


def _find_only_array(read: Read, walk: _DocumentWalk, start: int) -> ElementRange | None:
    """Find the only array of objects in the object that begins at `start`; None if the object is itself a record."""
    text = read.text.split(".")[0]
    arrays = []
    for key, value in walk.members(start):
        if key == text:
            return None
        head = walk.peek(value, 1)
        if head == b"[" and walk.peek(inner := walk.skip_space(value + 1), 1) == b"{":
            if _TURN_KEYS & _list_first_keys(walk.peek(inner, _HEAD_BYTES)):
                return None
            arrays.append(value)
    return ElementRange(arrays[0], is_array=True, is_whole=False) if len(arrays) == 1 else None


def _find_named_array(field: str, path: str, walk: _DocumentWalk, start: int) -> ElementRange:
    """Find the array that `field` names."""
    at = start
    for number, name in enumerate(names := field.split(".")):
        if walk.peek(at, 1) != b"{":
            parent = ".".join(names[:number])
            subject = f"its {parent} is" if parent else "it is"
            raise UsageError(f"{path}: field {field!r} names an array in an object, but {subject} not an object")
        keys = []
        for key, value in walk.members(at):
            keys.append(key)
            if key == name:
                at = value
                break
        else:
            meant = find_nearest(name, keys)
            hint = f'did you mean "{meant}"?' if meant else f"the fields there are {', '.join(keys[:20])}"
            raise UsageError(f"{path}: there is no field {'.'.join(names[: number + 1])!r}", help=hint)
    if walk.peek(at, 1) != b"[":
        raise UsageError(
            f"{path}: field {field!r} is not an array", help="name the field that holds the list of records"
        )
    return ElementRange(at, is_array=True, is_whole=False)


def _is_object(line: bytes) -> bool:
    try:
        _WHOLE_OBJECT.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _begins_document(head: bytes) -> bool:
    """Whether the bytes can be the beginning of one JSON document over several lines."""
    text = head.decode(errors="ignore")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        # The error is at the end, or in a string that the end of the bytes has cut.
        return error.pos >= len(text) - 8 or error.msg.startswith("Unterminated string")
    except (RecursionError, ValueError):
        return False
    return True


def _list_first_keys(head: bytes) -> set[str]:
    """Return the keys of the object that begins here, if it is small."""
    try:
        first: Any = json.JSONDecoder().raw_decode(head.decode(errors="ignore"))[0]
    except (ValueError, RecursionError):
        return set()
    return set(first) if isinstance(first, dict) else set()


class _DocumentWalk:
    """A walk forward through a document, which holds the bytes from the last scanned place on."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = bytearray()
        self._offset = 0

    def peek(self, at: int, size: int) -> bytes:
        """Return the bytes from a place on; fewer at the end, or where a damaged stream ends."""
        while self._offset + len(self._held) < at + size and (chunk := self._find_next()):
            self._held += chunk
        return bytes(self._held[at - self._offset : at - self._offset + size])

    def skip_space(self, at: int) -> int:
        """Return the first place from here on that is not white space."""
        while block := self.peek(at, _HEAD_BYTES):
            rest = len(block.lstrip(_SPACE))
            at += len(block) - rest
            if rest:
                break
        return at

    def line(self, at: int) -> tuple[bytes, bool]:
        """Return the bytes up to the end of the line or of the document, and whether that is within 1 MiB."""
        block = self.peek(at, _LINE_BYTES)
        end = block.find(b"\n")
        return (block[:end], True) if end >= 0 else (block, len(block) < _LINE_BYTES)

    def end_of(self, at: int) -> int | None:
        """Return the place after the closing bracket of the object that begins at `at`."""
        scanner = ElementScanner(is_open=False, is_object=True)
        while block := self._block(at):
            scanner.find_start(block, 0, len(block), len(block))
            if scanner.is_closed:
                return at + scanner.end
            at += len(block)
        return None

    def members(self, at: int) -> Iterator[tuple[str, int]]:
        """Yield the keys of the object that begins at `at`, and where their values begin."""
        scanner = ElementScanner(is_open=False, is_object=True)
        while not scanner.is_closed and (block := self._block(at)):
            begin, at_least = 0, 0
            while (start := scanner.find_start(block, begin, len(block), at_least)) is not None:
                key = _KEY.match(self.peek(at + start, _HEAD_BYTES))
                if key is not None:
                    yield _decode_key(key[1]), at + start + key.end()
                begin, at_least = start, start + 1
            at += len(block)

    def _block(self, at: int) -> bytes:
        """Return the next bytes to scan, and drop those before them."""
        self.peek(at, 1)
        del self._held[: at - self._offset]
        self._offset = at
        return self.peek(at, READ_BYTES)

    def _find_next(self) -> bytes:
        try:
            return next(self._chunks, b"")
        except CorruptStreamError:
            return b""  # use the readable part; the reader of the records reports the damage


def _decode_key(key: bytes) -> str:
    try:
        decoded: str = json.loads(b'"' + key + b'"')
    except ValueError:
        return key.decode(errors="replace")
    return decoded
