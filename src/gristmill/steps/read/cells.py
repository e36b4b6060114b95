"""What all readers share: files are cut into cells by a rule that depends on the file alone.

A cell is about 4 MiB of input. How many cells a task reads is free, and never shapes the output: everything downstream
works cell by cell, so any way to deal the cells to workers gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gristmill.core.errors import CorruptStreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from gristmill.core.records import BadRecord

CELL_BYTES = 4 << 20


@dataclass(slots=True)
class CellBatch:
    """The records of one cell, and what else was there."""

    cell: int
    batch: pa.RecordBatch
    num_blank: int = 0
    """Blank lines or documents: skipped and counted."""
    bad: list[BadRecord] = field(default_factory=list)


class FileReader(Protocol):
    """Reads one file. Any partition of its cells into ranges gives the same records as one pass over all."""

    can_cut: bool
    """Whether the cells are known without reading the data, so that a range in the middle costs only itself."""

    def cell_sizes(self) -> list[int]:
        """Input bytes of each cell, where `can_cut`; cheap."""

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        """Cells `first` to `stop` (None: to the end of the file) in order, empty ones included."""


@dataclass(frozen=True, slots=True)
class StreamDamage:
    """Why a stream ended early."""

    reason: str
    """`truncated_stream` or `corrupt_stream`."""
    message: str

    @classmethod
    def from_error(cls, error: CorruptStreamError) -> StreamDamage:
        reason = "truncated_stream" if error.context.get("truncated") else "corrupt_stream"
        return cls(reason, error.message)

    def to_error(self) -> CorruptStreamError:
        return CorruptStreamError(self.message, truncated=self.reason == "truncated_stream")


@dataclass(frozen=True, slots=True)
class UnpackedPiece:
    """A run of cells of a compressed file, unpacked into a file of its own by an earlier stage.

    It holds the plain bytes of the cells, nothing else, so it is read like the part of a plain file that begins at
    `start` of the whole.
    """

    path: str
    first_cell: int
    num_cells: int
    start: int
    """Where the piece begins in the whole decompressed stream: the sizes of all cells before it."""
    damage: StreamDamage | None = None
    """For the last piece of a stream that could not be read to its end."""
