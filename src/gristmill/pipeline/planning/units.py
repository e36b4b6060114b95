"""How input files become units, and units become slices.

A **unit** becomes one shard (in each split). The files alone decide where units begin and end: a large file is cut
every 16 cells (64 MiB; a recipe may ask for a multiple with `unit_bytes`), small files are grouped in path order. A
group ends at 64 MiB, or from 16 MiB on at a file whose path hashes below a bound; an added file therefore changes its
own group and few others. In a group, consecutive files that fit into one cell together are a **cluster** and are read
as one.

A **slice** is the part of a unit that one task reads. Where units are cut into slices (`UnitCut`) never changes the
output. Slices end between cells and clusters. Where a step is slow, cells are smaller, so that many workers can share
a small file.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

import msgspec
import xxhash

from gristmill.core.recipe import AUTO
from gristmill.core.records import SourceFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.readers.cells import CELL_BYTES, UnpackedPiece
from gristmill.steps.deduplicate.partitions import MIN_PIECE_BYTES
from gristmill.storage.codecs import find_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gristmill.core.step import LocalStep

LAYOUT_VERSION = 4
"""A number to raise whenever the same files would be cut or grouped in another way; part of all fingerprints."""
_SHARES_PER_WORKER = 2
_WHOLE_SHARE = 3 / 4
"""What is left of a unit is one slice if the next slice would have at least this share of it."""
COMPRESSED_SIZE_FACTOR = 4
"""A compressed file counts as this many times its size. The estimate shapes bytes: it decides where groups of
compressed files end and which of them share a cell, so whoever changes it must raise `LAYOUT_VERSION`. What a plan
prints has an estimate of its own (`outline`), which may be improved at any time."""


class UnitLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes by which a run cuts its work. Every run has the same; tests have smaller ones.

    The first group shapes the output: whoever changes a default of it must raise `LAYOUT_VERSION`.
    """

    cell_bytes: int = CELL_BYTES
    slow_cell_bytes: int = 512 << 10
    """The size of cells for slow steps: about 50 ms of rendering, where a task costs about 5."""
    cells_per_unit: int = 16
    unit_bytes: int = 64 << 20
    min_group_bytes: int = 16 << 20
    file_open_bytes: int = 4 << 10
    """Opening a file takes as long as reading this much of it. Counted, it ends groups of tiny files early enough to
    share the work among tasks."""
    unpack_bytes: int = 16 << 20
    """A compressed file from this size on is unpacked first, so that all workers can share it."""
    bucket_bytes: int = 64 << 20
    """Shuffled records are stored in buckets of about this size, each of which a task holds in memory."""

    max_in_process_bytes: int = 8 << 20
    """A run of more input takes place in worker processes."""
    feed_bytes: int = 40_000
    """Bytes of a slice for each worker. A task costs the parent up to 1 ms, in which a worker does about 40 KB of the
    fastest work: 1,000 workers need slices of 40 MB, or they wait for the parent."""
    messages_per_worker: int = 4
    """Tasks are sent together only where each worker still gets this many messages."""
    min_piece_bytes: int = MIN_PIECE_BYTES
    """On a store, no piece of what deduplication stores is smaller: a request takes as long as reading this much."""
    max_pieces: int = 10**6
    """The most pieces of files that partitions are read from before they are merged."""
    max_listed_shards: int = 10_000
    """The shards of a larger dataset are listed in a file of their own, not in the manifest."""

    def fit_steps(self, steps: Iterable[LocalStep]) -> UnitLayout:
        """Return the layout for records that these steps read from files: smaller cells if a step is slow."""
        if self.slow_cell_bytes >= self.cell_bytes or not any(step.is_slow for step in steps):
            return self
        num_cells = self.cells_per_unit * self.cell_bytes // self.slow_cell_bytes
        return msgspec.structs.replace(self, cell_bytes=self.slow_cell_bytes, cells_per_unit=num_cells)


class Span(msgspec.Struct, frozen=True, gc=False):
    """Consecutive cells of one file, from `first` up to `stop` (None: to the end of the file)."""

    file: SourceFile
    first: int = 0
    stop: int | None = None
    num_bytes: int = 0
    piece: UnpackedPiece | None = None

    def is_small(self, cell_bytes: int) -> bool:
        """Tell whether it is a whole file of less than a cell."""
        return self.num_bytes < cell_bytes and self.first == 0 and self.stop is None and self.piece is None

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
    layout: UnitLayout,
    scale: int = 1,
) -> Iterator[Unit]:
    """Make the units of files, in path order, `scale` times as large as usual.

    `cell_sizes` returns None for a file that cannot be cut. `unpacked` returns the pieces of a file that is unpacked
    first, `scale` of which are a unit, and None for any other file.
    """
    group: list[Span] = []
    group_bytes = 0
    for file in files:
        pieces = unpacked(file)
        if pieces is None:
            pieces = _cut_large_file(file, cell_sizes, layout, scale)
            pieces_per_unit = 1
        else:
            pieces_per_unit = scale
        if pieces is not None:
            if group:
                yield Unit(tuple(group))
                group, group_bytes = [], 0
            rest = iter(pieces)
            while spans := tuple(islice(rest, pieces_per_unit)):
                yield Unit(spans)
            continue
        num_bytes = file.num_bytes * (COMPRESSED_SIZE_FACTOR if find_codec(file.relative) is not None else 1)
        group.append(Span(file, num_bytes=num_bytes))
        group_bytes += num_bytes + layout.file_open_bytes
        if _is_group_end(group[-1], group_bytes, layout, scale):
            yield Unit(tuple(group))
            group, group_bytes = [], 0
    if group:
        yield Unit(tuple(group))


def _cut_large_file(
    file: SourceFile, cell_sizes: Callable[[SourceFile], Sequence[int] | None], layout: UnitLayout, scale: int
) -> list[Span] | None:
    """Cut a large file into spans of one unit each; None for a file that is read whole."""
    num_cells = scale * layout.cells_per_unit
    sizes = cell_sizes(file) if file.num_bytes > scale * layout.unit_bytes else None
    if sizes is None or len(sizes) <= num_cells:
        return None
    return [
        Span(file, first, min(first + num_cells, len(sizes)), sum(sizes[first : first + num_cells]))
        for first in range(0, len(sizes), num_cells)
    ]


def _is_group_end(span: Span, group_bytes: int, layout: UnitLayout, scale: int) -> bool:
    if group_bytes >= scale * layout.unit_bytes:
        return True
    min_bytes = scale * layout.min_group_bytes
    # The hash of the path decides, not the files before it, so that borders stay where they are when a file is added.
    # A file of 1 MiB ends a group with a chance of 1/16: beyond the minimum, groups grow by about 16 MiB.
    chance = min(1.0, (span.num_bytes + layout.file_open_bytes) / min_bytes)
    return group_bytes >= min_bytes and xxhash.xxh3_64_intdigest(span.file.relative.encode()) < chance * 2**64


def cluster_small_files(spans: Iterable[Span], cell_bytes: int) -> Iterator[tuple[Span, ...]]:
    """Cluster consecutive small files as long as all fit into a cell; every other span stays alone.

    Clusters depend only on the spans that follow, so a worker whose slice begins with a cluster finds the same borders.
    """
    cluster: list[Span] = []
    size = 0
    for span in spans:
        if cluster and not (span.is_small(cell_bytes) and size + span.num_bytes <= cell_bytes):
            yield tuple(cluster)
            cluster, size = [], 0
        if span.is_small(cell_bytes):
            cluster.append(span)
            size += span.num_bytes
        else:
            yield (span,)
    if cluster:
        yield tuple(cluster)


class UnitCut(msgspec.Struct, frozen=True, kw_only=True):
    """The rule that cuts a unit into slices: each gets a share of what is left of the stage, within two bounds.

    The first slices of a stage are large, because tasks cost time; the last ones are small, so that all workers end
    together. With two workers, four shares and 40 MiB left, slices of 2, 2, 1, 1, 1, 1, 1 and 1 cells follow.

    It holds only numbers, and a unit's files and its cut decide the slices. So a run that resumes finds the slices of
    the run before it, regardless of its number of workers.
    """

    min_bytes: int
    max_bytes: int
    num_shares: int = 1
    bytes_after: int = 0
    """How much the stage has after this unit."""

    def choose_size(self, bytes_left: int) -> int:
        """Choose the size of the next slice, with this much of the unit left."""
        if self.min_bytes == self.max_bytes:
            return self.max_bytes
        share = (bytes_left + self.bytes_after) // self.num_shares
        size = max(self.min_bytes, min(share, self.max_bytes))
        # A rest of less than a third of the slice is not worth a task of its own, nor the joining of the unit.
        return max(size, bytes_left) if bytes_left * _WHOLE_SHARE <= size else size


_MAX_FEED_BYTES = 1 << 30
"""The most that a slice must have for the parent's sake: what is lost with a worker."""


def choose_cut(slice_bytes: int | Literal["auto"], num_workers: int, bytes_after: int, layout: UnitLayout) -> UnitCut:
    """Choose how to cut a unit that is followed by `bytes_after` in its stage.

    Slices have the size that the recipe asks for, or sizes that keep this many workers busy to the end of the stage. A
    single worker is always busy: its units stay whole. No slice is so small that one parent could not feed all workers;
    where units are smaller than that, several go in one message (`choose_tasks_per_message`).

    >>> cuts = [choose_cut("auto", workers, 0, UnitLayout()) for workers in (2, 200, 1000, 10_000)]
    >>> [cut.min_bytes >> 20 for cut in cuts]
    [4, 7, 38, 381]
    """
    if slice_bytes != AUTO:
        return UnitCut(min_bytes=slice_bytes, max_bytes=slice_bytes)
    bytes_to_feed = min(num_workers * layout.feed_bytes, _MAX_FEED_BYTES)
    return UnitCut(
        min_bytes=max(bytes_to_feed, layout.cell_bytes),
        max_bytes=max(layout.unit_bytes, 2 * bytes_to_feed),
        num_shares=_SHARES_PER_WORKER * num_workers if num_workers > 1 else 1,
        bytes_after=bytes_after,
    )


def choose_tasks_per_message(num_workers: int, num_tasks: int, num_bytes: int, layout: UnitLayout) -> int:
    """Choose how many tasks a worker gets at once, of a stage of this many: 1, unless they are too small to feed all.

    >>> [choose_tasks_per_message(workers, 10**6, 10**6 << 26, UnitLayout()) for workers in (1000, 10_000)]
    [1, 6]
    >>> choose_tasks_per_message(10_000, 50_000, 50_000 << 26, UnitLayout())  # fewer: all workers end together
    1
    """
    if num_workers * layout.feed_bytes <= layout.unit_bytes or not num_bytes:
        return 1
    wanted = -(-num_workers * layout.feed_bytes * num_tasks // num_bytes)
    return max(1, min(wanted, num_tasks // (layout.messages_per_worker * num_workers)))


def cut_into_slices(
    unit: Unit, cut: UnitCut, cell_sizes: Callable[[SourceFile], Sequence[int] | None], cell_bytes: int
) -> list[tuple[Span, ...]]:
    """Cut a unit's spans into slices, between cells and clusters."""
    slices = _SliceList(cut, unit.num_bytes)
    for cluster in cluster_small_files(unit.spans, cell_bytes):
        slices.make_room(sum(span.num_bytes for span in cluster))
        cells = _list_cells(cluster[0], cell_sizes, cell_bytes) if slices.must_cut(cluster) else None
        for piece in [cluster] if cells is None else cells:
            slices.add(piece)
    slices.end_slice()
    return slices.slices


class _SliceList:
    """The slices of a unit, while they are cut."""

    def __init__(self, cut: UnitCut, num_bytes: int) -> None:
        self._cut = cut
        self._bytes_left = num_bytes
        self._max_bytes = cut.choose_size(num_bytes)
        self._spans: list[Span] = []
        """Spans of the slice that is not full yet."""
        self._num_bytes = 0
        self.slices: list[tuple[Span, ...]] = []

    def make_room(self, num_bytes: int) -> None:
        """End the current slice if this much more would be too much for it."""
        if self._spans and self._num_bytes + num_bytes > self._max_bytes:
            self.end_slice()

    def end_slice(self) -> None:
        """End the current slice, if it has any span."""
        if self._spans:
            self.slices.append(tuple(self._spans))
            self._bytes_left -= self._num_bytes
            self._max_bytes = self._cut.choose_size(self._bytes_left)
            self._spans, self._num_bytes = [], 0

    def must_cut(self, cluster: tuple[Span, ...]) -> bool:
        """Tell whether a span is too large for one slice."""
        return len(cluster) == 1 and cluster[0].num_bytes > self._max_bytes

    def add(self, piece: tuple[Span, ...]) -> None:
        """Add a cluster, or a span that is a cell or that cannot be cut."""
        num_bytes = sum(span.num_bytes for span in piece)
        self.make_room(num_bytes)
        _append_piece(self._spans, piece)
        self._num_bytes += num_bytes


def _list_cells(
    span: Span, cell_sizes: Callable[[SourceFile], Sequence[int] | None], cell_bytes: int
) -> list[tuple[Span, ...]] | None:
    """List the cells of a span, each as a span of its own; None for one that is read as a whole."""
    if span.is_small(cell_bytes):
        return None
    offset = 0
    sizes = cell_sizes(span.file) if span.piece is None else None
    if span.piece is not None:
        # Cells are numbered over the whole file; a piece begins at its own first cell.
        offset, sizes = span.piece.first_cell, [cell_bytes] * span.piece.num_cells
    if sizes is None:
        return None
    last = span.stop if span.stop is not None else offset + len(sizes)
    return [(Span(span.file, cell, cell + 1, sizes[cell - offset], span.piece),) for cell in range(span.first, last)]


def _append_piece(spans: list[Span], piece: tuple[Span, ...]) -> None:
    """Append a cell or a cluster to the spans of a slice; a cell that follows the last one extends its span."""
    last = spans[-1] if spans else None
    cell = piece[0]
    is_next = last is not None and last.file is cell.file and last.stop is not None and last.stop == cell.first
    if last is not None and is_next and last.piece == cell.piece:
        spans[-1] = Span(last.file, last.first, cell.stop, last.num_bytes + cell.num_bytes, last.piece)
    else:
        spans.extend(piece)
