"""WARC and WET files: the pages of responses as HTML, the texts of conversions, with `url`, `host`, `date`.

A file whose records are gzip members of their own is cut by offsets: a record belongs to the cell of 4 MiB in which its
member begins, so any worker can begin anywhere. Other files, plain or compressed as a whole, are read from their start;
a cell is then about 4 MiB of content. What is no page (requests, metadata, pictures, errors of servers) is skipped and
counted.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError
from gristmill.core.records import ORIGIN, TEXT, TEXT_TYPE, QuarantinedRecord, make_origins
from gristmill.steps.cleaning.url import find_host
from gristmill.steps.read.cells import CELL_BYTES, CellBatch, StreamDamage
from gristmill.steps.read.raw_cells.delimited_file import read_unpacked_chunks
from gristmill.steps.read.web_archives.pages import decode_page, parse_response, unpack_body
from gristmill.steps.read.web_archives.warc_records import (
    ByteReader,
    MemberStream,
    WarcRecord,
    read_records,
)
from gristmill.storage.codecs.compression import find_codec
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.read import Read

COLUMNS = {name: pa.string() for name in ("url", "host", "date", "content_type")}
"""The columns of a page beside its text. `date` is when it was fetched, as the file has it: 2026-01-31T12:00:00Z."""
_HTML_TYPES = ("text/html", "application/xhtml+xml", "")
_TEXT_TYPES = ("text/plain", "text/markdown")
_REPLACED = "\ufffd"


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
        end = start + self._cell_bytes
        for position, read in MemberStream(file, start).members(end):
            try:
                # All at once: the checksum of a member is behind its content.
                yield from list(read_records(ByteReader(read), position, self._max_record_bytes))
            except CorruptStreamError as error:
                damage = StreamDamage.from_error(error)
                yield WarcRecord(position, 0, {}, None, 0, (damage.reason, damage.message))

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
                yield WarcRecord(position, 0, {}, None, 0, (damage.reason, damage.message))

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
            self._quarantine(record, *record.problem)
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

    def _quarantine(self, record: WarcRecord, reason: str, message: str) -> None:
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
            )
        )
