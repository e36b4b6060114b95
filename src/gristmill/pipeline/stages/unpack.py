"""Unpacking: a large compressed file becomes plain pieces of one unit each, so that all workers can read it.

A piece holds whole cells, so it is read like that part of a plain file. Pieces are in the work folder and are removed
with it. A plain file of CSV or of one JSON array is only scanned, because a reader that starts in its middle cannot
know where units begin; its pieces are ranges of the file itself. So are those of a plain tar, found by an index of its
members. A compressed tar is unpacked as a whole first.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import CorruptStreamError
from gristmill.pipeline.planning.units import CELLS_PER_UNIT, Span
from gristmill.steps.read import (
    ElementRange,
    StreamDamage,
    UnpackedPiece,
    file_format,
    open_for_unpacking,
    read_unpacked_chunks,
)
from gristmill.storage.codecs.compression import find_codec
from gristmill.storage.commit import PendingFile, write_file
from gristmill.storage.locations import relative_name
from gristmill.storage.stored_paths import Count, StoredPath, path_below

if TYPE_CHECKING:
    from gristmill.core.records import SourceFile
    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class UnpackTask:
    """One compressed file, or one that must be scanned."""

    source: str
    file: SourceFile
    stem: str
    max_cells: int | None = None
    """Unpack only the first cells; None: all of them."""

    def describe_place(self, num_bytes: int) -> str:
        """Describe how far the file is unpacked."""
        return f"{self.file.relative}, byte {num_bytes:,} when unpacked"


class PieceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One piece on disk."""

    path: StoredPath | None
    """None: the piece is a range of the input file."""
    first_cell: Count
    num_cells: Count
    start: Count
    num_bytes: Count
    damage: tuple[str, str] | None = None


class IndexedTar(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a tar on disk, and the tar itself if it was compressed."""

    index: StoredPath
    index_bytes: Count
    path: StoredPath | None = None
    """None: the input file is a plain tar."""
    num_bytes: Count = 0

    def stored_files(self) -> list[tuple[str, int]]:
        unpacked = [(self.path, self.num_bytes)] if self.path is not None else []
        return [(self.index, self.index_bytes), *unpacked]


class UnpackResult(msgspec.Struct, frozen=True, kw_only=True):
    """All pieces of a file; becomes its receipt."""

    pieces: list[PieceFile]
    elements: ElementRange | None = None
    """Where the JSON array is in the file, if it is one."""
    tar: IndexedTar | None = None
    """The index by which the pieces of a tar are read, if it is one."""

    def stored_files(self) -> list[tuple[str, int]]:
        """List the files in the work folder, with their sizes."""
        files = [(piece.path, piece.num_bytes) for piece in self.pieces if piece.path is not None]
        return files if self.tar is None else [*files, *self.tar.stored_files()]

    def make_spans(self, file: SourceFile, root: Location) -> list[Span]:
        """Make a span for each piece."""
        whole, index = file.path, ""
        if self.tar is not None:
            index = str(path_below(root, self.tar.index))
            whole = str(path_below(root, self.tar.path)) if self.tar.path is not None else whole
        return [
            Span(
                file,
                piece.first_cell,
                piece.first_cell + piece.num_cells,
                piece.num_bytes,
                UnpackedPiece(
                    path=whole if piece.path is None else str(path_below(root, piece.path)),
                    first_cell=piece.first_cell,
                    num_cells=piece.num_cells,
                    start=piece.start,
                    offset=piece.start if piece.path is None else 0,
                    elements=self.elements,
                    index=index,
                    damage=StreamDamage(*piece.damage) if piece.damage else None,
                ),
            )
            for piece in self.pieces
        ]


def run_unpack(task: Task, context: Context) -> UnpackResult:
    """Run an `UnpackTask`; `context.state` is the `StageContext`."""
    stage: StageContext = context.state
    unpack: UnpackTask = task.payload
    if file_format(unpack.file.path, stage.sources[unpack.source].read.format) == "webdataset":
        return _index_tar(unpack, stage, context)
    cells, elements = open_for_unpacking(stage.sources[unpack.source].read, unpack.file)
    writer = _PieceWriter(stage, None if cells.can_cut else unpack.stem, cells.start)
    with ExitStack() as files:
        try:
            for cell, data in cells.pieces():
                if unpack.max_cells is not None and cell >= unpack.max_cells:
                    break
                writer.write(files, cell, data)
                context.count(bytes=len(data))
                context.at(cell)
        except CorruptStreamError as error:
            damage = StreamDamage.from_error(error)
            writer.finish(files, (damage.reason, damage.message))
        else:
            writer.finish(files)
    return UnpackResult(pieces=writer.pieces, elements=elements)


def _index_tar(unpack: UnpackTask, stage: StageContext, context: Context) -> UnpackResult:
    """Cut a tar into pieces: each begins at a member, and all are read by one index."""
    path, damage = unpack.file.path, None
    unpacked: PendingFile | None = None
    if find_codec(path) is not None:
        with PendingFile(stage.work / f"{unpack.stem}.tar", stage.run_id) as unpacked:
            damage = _unpack_tar(path, unpacked, context)
            unpacked.commit()
        path = str(unpacked.path)
    from gristmill.steps.read import index_cells  # noqa: PLC0415  (only tars need it)

    index, starts = index_cells(path, unpack.max_cells)
    content = index.to_bytes()
    index_path = f"{unpack.stem}.tarindex"
    write_file(stage.work / index_path, content, stage.run_id)
    firsts = list(range(0, len(starts), CELLS_PER_UNIT))
    borders = [*index.header_offsets([starts[first] for first in firsts] if len(index) else []), index.tar_bytes]
    pieces = [
        PieceFile(
            path=None,
            first_cell=first,
            num_cells=min(CELLS_PER_UNIT, len(starts) - first),
            start=starts[first],
            num_bytes=borders[-1 if number + 1 == len(firsts) else number + 1] - borders[number],
            damage=damage if number + 1 == len(firsts) else None,
        )
        for number, first in enumerate(firsts)
    ]
    tar = IndexedTar(
        index=index_path,
        index_bytes=len(content),
        path=f"{unpack.stem}.tar" if unpacked is not None else None,
        num_bytes=unpacked.num_bytes if unpacked is not None else 0,
    )
    return UnpackResult(pieces=pieces, tar=tar)


def _unpack_tar(path: str, plain: PendingFile, context: Context) -> tuple[str, str] | None:
    """Write the content of a compressed tar; return the reason and message of damage that ended it, if any."""
    try:
        with closing(read_unpacked_chunks(path)) as chunks:
            for number, chunk in enumerate(chunks):
                plain.write(chunk)
                context.count(bytes=len(chunk))
                context.at(number)
    except CorruptStreamError as error:
        damage = StreamDamage.from_error(error)
        return damage.reason, damage.message
    return None


class _PieceWriter:
    """Writes pieces of `CELLS_PER_UNIT` cells each; without a `stem` it only records where they begin."""

    def __init__(self, stage: StageContext, stem: str | None, start: int) -> None:
        self._stage = stage
        self._stem = stem
        self._file: PendingFile | None = None
        self._first_cell = self._last_cell = self._num_bytes = 0
        self._start = start
        self._is_open = False
        self.pieces: list[PieceFile] = []

    def write(self, files: ExitStack, cell: int, data: bytes) -> None:
        if self._is_open and cell // CELLS_PER_UNIT != self._first_cell // CELLS_PER_UNIT:
            self._commit()
        if not self._is_open:
            self._open(files, cell)
        self._last_cell = cell
        self._num_bytes += len(data)
        if self._file is not None:
            self._file.write(data)

    def finish(self, files: ExitStack, damage: tuple[str, str] | None = None) -> None:
        """Commit the last piece. Even an empty stream, or one damaged from its start, has a piece that says so."""
        if not self._is_open and not self.pieces:
            self._open(files, 0)
        if self._is_open:
            self._commit(damage)

    def _open(self, files: ExitStack, cell: int) -> None:
        if self._stem is not None:
            path = f"{self._stem}-{len(self.pieces)}.piece"
            self._file = files.enter_context(PendingFile(self._stage.work / path, self._stage.run_id))
        self._is_open = True
        self._num_bytes = 0
        self._first_cell = self._last_cell = cell

    def _commit(self, damage: tuple[str, str] | None = None) -> None:
        path = None
        if self._file is not None:
            self._file.commit()
            path = relative_name(self._file.path, self._stage.work)
        self.pieces.append(
            PieceFile(
                path=path,
                first_cell=self._first_cell,
                num_cells=self._last_cell - self._first_cell + 1,
                start=self._start,
                num_bytes=self._num_bytes,
                damage=damage,
            )
        )
        self._start += self._num_bytes
        self._file, self._is_open = None, False
