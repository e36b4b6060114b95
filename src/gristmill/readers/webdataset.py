"""WebDataset tars with members of any kind. Nothing is ever written to disk under a member's name.

A cell is as many samples as have about 4 MiB of members. A piece of a large plain tar is read by an index of its
members (`storage.tar_index`), which the run makes first. A small tar is scanned as it is read, and a compressed one
that was not unpacked is a stream; for a range of these, everything before it is read too.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError
from gristmill.core.json_values import with_text
from gristmill.core.media import ANY_IMAGE, is_bytes
from gristmill.core.records import (
    CARRIES_ALL,
    KEY,
    ORIGIN,
    OTHER_FIELDS,
    RECORD,
    RECORD_TYPE,
    TEXT,
    TEXT_TYPE,
    QuarantinedRecord,
)
from gristmill.readers.cells import CELL_BYTES, CellBatch, UnpackedPiece, build_batch, extra_columns
from gristmill.readers.field_types import FieldType, choose_spread
from gristmill.readers.tar_columns import (
    MemberColumns,
    OwnSampleColumns,
    plan_member_columns,
    plan_own_samples,
    sample_members,
)
from gristmill.readers.tar_samples import (
    JSON,
    MemberPath,
    SkippedMember,
    StrayMember,
    TarSample,
    TarSampleWalk,
    TarStream,
    add_members_to_json,
    member_path,
)
from gristmill.readers.texts.delimited_file import read_unpacked_chunks
from gristmill.readers.texts.json_fields import JsonFields
from gristmill.shards.formats.tar_members import MemberLayout
from gristmill.storage.codecs import find_codec
from gristmill.storage.files import open_input
from gristmill.storage.tar_index import PlainTar, TarIndexBuilder, load_tar_index
from gristmill.storage.tar_scan import TarScan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart
    from gristmill.readers.field_types import PlannedColumns, WantedColumns
    from gristmill.readers.read import Read
    from gristmill.storage.tar_index import TarIndex
    from gristmill.storage.tar_scan import TarMember


def open_file(part: FilePart, schema: pa.Schema) -> WebDatasetReader:
    """Open a file for reading."""
    return WebDatasetReader(part.read, part.file, schema, piece=part.piece, cell_bytes=part.cell_bytes)


def sample_records(read: Read, file: SourceFile, most: int) -> Iterator[bytes]:  # noqa: ARG001  (as for all formats)
    """Return the JSON members of the first samples of a file."""
    for sample in sample_members(file, read, None):
        add_members_to_json(sample)
        yield sample.members.get(JSON, b"{}")


def plan_columns(read: Read, files: Sequence[SourceFile], wanted: WantedColumns) -> PlannedColumns | pa.Schema:
    """Plan the columns of a source."""
    if read.format == "samples":
        return plan_own_samples(read, files)
    is_ours = read.format == "gristmill"
    planned = plan_member_columns(
        read,
        choose_spread(files),
        carries_all=wanted.carries_members and not is_ours,
        is_text_optional=wanted.is_text_optional and not is_ours,
    )
    if wanted.keeps_record and is_ours:
        planned.columns[RECORD] = FieldType(RECORD_TYPE)
    return planned


class WebDatasetReader:
    """A reader of a tar file, cell by cell."""

    can_cut = False

    def __init__(
        self,
        read: Read,
        file: SourceFile,
        schema: pa.Schema,
        *,
        piece: UnpackedPiece | None = None,
        cell_bytes: int = CELL_BYTES,
    ) -> None:
        self._file = file
        self._piece = piece
        self._schema = schema
        self._max_record_bytes = read.max_record_bytes
        self._cell_bytes = cell_bytes
        self._ratio: float | None = None
        self._text = member_path(read, read.text) if TEXT in schema.names else None
        is_loose = CARRIES_ALL in (schema.metadata or {})
        extra = extra_columns(schema)
        self._columns = {name: member_path(read, name) for name in extra if not is_loose or name in read.columns}
        self._keeps_record = RECORD in schema.names
        paths = [*([self._text] if self._text is not None else []), *self._columns.values()]
        self._named = frozenset([*(path.member for path in paths), *([JSON] if self._keeps_record else [])])
        self._is_own_dataset = read.format == "gristmill" and (self._keeps_record or bool(self._columns))
        self._needed = None if is_loose or self._is_own_dataset else self._named
        self._fields = self._decode_json_fields(extra)
        named_members = {path.member for path in paths if path.field is None} | {ORIGIN, TEXT, *self._columns}
        self._loose: MemberColumns | OwnSampleColumns | None = None
        expected = self._named
        if is_loose:
            self._loose = MemberColumns(schema, named_members)
            expected |= {*self._loose.names} - {OTHER_FIELDS}
        if read.format == "samples" and (layout := MemberLayout.find(schema)) is not None:
            self._text, self._columns, self._needed = None, {}, None
            self._loose = OwnSampleColumns(schema, layout)
            expected = frozenset(member for member in layout.members.values() if not member.endswith(ANY_IMAGE))
        self._expected = expected - {KEY}
        """The members that a sample has, as far as the plan has seen."""

    def cell_sizes(self) -> list[int]:
        raise NotImplementedError("a tar file's cells are not known before it is read")

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        piece = self._piece
        cells = range(first, stop if stop is not None else sys.maxsize)
        if piece is not None:
            with PlainTar(piece.path, load_tar_index(Path(piece.index)), piece.start) as tar:
                cells = range(first, min(cells.stop, piece.first_cell + piece.num_cells))
                yield from self._cells(tar, cells, piece.start, piece.first_cell)
        elif find_codec(self._file.path) is None:
            with PlainTar(self._file.path) as tar:
                yield from self._cells(tar, cells)
        else:
            with closing(read_unpacked_chunks(self._file.path)) as chunks:
                yield from self._cells(TarStream(chunks, self._max_record_bytes), cells)

    def _cells(
        self, tar: TarStream | PlainTar, cells: range, first_member: int = 0, first_cell: int = 0
    ) -> Iterator[CellBatch]:
        walk = TarSampleWalk(
            tar,
            self._file.id,
            self._needed,
            self._max_record_bytes,
            self._cell_bytes,
            first_member=first_member,
            first_cell=first_cell,
            cells=cells,
            expected=self._expected,
        )
        building = _CellBuilder(first_cell)
        for item in walk.walk():
            while building.cell < item.cell:
                if building.cell >= cells.start:
                    yield self._build_cell(building)
                building = _CellBuilder(building.cell + 1)
            if building.cell < cells.start:
                continue
            if isinstance(item, SkippedMember):
                building.counters["skipped_members"] += 1
            elif isinstance(item, StrayMember):
                building.quarantined.append(self._measure_lost(item.record))
            else:
                self._add(item, building)
        damage = self._piece.damage if self._piece is not None else None
        damage = tar.damage if isinstance(tar, TarStream) else damage
        if (
            damage is not None and walk.is_ended
        ):  # the compressed file was damaged, so it is no news that the tar is cut short
            cut = [record for record in building.quarantined if record.reason == "truncated_stream"]
            building.quarantined = [record for record in building.quarantined if record not in cut]
            position = cut[0].position if cut else walk.num_members
            building.quarantined.append(damage.quarantine_rest(self._file.id, position))
        if building.cell in cells and (walk.num_members or building.quarantined):
            yield self._build_cell(building)

    def _measure_lost(self, record: QuarantinedRecord) -> QuarantinedRecord:
        """Count what was not read of a compressed tar in bytes of its file, by the mean ratio."""
        if not record.is_unread or find_codec(self._file.path) is None:
            return record
        if self._ratio is None:
            with closing(read_unpacked_chunks(self._file.path)) as chunks, suppress(CorruptStreamError):
                num_bytes = 0
                for chunk in chunks:
                    num_bytes += len(chunk)
            self._ratio = self._file.num_bytes / max(num_bytes, 1)
        return replace(record, num_bytes=round(record.num_bytes * self._ratio))

    def _decode_json_fields(self, types: dict[str, pa.DataType]) -> dict[str, JsonFields]:
        """Make a decoder for each JSON member whose fields are columns."""
        columns: dict[str, dict[str, pa.DataType]] = {}
        for name, path in self._columns.items():
            if path.field is not None:
                columns.setdefault(path.member, {})[path.field] = types[name]
        text = self._text
        if text is not None and text.field is not None:
            columns.setdefault(text.member, {})
        return {
            member: JsonFields(text.field if text is not None and member == text.member else None, fields)
            for member, fields in columns.items()
        }

    def _add(self, sample: TarSample, building: _CellBuilder) -> None:
        if self._is_own_dataset:
            add_members_to_json(sample)
        try:
            text, values = self._values(sample)
            record = self._record(sample, text) if self._keeps_record else b""
        except _BadSample as bad:
            raw = sample.members.get(bad.member)
            size = sample.too_large.get(bad.member, len(raw or b""))
            building.quarantined.append(
                QuarantinedRecord(
                    self._file.id, sample.position, 0, bad.reason, f"{sample.key}: {bad.message}", raw, size
                )
            )
            return
        if isinstance(self._loose, OwnSampleColumns) and (problem := self._loose.check(sample)) is not None:
            message = f"{sample.key}: {problem}"
            building.quarantined.append(QuarantinedRecord(self._file.id, sample.position, 0, "bad_member", message))
            return
        building.positions.append(sample.position)
        building.texts.append(text)
        building.values.append(values)
        building.records.append(record)
        if self._loose is not None:
            building.samples.append(sample)
            building.counters["members_too_large"] += len(sample.too_large)

    def _values(self, sample: TarSample) -> tuple[str, list[Any]]:
        for member in sorted(self._named & sample.too_large.keys()):
            size, most = sample.too_large[member], self._max_record_bytes
            raise _BadSample(member, "too_large", f"{member} has {size} bytes, more than max_record_bytes ({most})")
        text_path, text = self._text, ""
        if text_path is not None and text_path.member not in sample.members:
            raise _BadSample(text_path.member, "missing_text", f"no member {text_path.member!r}")
        rows = {member: self._decode_member(sample, member) for member in self._fields if member in sample.members}
        if text_path is not None and text_path.field is None:
            text = _decode_utf8(sample, text_path.member, "invalid_utf8")
        elif text_path is not None:
            text = self._fields[text_path.member].texts([rows[text_path.member]])[0]
        return text, [self._value(sample, name, path, rows) for name, path in self._columns.items()]

    def _record(self, sample: TarSample, text: str) -> bytes:
        """Return the whole record of a finished dataset, as a JSON object that holds its text."""
        raw = sample.members.get(JSON, b"{}")
        try:
            return raw if self._text is None or self._text.field is not None else with_text(raw, text)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            raise _BadSample(JSON, "invalid_json", str(error)) from None

    def _decode_member(self, sample: TarSample, member: str) -> Any:
        content = sample.members[member]
        fields = self._fields[member]
        try:
            content.decode()
            return fields.decode(content)
        except RecursionError:
            raise _BadSample(member, "invalid_json", "objects or arrays nest too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _BadSample(member, *fields.refusal(content, error)) from None

    def _value(self, sample: TarSample, name: str, path: MemberPath, rows: dict[str, Any]) -> Any:
        if path.member == KEY:
            return sample.key
        if path.field is not None:
            row = rows.get(path.member)
            return None if row is None else self._fields[path.member].values(path.field, [row])[0]
        if is_bytes(self._schema.field(name).type):
            return sample.members.get(path.member)
        return _decode_utf8(sample, path.member, "column_type") if path.member in sample.members else None

    def _build_cell(self, building: _CellBuilder) -> CellBatch:
        arrays = {TEXT: pa.array(building.texts, TEXT_TYPE)} if self._text is not None else {}
        for index, name in enumerate(self._columns):
            kind = self._schema.field(name).type
            arrays[name] = pa.array([values[index] for values in building.values], kind)
        if self._loose is not None:
            arrays |= self._loose.arrays(building.samples)
            rest = arrays[OTHER_FIELDS]
            building.counters[OTHER_FIELDS] += len(rest) - rest.null_count
        if self._keeps_record:
            arrays[RECORD] = pa.array(building.records, RECORD_TYPE)
        positions = np.array(building.positions, np.int64)
        building.quarantined.sort(key=lambda record: record.position)
        batch = build_batch(self._schema, self._file.id, positions, arrays)
        return CellBatch(building.cell, batch, 0, building.quarantined, +building.counters)


def index_cells(path: str, max_cells: int | None, cell_bytes: int = CELL_BYTES) -> tuple[TarIndex, list[int]]:
    """Index up to `max_cells` cells of a plain tar; also return the number of the first member of each cell."""
    with open_input(path) as file:
        scan = _IndexingScan(file)
        cells = range(sys.maxsize if max_cells is None else max_cells)
        starts = [0]
        for item in TarSampleWalk(scan, 0, frozenset(), 0, cell_bytes, cells=cells).walk():
            if isinstance(item, TarSample) and item.cell == len(starts):
                starts.append(item.position)
        return scan.index(), starts


class _IndexingScan:
    """The headers of a tar, added to an index as they are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._scan = TarScan(file)
        self._builder = TarIndexBuilder()

    def members(self) -> Iterator[TarMember]:
        for member in self._scan.members():
            self._builder.add(member)
            yield member

    def content(self, member: TarMember) -> bytes | None:
        raise NotImplementedError(f"indexing reads headers only, not {member.name}")

    def index(self) -> TarIndex:
        return self._builder.build(self._scan.num_bytes, self._scan.fault)


class _CellBuilder:
    """The values of a cell's samples, collected until the cell is complete."""

    def __init__(self, cell: int) -> None:
        self.cell = cell
        self.positions: list[int] = []
        self.texts: list[str] = []
        self.values: list[list[Any]] = []
        self.records: list[bytes] = []
        self.samples: list[TarSample] = []
        self.counters: Counter[str] = Counter()
        self.quarantined: list[QuarantinedRecord] = []


class _BadSample(Exception):
    """A sample is quarantined because of one of its members."""

    def __init__(self, member: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.member = member
        self.reason = reason
        self.message = message


def _decode_utf8(sample: TarSample, member: str, reason: str) -> str:
    try:
        return sample.members[member].decode()
    except UnicodeDecodeError as error:
        raise _BadSample(member, reason, f"{member} is not UTF-8: {error}") from None
