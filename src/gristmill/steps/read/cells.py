"""Cells: every file is cut into cells by a rule that depends on the file alone.

A cell is about 4 MiB of input. A task may read any number of cells without changing the output: everything downstream
works cell by cell, so any distribution of cells to workers gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gristmill.core.errors import CorruptStreamError
from gristmill.storage.stored_paths import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from gristmill.core.records import QuarantinedRecord
    from gristmill.core.texts import Texts

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


@dataclass(slots=True)
class CellBatch:
    """The records of one cell, and counts of what else it held."""

    cell: int
    batch: pa.RecordBatch
    """Their columns, without the text if `texts` has it."""
    num_blank: int = 0
    """The number of blank lines or documents, which are skipped."""
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    """Other counts, such as records with `other_fields`."""
    texts: Texts | None = None
    """The texts as the reader has decoded them (`TextsReader`)."""


class FileReader(Protocol):
    """A reader of one file. Any partition of its cells into ranges gives the same records as one pass over all."""

    can_cut: bool
    """Whether the cells are known without reading the data, so that a range in the middle costs only itself."""

    def cell_sizes(self) -> list[int]:
        """Return the input bytes of each cell, if `can_cut`; cheap."""

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        """Yield cells `first` to `stop` (None: to the end of the file) in order, including empty ones."""


@runtime_checkable
class TextsReader(FileReader, Protocol):
    """A reader that decodes texts to Python strings, and can leave them so."""

    def read_texts(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        """Like `read_cells`, but with `CellBatch.texts` where that saves making a column of them."""


@dataclass(frozen=True, slots=True)
class StreamDamage:
    """The reason why a stream ended early."""

    reason: str
    """`truncated_stream`, `corrupt_stream`, or `truncated_array` for a JSON array that is not closed."""
    message: str

    @classmethod
    def from_error(cls, error: CorruptStreamError) -> StreamDamage:
        reason = "truncated_stream" if error.context.get("truncated") else "corrupt_stream"
        return cls(str(error.context.get("reason", reason)), error.message)

    def to_error(self) -> CorruptStreamError:
        return CorruptStreamError(self.message, reason=self.reason, truncated=self.reason == "truncated_stream")


@dataclass(frozen=True, slots=True)
class UnpackedPiece:
    """A run of cells of a compressed file, unpacked into a file of its own by an earlier stage.

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
