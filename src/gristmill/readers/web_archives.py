"""WARC and WET files: the pages of responses as HTML, the texts of conversions, with `url`, `host`, `date`.

A file whose records are separate gzip members is cut by offsets: a record belongs to the cell of 4 MiB in which its
member begins, so any worker can begin anywhere. Other files, plain or compressed as a whole, are read from their start;
a cell is then about 4 MiB of content. What is no page (requests, metadata, pictures, errors of servers) is skipped and
counted.

Pages are the HTTP responses among the records, with any transfer, compression and encoding.
"""

from __future__ import annotations

import codecs
import io
import re
import zlib
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError, UsageError, install_command
from gristmill.core.records import ORIGIN, TEXT, TEXT_TYPE, QuarantinedRecord, make_origins
from gristmill.readers.cells import CELL_BYTES, CellBatch, StreamDamage
from gristmill.readers.field_types import FieldType, PlannedColumns
from gristmill.readers.texts.delimited_file import read_unpacked_chunks
from gristmill.readers.warc_records import ByteReader, MemberStream, WarcRecord, parse_headers, read_records
from gristmill.storage.codecs import decompress, find_codec
from gristmill.storage.files import open_input
from gristmill.storage.urls import find_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart
    from gristmill.readers.field_types import WantedColumns
    from gristmill.readers.read import Read


COLUMNS = {name: pa.string() for name in ("url", "host", "date", "content_type")}
"""The columns of a page, except its text. `date` is when it was fetched, as the file has it: 2026-01-31T12:00:00Z."""
_HTML_TYPES = ("text/html", "application/xhtml+xml", "")
_TEXT_TYPES = ("text/plain", "text/markdown")
_REPLACED = "\ufffd"


def open_file(part: FilePart, schema: pa.Schema) -> WarcReader:
    """Open a file for reading."""
    return WarcReader(part.read, part.file, schema, cell_bytes=part.cell_bytes)


def plan_columns(read: Read, files: Sequence[SourceFile], wanted: WantedColumns) -> PlannedColumns:  # noqa: ARG001
    """Plan the columns of pages, which are always the same."""
    for name in read.columns:
        if name not in COLUMNS:
            raise UsageError(
                f'columns: pages of web archives have no column "{name}"', help=f"there are {', '.join(COLUMNS)}"
            )
    chosen = COLUMNS if wanted.keeps_record else read.columns
    return PlannedColumns({name: FieldType(kind) for name, kind in COLUMNS.items() if name in chosen})


class WarcReader:
    """A reader of one WARC or WET file, cell by cell."""

    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema, *, cell_bytes: int = CELL_BYTES) -> None:
        self._file = file
        self._schema = schema
        self._max_record_bytes = read.max_record_bytes
        self._cell_bytes = cell_bytes
        self.can_cut = find_codec(file.path) == "gzip" and self._has_member_for_each_record()

    def _has_member_for_each_record(self) -> bool:
        """Tell whether the first gzip member ends with the first record."""
        with open_input(self._file.path) as file:
            for _, read in MemberStream(file, 0).members():
                try:
                    records = read_records(ByteReader(read), 0, self._max_record_bytes)
                    return next(records, None) is not None and next(records, None) is None
                except CorruptStreamError:
                    continue  # the next member decides; if there is none, this one holds everything
        return False

    def cell_sizes(self) -> list[int]:
        num_bytes = self._file.num_bytes
        return [min(self._cell_bytes, num_bytes - start) for start in range(0, num_bytes, self._cell_bytes)]

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        if not self.can_cut:
            yield from self._read_in_order(first, stop)
            return
        last = len(self.cell_sizes()) if stop is None else stop
        for cell in range(first, last):
            with open_input(self._file.path) as file:
                yield self._build_cell(cell, self._read_members(file, cell * self._cell_bytes))

    def _read_members(self, file: BinaryIO, start: int) -> Iterator[WarcRecord]:
        """Read the records whose members begin in the cell that begins at `start`."""
        # A member that begins before the cell is not mistaken for one: its bytes do not unpack to a record. Only an
        # archive within an archive, stored as it is, could be.
        stream, damaged = MemberStream(file, start), list[WarcRecord]()

        def measure_damaged(end: int) -> Iterator[WarcRecord]:
            """Yield the damaged member, now that its end is known: it is where the next one begins."""
            while damaged:
                record = damaged.pop()
                record.num_bytes = end - record.position
                yield record

        for position, read in stream.members(start + self._cell_bytes):
            yield from measure_damaged(position)
            try:
                # All at once: the checksum of a member is after its content.
                yield from list(read_records(ByteReader(read), position, self._max_record_bytes))
            except CorruptStreamError as error:
                damage = StreamDamage.from_error(error)
                damaged.append(WarcRecord({}, None, 0, (damage.reason, damage.message), position))
        yield from measure_damaged(stream.offset)

    def _read_in_order(self, first: int, stop: int | None) -> Iterator[CellBatch]:
        """Read all records from the start of the file, and give those of some cells."""
        cell, gathered, num_bytes = 0, list[WarcRecord](), 0
        for record in self._read_stream():
            if num_bytes >= self._cell_bytes:
                if cell >= first:
                    yield self._build_cell(cell, gathered)
                cell, gathered, num_bytes = cell + 1, [], 0
                if stop is not None and cell >= stop:
                    return
            num_bytes += record.num_bytes
            if cell >= first:
                gathered.append(record)
        if cell >= first:
            yield self._build_cell(cell, gathered)

    def _read_stream(self) -> Iterator[WarcRecord]:
        position = 0
        with closing(read_unpacked_chunks(self._file.path)) as chunks:
            source = ByteReader(lambda _: next(chunks, b""))
            try:
                for record in read_records(source, None, self._max_record_bytes):
                    yield record
                    position = source.position
            except CorruptStreamError as error:
                damage = StreamDamage.from_error(error)
                num_bytes = source.position - position + damage.num_unread
                yield WarcRecord({}, None, num_bytes, (damage.reason, damage.message), position)

    def _build_cell(self, cell: int, records: Iterator[WarcRecord] | list[WarcRecord]) -> CellBatch:
        page_list = _PageList(self._file.id, self._max_record_bytes)
        for record in records:
            page_list.add(record)
        positions = pa.array(np.array(page_list.positions, np.uint64), pa.uint64())
        parts = pa.array(page_list.parts, pa.uint32())
        columns = {
            ORIGIN: make_origins(self._file.id, positions, parts),
            TEXT: pa.array(page_list.texts, TEXT_TYPE),
            **{name: pa.array(values, COLUMNS[name]) for name, values in page_list.columns.items()},
        }
        arrays = [columns[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return CellBatch(cell, batch, page_list.num_blank, page_list.quarantined, page_list.counters)


class _PageList:
    """The pages of a cell, and what else was in it."""

    def __init__(self, file_id: int, max_record_bytes: int) -> None:
        self._file_id = file_id
        self._max_record_bytes = max_record_bytes
        self.positions: list[int] = []
        self.parts: list[int] = []
        self.texts: list[str] = []
        self.columns: dict[str, list[str | None]] = {name: [] for name in COLUMNS}
        self.num_blank = 0
        self.counters: Counter[str] = Counter()
        self.quarantined: list[QuarantinedRecord] = []

    def add(self, record: WarcRecord) -> None:
        """Add the page of a record, quarantine it, or count it as skipped."""
        if record.problem is not None:
            kind = record.headers.get("warc-type", "")
            if record.problem[0] == "too_large" and kind not in ("response", "conversion", "resource", ""):
                self.counters[f"skipped_{kind}"] += 1
                return
            self._quarantine(record, *record.problem, is_unread=record.problem[0] != "too_large")
            return
        assert record.content is not None
        kind = record.headers.get("warc-type", "").lower()
        if kind == "conversion":
            self._add_page(record, record.content, record.headers.get("content-type", ""))
        elif kind in ("response", "resource"):
            self._add_response(record, record.content, kind)
        else:
            self.counters[f"skipped_{kind if kind.isidentifier() else 'other'}"] += 1

    def _add_response(self, record: WarcRecord, content: bytes, kind: str) -> None:
        content_type, body = record.headers.get("content-type", ""), content
        if kind == "response":
            response = parse_response(content)
            if response is None:
                self.counters["skipped_not_http"] += 1
                return
            if response.status != 200:
                self.counters["skipped_status"] += 1
                return
            content_type = response.headers.get("content-type", "")
            try:
                body = unpack_body(response, self._max_record_bytes)
            except ValueError as error:
                self._quarantine(record, "invalid_body", str(error))
                return
        if content_type.partition(";")[0].strip().lower() not in (*_HTML_TYPES, *_TEXT_TYPES):
            self.counters["skipped_content_type"] += 1
            return
        self._add_page(record, body, content_type)

    def _add_page(self, record: WarcRecord, body: bytes, content_type: str) -> None:
        text = decode_page(body, content_type)
        if text.count(_REPLACED) > body.count(_REPLACED.encode()):
            self.counters["pages_with_replaced_bytes"] += 1
        if not text.strip():
            self.num_blank += 1
            return
        url = record.headers.get("warc-target-uri", "").strip("<>") or None
        self.positions.append(record.position)
        self.parts.append(record.part)
        self.texts.append(text)
        values = {
            "url": url,
            "host": find_host(url) or None if url else None,
            "date": record.headers.get("warc-date") or None,
            "content_type": content_type.partition(";")[0].strip().lower() or None,
        }
        for name, value in values.items():
            self.columns[name].append(value)

    def _quarantine(self, record: WarcRecord, reason: str, message: str, *, is_unread: bool = False) -> None:
        address = record.headers.get("warc-target-uri", "")
        raw = None if record.content is None else record.content
        self.quarantined.append(
            QuarantinedRecord(
                self._file_id,
                record.position,
                record.part,
                reason,
                f"{address}: {message}" if address else message,
                raw,
                record.num_bytes,
                is_unread=is_unread,
            )
        )


_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_HEAD_BYTES = 4096
# What pages mean when they say so: every browser reads these names as the larger sets.
_ALIASES = {"iso-8859-1": "cp1252", "latin-1": "cp1252", "latin1": "cp1252", "ascii": "cp1252", "us-ascii": "cp1252"}
_ALIASES |= {"gb2312": "gb18030", "gbk": "gb18030", "x-gbk": "gb18030", "shift_jis": "cp932", "x-sjis": "cp932"}
_ALIASES |= {"ks_c_5601-1987": "cp949", "euc-kr": "cp949", "iso-8859-9": "cp1254", "tis-620": "cp874"}
# Python's own: no browser knows them, and the time of the first two grows with the square of the page.
_NOT_FOR_PAGES = ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "utf-7")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response: its status, its headers, and its body as it was sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """The type of the body without its parameters, in lower case; empty if it is not given."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_response(content: bytes) -> HttpResponse | None:
    r"""Parse an HTTP response; None if it is none.

    >>> parse_response(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>hi")
    HttpResponse(status=200, headers={'content-type': 'text/html'}, body=b'<p>hi')
    """
    end = re.search(rb"\r?\n\r?\n", content)
    head, body = (content, b"") if end is None else (content[: end.start()], content[end.end() :])
    line, _, rest = head.partition(b"\n")
    match = re.match(rb"HTTP/\d(?:\.\d)? +(\d{3})", line)
    return None if match is None else HttpResponse(int(match[1]), parse_headers(rest), body)


def unpack_body(response: HttpResponse, max_bytes: int) -> bytes:
    """Return the body without chunks and compression; `ValueError` if it is damaged or too large.

    Crawlers that store unpacked bodies leave the headers as they were. So a body that does not look packed stays.
    """
    body = response.body
    if "chunked" in response.headers.get("transfer-encoding", "").lower():
        body = _join_chunks(body)
    for packing in reversed(
        response.headers.get("content-encoding", "").lower().split(",")
    ):  # the last was applied last
        body = _unpack(body, packing.strip(), max_bytes)
    return body


def _unpack(body: bytes, packing: str, max_bytes: int) -> bytes:
    if packing in ("gzip", "x-gzip") and body.startswith(b"\x1f\x8b"):
        return _inflate(body, zlib.MAX_WBITS | 16, max_bytes)
    if packing == "deflate" and body[:1] not in (b"<", b" ", b"\n", b"\r"):
        return _inflate(body, zlib.MAX_WBITS if body[:1] == b"\x78" else -zlib.MAX_WBITS, max_bytes)
    if packing in _UNPACKERS and not (body.lstrip()[:1] in (b"<", b"") or body[:512].isascii()):
        return _check_size(_UNPACKERS[packing](body, max_bytes), max_bytes)
    return body


def _inflate(body: bytes, bits: int, max_bytes: int) -> bytes:
    try:
        unpacked = zlib.decompressobj(bits).decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"the body cannot be unpacked: {error}") from error
    return _check_size(unpacked, max_bytes)


def _check_size(unpacked: bytes, max_bytes: int) -> bytes:
    if len(unpacked) > max_bytes:
        raise ValueError(f"the body has more than {max_bytes} bytes")
    return unpacked


def _unpack_zstd(body: bytes, max_bytes: int) -> bytes:
    pieces, num_bytes = list[bytes](), 0
    try:
        for piece in decompress(io.BytesIO(body), "zstd"):
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                break
    except CorruptStreamError as error:
        raise ValueError(f"the body cannot be unpacked: {error}") from error
    return b"".join(pieces)


def _unpack_brotli(body: bytes, max_bytes: int) -> bytes:
    try:
        import brotli  # noqa: PLC0415  (few archives need it)
    except ImportError:
        raise ValueError(f"the body is compressed with br: to read it, {install_command('web')}") from None
    decompressor = brotli.Decompressor()
    try:
        unpacked: bytes = decompressor.process(body, output_buffer_limit=max_bytes + 1)
        while len(unpacked) <= max_bytes and not decompressor.is_finished():
            piece = decompressor.process(b"", output_buffer_limit=max_bytes + 1 - len(unpacked))
            if not piece:
                raise ValueError("the body cannot be unpacked: it ends too early")
            unpacked += piece
    except brotli.error as error:
        raise ValueError(f"the body cannot be unpacked: {error}") from error
    return unpacked


_UNPACKERS = {"br": _unpack_brotli, "zstd": _unpack_zstd}


def _join_chunks(body: bytes) -> bytes:
    """Join the chunks of a body; one that has none was joined by the crawler, and stays."""
    pieces, position = list[bytes](), 0
    while match := re.compile(rb"([0-9A-Fa-f]{1,8})[^\r\n]{0,100}\r\n").match(body, position):
        size = int(match[1], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(body[match.end() : match.end() + size])
        position = match.end() + size + 2
    return b"".join(pieces) if pieces and position >= len(body) else body


def decode_page(body: bytes, content_type: str) -> str:
    """Decode a page: by its byte order mark, the header, its own `meta`, UTF-8, and last as Western European.

    A name that Python does not know is skipped. Bytes that do not fit become U+FFFD.
    """
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    names = [match[1] if (match := _CHARSET.search(content_type)) else ""]
    if match_meta := _META_CHARSET.search(body[:_HEAD_BYTES]):
        names.append(match_meta[1].decode())
    for name in filter(None, names):
        encoding = _ALIASES.get(name.lower(), name.lower())
        if encoding.replace("_", "-").startswith("utf-16") and _META_CHARSET.search(body[:_HEAD_BYTES]):
            encoding = "utf-8"  # the `meta` could be read, so it is not in UTF-16
        try:
            if codecs.lookup(encoding).name in _NOT_FOR_PAGES:
                continue
            return body.decode(encoding, "replace")
        except (LookupError, ValueError):  # also for what is no encoding of text, such as hex or zlib
            continue
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")
