"""Slices as data: what a worker is asked to do with one slice, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gristmill.core.books import Account  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.pipeline.planning.units import Span
from gristmill.pipeline.stages.outputs.split_files import ScoreBlocks, SplitFile  # noqa: TC001
from gristmill.pipeline.stages.slices.quarantine import PartQuarantine  # noqa: TC001
from gristmill.shards.manifests.stored_files import StoredFile  # noqa: TC001
from gristmill.steps.read import CELL_BYTES
from gristmill.storage.stored_paths import Count  # noqa: TC001

if TYPE_CHECKING:
    from gristmill.pipeline.planning.units import CellPart
    from gristmill.pipeline.stages.stored import UnitInput

BYTES_PER_ROW = 1 << 10
"""A guess at the size of a stored row, for progress only."""
PIECE_ROWS = 64
"""A task that has killed a worker sends this many rows at a time through the steps."""


class TrialRows(NamedTuple):
    """The rows of one cell that a trial sends through the steps, to find out which of them kills (`poison`)."""

    cell: int
    first: int
    stop: int
    piece_rows: int
    """How many rows are sent at a time."""


@dataclass(frozen=True, slots=True)
class SliceTask:
    """One slice of a unit: the cells that a worker reads in one go."""

    source: str
    inputs: tuple[UnitInput, ...]
    stem: str
    """The start of the paths of its files, below the output folder."""
    num_slices: int
    """The number of slices in its unit, of which parts of a cell count as one; what it writes depends on it."""
    excluded: frozenset[tuple[int, int, str]] = frozenset()
    """Records that end their workers: the number of the cell in this task, the row in it, and the reason."""
    trial: TrialRows | None = None
    """If this is a trial, it writes nothing."""
    num_acquittals: int = 0
    """How often workers died of it though no record of it kills: then few rows at a time go through the steps."""

    @property
    def part(self) -> CellPart | None:
        """The part of a cell that it reads, if it does not read whole cells."""
        first = self.inputs[0] if self.inputs else None
        return first.part if isinstance(first, Span) else None

    @property
    def size(self) -> int:
        """How much there is to do, for progress."""
        return sum(map(measure_input, self.inputs))

    def describe_place(self, num_bytes: int) -> str:
        """Describe the file that the task reads after this many bytes, and about where in it."""
        for source in self.inputs:
            if not isinstance(source, Span):
                return f"stored records of {self.source}"
            if num_bytes <= source.num_bytes:
                return f"{source.file.relative}, byte {_find_start(source) + num_bytes:,}"
            num_bytes -= source.num_bytes
        return f"the end of a slice of {self.source}"


class SliceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The files and books that a slice or a unit has made; they become its receipt."""

    split_files: list[SplitFile]
    held_files: list[SplitFile] = []
    """Training records that wait to be interleaved (`mixed_lane`), as Arrow streams of what is to be written."""
    leftovers: list[SplitFile] = []
    """Documents of rows that documents of other units are to fill (`packing`)."""
    books: list[Account]
    quarantine: list[StoredFile] = []
    part_quarantine: list[PartQuarantine] = []
    """In place of `quarantine`, where the slice is a part of a cell."""
    dropped: list[StoredFile] = []
    scores: list[ScoreBlocks] = []
    """What its filters have measured, as blocks of a score file."""
    score_histograms: dict[str, list[tuple[int, Count]]] = {}
    """For each score the bins that are not empty, with the numbers of documents in them."""

    def files(self) -> list[StoredFile]:
        """List all its files in the work folder."""
        split_files = (*self.split_files, *self.held_files, *self.leftovers)
        data_files = [file for split_file in split_files for file in split_file.files()]
        part_quarantine = [part.file for part in self.part_quarantine if part.file is not None]
        score_files = [blocks.file for blocks in self.scores]
        return [*data_files, *part_quarantine, *self.quarantine, *self.dropped, *score_files]


def _find_start(span: Span) -> int:
    """Find the byte at which a span begins; exact for lines of text, which are cut every 4 MiB."""
    if span.piece is not None:
        return span.piece.start
    num_cells = max(1, (span.stop or span.first + 1) - span.first)
    # The last cell of a file is short; cells of other formats have any size.
    is_cut_by_size = (num_cells - 1) * CELL_BYTES < span.num_bytes <= num_cells * CELL_BYTES
    return span.first * (CELL_BYTES if is_cut_by_size else span.num_bytes // num_cells)


def measure_input(source: UnitInput) -> int:
    """Measure an input for progress: bytes of a file, or a guess for rows of an earlier stage."""
    return source.num_bytes if isinstance(source, Span) else source.num_rows * BYTES_PER_ROW
