r"""The layout of a `.json` file, found from its content: its records are lines, or the elements of one array.

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
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.names import find_nearest
from gristmill.steps.read.cells import ElementRange
from gristmill.steps.read.json_files.json_elements import ElementScanner
from gristmill.steps.read.raw_cells.cell_cutter import READ_BYTES
from gristmill.steps.read.raw_cells.delimited_file import BYTE_ORDER_MARK, read_unpacked_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.steps.read.read import Read

_HEAD_BYTES = 64 << 10
_LINE_BYTES = 1 << 20
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:\s*')
_SPACE = b" \t\r\n"
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
