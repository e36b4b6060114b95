"""The reader of files that are one sample each. A file is a cell of its own, or shares one with other small files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.json_text import JSON_TYPE, is_json
from gristmill.core.media import LABEL, LABEL_MEMBER, find_member, get_extension, is_bytes
from gristmill.core.records import ORIGIN, OTHER_FIELDS, TEXT, TEXT_TYPE, QuarantinedRecord
from gristmill.shards.record_columns import RecordColumns
from gristmill.steps.read.batches import build_batch
from gristmill.steps.read.cells import CellBatch
from gristmill.steps.read.sample_files.descriptions import describe_file, get_text
from gristmill.steps.read.sample_files.folder_schema import name_content
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.read import Read


class SampleBuilder:
    """Collects files, and makes a batch of them."""

    def __init__(self, read: Read, schema: pa.Schema) -> None:
        self._schema = schema
        self._text = read.text
        self._max_record_bytes = read.max_record_bytes
        self._contents = [field.name for field in schema if is_bytes(field.type)]
        self._has_label = LABEL in schema.names and find_member(schema.field(LABEL)) == LABEL_MEMBER
        kinds = {
            field.name: JSON_TYPE if is_json(field) else field.type
            for field in schema
            if field.name not in (ORIGIN, TEXT, OTHER_FIELDS, *self._contents)
        }
        self._decoder = RecordColumns(kinds, skipped={self._text} if TEXT in schema.names else ())
        self._clear()

    def add(self, file: SourceFile, content: bytes) -> bool:
        """Add a file with its content; it always fits."""
        self.num_bytes += len(content) + 1
        problem = self._find_problem(file, content)
        if problem is not None:
            self._quarantined.append(problem)
        return True

    def _find_problem(self, file: SourceFile, content: bytes) -> QuarantinedRecord | None:
        """Add a file, or return it as a quarantined record with the reason."""
        if not content:
            return QuarantinedRecord(file.id, 0, 0, "empty_file", "the file has no bytes")
        if len(content) > self._max_record_bytes:
            message = f"{len(content)} bytes, more than max_record_bytes ({self._max_record_bytes})"
            return QuarantinedRecord(file.id, 0, 0, "too_large", message, None, len(content))
        described = describe_file(file, has_label=self._has_label)
        if isinstance(described, QuarantinedRecord):
            return described
        if TEXT in self._schema.names:
            text = get_text(described, self._text)
            if text is None:
                message = f"nothing that describes the file is called {self._text!r}"
                return QuarantinedRecord(file.id, 0, 0, "missing_text", message, None, len(content))
            self._texts.append(text)
        self._files.append(file.id)
        self._lines.append(msgspec.json.encode(described))
        self._bytes.append((name_content(get_extension(file.relative)), content))
        return None

    def take(self) -> CellBatch:
        """Return the samples that were added since the last call."""
        arrays: dict[str, pa.Array] = self._decoder.decode(self._lines)
        if TEXT in self._schema.names:
            arrays[TEXT] = pa.array(self._texts, TEXT_TYPE)
        for name in self._contents:
            values = [content if column == name else None for column, content in self._bytes]
            arrays[name] = pa.array(values, self._schema.field(name).type)
        counters: dict[str, Any] = {}
        if OTHER_FIELDS in self._schema.names:
            counters = {OTHER_FIELDS: len(self._files) - arrays[OTHER_FIELDS].null_count}
        files, positions = pa.array(self._files, pa.uint64()), np.zeros(len(self._files), np.int64)
        cell = CellBatch(0, build_batch(self._schema, files, positions, arrays), 0, self._quarantined)
        cell.counters.update({name: count for name, count in counters.items() if count})
        self._clear()
        return cell

    def _clear(self) -> None:
        self.num_bytes = 0
        self._files: list[int] = []
        self._lines: list[bytes] = []
        self._texts: list[str] = []
        self._bytes: list[tuple[str, bytes]] = []
        self._quarantined: list[QuarantinedRecord] = []


class SampleReader:
    """Reads a file as one sample: one cell, whatever its size."""

    can_cut = True

    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema) -> None:
        self._read = read
        self._file = file
        self._schema = schema

    def cell_sizes(self) -> list[int]:
        return [self._file.num_bytes]

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        if first > 0 or stop == 0:
            return
        builder = SampleBuilder(self._read, self._schema)
        with open_input(self._file.path) as stream:
            # One byte more tells that a file is too large, without reading all of it.
            builder.add(self._file, stream.read(self._read.max_record_bytes + 1))
        yield builder.take()
