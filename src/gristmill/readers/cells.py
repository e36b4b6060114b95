"""Cells: every file is cut into cells by a rule that depends on the file alone.

A cell is about 4 MiB of input. A task may read any number of cells without changing the output: everything downstream
works cell by cell, so any distribution of cells to workers gives the same bytes. The functions at the end build the
batch of a cell.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError
from gristmill.core.records import ORIGIN, RECORD, TEXT, QuarantinedRecord, Records, make_origins
from gristmill.shards.stored_files import StoredFile, StoredRange  # noqa: TC001  (a test looks at them)
from gristmill.storage.locations import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gristmill.core.records import SourceFile, Texts
    from gristmill.readers.read import Read


CELL_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ElementRange:
    """The place in a file of the JSON array whose elements are the records."""

    start: Count
    """The offset of the opening bracket, or of the record if it is the only one."""
    is_array: bool
    """Whether the records are in brackets; else the rest of the file is one record."""
    is_whole: bool = True
    """Whether nothing but white space may follow."""


@dataclass
class CellBatch:
    """The records of one cell, and counts of what else it held."""

    cell: int
    rows: pa.RecordBatch
    """Their columns, without the text if `texts` has it."""
    num_blank: int = 0
    """The number of blank lines or documents, which are skipped."""
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    """Other counts, such as records with `other_fields`."""
    texts: Texts | None = None
    """The texts, if the reader decodes them to strings."""

    @cached_property
    def records(self) -> Records:
        """The records for the first step."""
        return Records(self.rows, self.texts)

    @property
    def batch(self) -> pa.RecordBatch:
        """All columns of the records."""
        return self.records.batch


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a source, or a piece of it that was unpacked before, as it is read cell by cell."""

    read: Read
    file: SourceFile
    piece: UnpackedPiece | None = None
    """The piece to read instead of the file itself."""
    cell_bytes: int = CELL_BYTES
    """The size of a cell; part of the output's identity."""


class FileReader(Protocol):
    """A reader of one file. Any partition of its cells into ranges gives the same records as one pass over all."""

    can_cut: bool
    """Whether the cells are known without reading the data, so that a range in the middle costs only itself."""

    def cell_sizes(self) -> list[int]:
        """Return the input bytes of each cell, if `can_cut`; cheap."""

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        """Yield cells `first` to `stop` (None: to the end of the file) in order, including empty ones."""


@dataclass(frozen=True, slots=True)
class StreamDamage:
    """The reason why a stream ended early."""

    reason: str
    """`truncated_stream`, `corrupt_stream`, or `truncated_array` for a JSON array that is not closed."""
    message: str
    num_unread: int = 0
    """The bytes of the file that were not read because of it."""

    @classmethod
    def from_error(cls, error: CorruptStreamError) -> StreamDamage:
        reason = "truncated_stream" if error.context.get("truncated") else "corrupt_stream"
        num_unread = error.context.get("num_unread", 0)
        assert isinstance(num_unread, int)
        return cls(str(error.context.get("reason", reason)), error.message, num_unread)

    def quarantine_rest(self, file: int, position: int) -> QuarantinedRecord:
        """Make the quarantine entry of everything that was not read."""
        return QuarantinedRecord(
            file, position, 0, self.reason, self.message, num_bytes=self.num_unread, is_unread=True
        )

    def to_error(self) -> CorruptStreamError:
        truncated = self.reason == "truncated_stream"
        return CorruptStreamError(self.message, reason=self.reason, truncated=truncated, num_unread=self.num_unread)


@dataclass(frozen=True, slots=True)
class UnpackedPiece:
    """A run of cells of a compressed file, unpacked into a separate file by an earlier stage.

    It holds the plain bytes of the cells, so it is read like the part of a plain file that begins at `start` of the
    whole. A piece of a plain file that must be scanned to be cut, such as a JSON array, is a range of the file itself.
    """

    path: str
    first_cell: int
    num_cells: int
    start: int
    """Where the piece begins in the whole decompressed stream: the sum of the sizes of all cells before it."""
    damage: StreamDamage | None = None
    """The damage after the last piece of a stream that could not be read to its end."""
    offset: int = 0
    """Where the piece begins in the file at `path`."""
    elements: ElementRange | None = None
    """For a JSON array: where it is in the whole file."""
    index: str = ""
    """For a tar: the file with its index. `start` is then the number of the piece's first member."""
    content: StoredRange | None = None
    """The piece as it was written. None: it is a range of the input file."""
    version: str = ""
    """The version of the file that holds it, on a store."""
    index_file: StoredFile | None = None
    """The file at `index`, as it was written."""


def build_batch(
    schema: pa.Schema, file: int | pa.Array, positions: NDArray[np.int64], columns: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Build a batch with the columns of the schema; makes the column `origin`."""
    arrays = [
        make_origins(file, pa.array(positions, pa.uint64())) if name == ORIGIN else columns[name]
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def extra_columns(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns that a source has in addition to its text, with their types."""
    return {field.name: field.type for field in schema if field.name not in (ORIGIN, TEXT, RECORD)}


def is_utf8(data: bytes | memoryview) -> bool:
    """Whether bytes are valid UTF-8; 2 to 10 GB/s."""
    ends = pa.py_buffer(np.array([0, len(data)], dtype=np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
