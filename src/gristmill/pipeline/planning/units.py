"""How input files become units, and units become slices.

A **unit** becomes one shard (in each split). The files alone decide where units begin and end: a large file is cut
every 16 cells (64 MiB), small files are grouped in path order. A group ends at 64 MiB, or from 16 MiB on at a file
whose path hashes below a bound; an added file therefore changes its own group and few others. In a group, consecutive
files that fit into one cell together are a **cluster** and are read as one. A **slice** is the part of a unit that one
task reads, cut between cells and clusters; its size (`slice_bytes`) never changes the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import xxhash

from gristmill.core.records import SourceFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.read import CELL_BYTES, UnpackedPiece
from gristmill.storage.compression import find_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

LAYOUT_VERSION = 3
"""A number to raise whenever the same files would be cut or grouped in another way; part of all fingerprints."""
CELLS_PER_UNIT = 16
UNIT_BYTES = 64 << 20
MIN_GROUP_BYTES = 16 << 20
# Opening a file takes as long as reading this much of it. Counted, it ends groups of tiny files early enough to share
# the work among tasks.
FILE_OPEN_BYTES = 4 << 10
COMPRESSED_SIZE_FACTOR = 4
"""A compressed file counts as this many times its size. The estimate shapes bytes: it decides where groups of
compressed files end and which of them share a cell, so whoever changes it must raise `LAYOUT_VERSION`. What a plan
prints has an estimate of its own (`outline`), which may be improved at any time."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """Consecutive cells of one file, from `first` up to `stop` (None: to the end of the file)."""

    file: SourceFile
    first: int = 0
    stop: int | None = None
    num_bytes: int = 0
    piece: UnpackedPiece | None = None

    @property
    def is_small(self) -> bool:
        """Whether it is a whole file of less than a cell."""
        return self.num_bytes < CELL_BYTES and self.first == 0 and self.stop is None and self.piece is None

    def identity(self) -> tuple[object, ...]:
        """Return what the output depends on, for fingerprints."""
        return *self.file.identity, self.first, self.stop


@dataclass(frozen=True, slots=True)
class Unit:
    """The spans of input that become one shard in each split."""

    spans: tuple[Span, ...]

    @property
    def num_bytes(self) -> int:
        return sum(span.num_bytes for span in self.spans)


def make_units(
    files: Iterable[SourceFile],
    cell_sizes: Callable[[SourceFile], Sequence[int] | None],
    unpacked: Callable[[SourceFile], Iterable[Span] | None],
) -> Iterator[Unit]:
    """Make the units of files, in path order.

    `cell_sizes` returns None for a file that cannot be cut. `unpacked` returns the pieces of a file that is unpacked
    first, each of which is a unit, and None for any other file.
    """
    group: list[Span] = []
    group_bytes = 0
    for file in files:
        pieces = unpacked(file)
        if pieces is None:
            pieces = _cut_large_file(file, cell_sizes)
        if pieces is not None:
            if group:
                yield Unit(tuple(group))
                group, group_bytes = [], 0
            for span in pieces:
                yield Unit((span,))
            continue
        num_bytes = file.num_bytes * (COMPRESSED_SIZE_FACTOR if find_codec(file.relative) is not None else 1)
        group.append(Span(file, num_bytes=num_bytes))
        group_bytes += num_bytes + FILE_OPEN_BYTES
        if _is_group_end(group[-1], group_bytes):
            yield Unit(tuple(group))
            group, group_bytes = [], 0
    if group:
        yield Unit(tuple(group))


def _cut_large_file(file: SourceFile, cell_sizes: Callable[[SourceFile], Sequence[int] | None]) -> list[Span] | None:
    """Cut a large file into spans of one unit each; None for a file that is read whole."""
    sizes = cell_sizes(file) if file.num_bytes > UNIT_BYTES else None
    if sizes is None or len(sizes) <= CELLS_PER_UNIT:
        return None
    return [
        Span(file, first, min(first + CELLS_PER_UNIT, len(sizes)), sum(sizes[first : first + CELLS_PER_UNIT]))
        for first in range(0, len(sizes), CELLS_PER_UNIT)
    ]


def _is_group_end(span: Span, group_bytes: int) -> bool:
    if group_bytes >= UNIT_BYTES:
        return True
    # The hash of the path decides, not the files before it, so that borders stay where they are when a file is added.
    # A file of 1 MiB ends a group with a chance of 1/16: beyond the minimum, groups grow by about 16 MiB.
    chance = min(1.0, (span.num_bytes + FILE_OPEN_BYTES) / MIN_GROUP_BYTES)
    return group_bytes >= MIN_GROUP_BYTES and xxhash.xxh3_64_intdigest(span.file.relative.encode()) < chance * 2**64


def cluster_small_files(spans: Iterable[Span]) -> Iterator[tuple[Span, ...]]:
    """Cluster consecutive small files as long as all fit into a cell; every other span stays alone.

    Clusters depend only on the spans that follow, so a worker whose slice begins with a cluster finds the same borders.
    """
    cluster: list[Span] = []
    size = 0
    for span in spans:
        if cluster and not (span.is_small and size + span.num_bytes <= CELL_BYTES):
            yield tuple(cluster)
            cluster, size = [], 0
        if span.is_small:
            cluster.append(span)
            size += span.num_bytes
        else:
            yield (span,)
    if cluster:
        yield tuple(cluster)


def cut_into_slices(
    unit: Unit, slice_bytes: int, cell_sizes: Callable[[SourceFile], Sequence[int] | None]
) -> list[tuple[Span, ...]]:
    """Cut a unit's spans into slices of about `slice_bytes`; a cluster is never cut."""
    slices: list[tuple[Span, ...]] = []
    current: list[Span] = []
    size = 0
    for cluster in cluster_small_files(unit.spans):
        for piece in [cluster] if len(cluster) > 1 else _cut_span(cluster[0], slice_bytes, cell_sizes):
            num_bytes = sum(span.num_bytes for span in piece)
            if current and size + num_bytes > slice_bytes:
                slices.append(tuple(current))
                current, size = [], 0
            current += piece
            size += num_bytes
    if current:
        slices.append(tuple(current))
    return slices


def _cut_span(
    span: Span, slice_bytes: int, cell_sizes: Callable[[SourceFile], Sequence[int] | None]
) -> Iterator[tuple[Span]]:
    if span.num_bytes <= slice_bytes or span.is_small:
        yield (span,)
        return
    offset = 0
    sizes = cell_sizes(span.file) if span.piece is None else None
    if span.piece is not None:
        # Cells are numbered over the whole file; a piece begins at its own first cell.
        offset, sizes = span.piece.first_cell, [CELL_BYTES] * span.piece.num_cells
    if sizes is None:
        yield (span,)
        return
    last = span.stop if span.stop is not None else offset + len(sizes)
    first = span.first
    while first < last:
        stop, size = first, 0
        while stop < last and (stop == first or size + sizes[stop - offset] <= slice_bytes):
            size += sizes[stop - offset]
            stop += 1
        yield (Span(span.file, first, stop, size, span.piece),)
        first = stop
