"""The units of a source's first stage, from its files; large compressed files become plain pieces of one unit each.

A piece holds whole cells, so it is read like that part of a plain file, and all workers can share one file. Pieces are
in the work folder and are removed with it. A plain file of CSV or of one JSON array is only scanned, because a reader
that starts in its middle cannot know where units begin; its pieces are ranges of the file itself. So are those of a
plain tar, found by an index of its members. A compressed tar is unpacked as a whole first. Where a `limit` needs only
the first records, files are unpacked and read only as far as it needs them.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import xxhash

from gristmill.core.errors import CorruptStreamError
from gristmill.engine.tasks import Task
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.units import LAYOUT_VERSION, Span, make_units
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.pipeline.work_folder import stored_path
from gristmill.readers.cells import ElementRange, StreamDamage, UnpackedPiece
from gristmill.readers.formats import file_format
from gristmill.readers.source import open_for_unpacking
from gristmill.readers.texts.delimited_file import read_unpacked_chunks
from gristmill.shards.stored_files import StoredFile, StoredRange
from gristmill.storage.codecs import find_codec
from gristmill.storage.commit import PendingFile, write_file
from gristmill.storage.files import map_file, read_version
from gristmill.storage.locations import Count, is_remote, relative_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.core.records import SourceFile
    from gristmill.engine.tasks import Context
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.storage.locations import Location


class InputUnits:
    """Makes the first units of all sources; `stage` is the context of the first stage."""

    def __init__(self, plan: Plan, runner: StageRunner, stage: StageContext, salt: str) -> None:
        self._plan = plan
        self._runner = runner
        self._stage = stage
        self._salt = salt

    def unpack_files(self) -> None:
        """Unpack all large compressed files of sources that are read to their end."""
        self._run_unpack_tasks(
            [
                self._make_unpack_task(source, file, None)
                for source in self._plan.sources
                for file in source.files
                if source.must_unpack(file) and not source.is_limited
            ]
        )

    def prepare_units(self, source: SourcePlan) -> Iterator[StageUnit]:
        """Make the units of a source in path order; files of a limited source are unpacked when a unit needs them."""
        common = fingerprint.of(
            self._salt,
            LAYOUT_VERSION,
            self._plan.recipe.seed,
            source.name,
            source.read_parameters,
            source.schema.to_string(),
            fingerprint.describe_steps(source.stages[0].steps),
            fingerprint.describe_steps(self._plan.output_steps) if source.stages[0].global_step is None else None,
            self._plan.versions,
            self._plan.recipe.keep_dropped,
            self._plan.recipe.keep_scores,
        )
        units = make_units(
            source.files,
            source.cell_sizes,
            lambda file: self._find_pieces(source, file),
            source.layout,
            self._plan.recipe.unit_scale,
        )
        for unit in units:
            yield StageUnit(source, fingerprint.of(common, [span.identity() for span in unit.spans]), unit.spans)

    def _find_pieces(self, source: SourcePlan, file: SourceFile) -> Iterator[Span] | None:
        """Find what a compressed file was unpacked to; None if it is not unpacked."""
        return self._unpack_into_spans(source, file) if source.must_unpack(file) else None

    def _unpack_into_spans(self, source: SourcePlan, file: SourceFile) -> Iterator[Span]:
        num_spans = 0
        # The first unit alone is often all that a limit needs.
        for max_cells in (source.layout.cells_per_unit, None) if source.is_limited else (None,):
            task = self._make_unpack_task(source, file, max_cells)
            self._run_unpack_tasks([task])
            result = self._runner.find_receipt(task.id, UnpackResult)
            if result is not None:
                spans = result.make_spans(file, self._stage.work)
                yield from spans[num_spans:]
                num_spans = len(spans)

    def _make_unpack_task(self, source: SourcePlan, file: SourceFile, max_cells: int | None) -> Task:
        cells = source.layout.cell_bytes, max_cells
        name = fingerprint.of("unpack", source.read_parameters, file.identity, self._plan.versions, *cells)
        return Task(name, UnpackTask(source.name, file, stored_path(name), max_cells))

    def _run_unpack_tasks(self, tasks: list[Task]) -> None:
        undone = [task for task in tasks if self._runner.find_receipt(task.id, UnpackResult) is None]
        self._runner.run_tasks(run_unpack, self._stage, undone, "unpacking")


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
        return f"{self.file.path}, byte {num_bytes:,} when unpacked"


class PieceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One piece on disk."""

    content: StoredRange | None = None
    """None: the piece is a range of the input file."""
    version: str = ""
    """The version of the file that holds it, on a store."""
    first_cell: Count
    num_cells: Count
    start: Count
    num_bytes: Count
    damage: StreamDamage | None = None


class IndexedTar(msgspec.Struct, frozen=True, kw_only=True):
    """The index of a tar on disk, and the tar itself if it was compressed."""

    index: StoredFile
    unpacked: StoredFile | None = None
    """None: the input file is a plain tar."""


class UnpackResult(msgspec.Struct, frozen=True, kw_only=True):
    """All pieces of a file; becomes its receipt."""

    pieces: list[PieceFile]
    elements: ElementRange | None = None
    """Where the JSON array is in the file, if it is one."""
    tar: IndexedTar | None = None
    """The index by which the pieces of a tar are read, if it is one."""

    def files(self) -> list[StoredFile]:
        """List the files in the work folder."""
        if self.tar is not None:
            return [self.tar.index, *([self.tar.unpacked] if self.tar.unpacked is not None else [])]
        return [piece.content.file for piece in self.pieces if piece.content is not None]

    def make_spans(self, file: SourceFile, root: Location) -> list[Span]:
        """Make a span for each piece."""
        return [
            Span(
                file,
                piece.first_cell,
                piece.first_cell + piece.num_cells,
                piece.num_bytes,
                UnpackedPiece(
                    path=file.path if piece.content is None else str(piece.content.file.below(root)),
                    first_cell=piece.first_cell,
                    num_cells=piece.num_cells,
                    start=piece.start,
                    offset=piece.start if piece.content is None else 0,
                    elements=self.elements,
                    index="" if self.tar is None else str(self.tar.index.below(root)),
                    damage=piece.damage,
                    content=piece.content,
                    version=piece.version,
                    index_file=None if self.tar is None else self.tar.index,
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
    source = stage.sources[unpack.source]
    cells, elements = open_for_unpacking(source.read, unpack.file, cell_bytes=source.layout.cell_bytes)
    writer = _PieceWriter(stage, source.layout.cells_per_unit, None if cells.can_cut else unpack.stem, cells.start)
    with ExitStack() as files:
        try:
            for cell, data in cells.pieces():
                if unpack.max_cells is not None and cell >= unpack.max_cells:
                    break
                writer.write(files, cell, data)
                context.count(bytes=len(data))
                context.at(cell)
        except CorruptStreamError as error:
            writer.finish(files, StreamDamage.from_error(error))
        else:
            writer.finish(files)
    return UnpackResult(pieces=writer.pieces, elements=elements)


def _index_tar(unpack: UnpackTask, stage: StageContext, context: Context) -> UnpackResult:
    """Cut a tar into pieces: each begins at a member, and all are read by one index."""
    path, damage, layout = unpack.file.path, None, stage.sources[unpack.source].layout
    unpacked: PendingFile | None = None
    if find_codec(path) is not None:
        with PendingFile(stage.work / f"{unpack.stem}.tar", stage.run_id) as unpacked:
            damage = _unpack_tar(path, unpacked, context)
            unpacked.commit()
        path = str(unpacked.path)
    from gristmill.readers.webdataset import index_cells  # noqa: PLC0415  (only tars need it)

    index, starts = index_cells(path, unpack.max_cells, layout.cell_bytes)
    content = index.to_bytes()
    index_path = f"{unpack.stem}.tarindex"
    checksum = write_file(stage.work / index_path, content, stage.run_id)
    cells_per_piece = layout.cells_per_unit
    firsts = list(range(0, len(starts), cells_per_piece))
    borders = [*index.header_offsets([starts[first] for first in firsts] if len(index) else []), index.tar_bytes]
    tar = IndexedTar(
        index=StoredFile(path=index_path, bytes=len(content), xxh3=checksum),
        unpacked=None if unpacked is None else _describe_file(unpacked, stage),
    )
    version = "" if unpacked is None else _find_version(unpacked)
    pieces = [
        PieceFile(
            content=None if tar.unpacked is None else _hash_range(stage, tar.unpacked, *borders[number : number + 2]),
            version=version,
            first_cell=first,
            num_cells=min(cells_per_piece, len(starts) - first),
            start=starts[first],
            num_bytes=borders[-1 if number + 1 == len(firsts) else number + 1] - borders[number],
            damage=damage if number + 1 == len(firsts) else None,
        )
        for number, first in enumerate(firsts)
    ]
    return UnpackResult(pieces=pieces, tar=tar)


def _describe_file(file: PendingFile, stage: StageContext) -> StoredFile:
    return StoredFile(path=relative_name(file.path, stage.work), bytes=file.num_bytes, xxh3=file.checksum)


def _hash_range(stage: StageContext, file: StoredFile, start: int, stop: int) -> StoredRange:
    """Describe a range of a file that was just written. On a store the version of the file tells more cheaply."""
    path = file.below(stage.work)
    checksum = 0 if is_remote(path) else xxhash.xxh3_64_intdigest(map_file(path, start, stop - start))
    return StoredRange(file=file, start=start, num_bytes=stop - start, checksum=checksum)


def _find_version(file: PendingFile) -> str:
    """Find the version of a file that was just written on a store; a local file has its checksum."""
    return read_version(str(file.path))[1] if is_remote(file.path) else ""


def _unpack_tar(path: str, plain: PendingFile, context: Context) -> StreamDamage | None:
    """Write the content of a compressed tar; return the damage that ended it, if any."""
    try:
        with closing(read_unpacked_chunks(path)) as chunks:
            for number, chunk in enumerate(chunks):
                plain.write(chunk)
                context.count(bytes=len(chunk))
                context.at(number)
    except CorruptStreamError as error:
        return StreamDamage.from_error(error)
    return None


class _PieceWriter:
    """Writes pieces of as many cells as a unit; without a `stem` it only records where they begin."""

    def __init__(self, stage: StageContext, num_cells: int, stem: str | None, start: int) -> None:
        self._stage = stage
        self._num_cells = num_cells
        self._stem = stem
        self._file: PendingFile | None = None
        self._first_cell = self._last_cell = self._num_bytes = 0
        self._start = start
        self._is_open = False
        self.pieces: list[PieceFile] = []

    def write(self, files: ExitStack, cell: int, data: bytes) -> None:
        if self._is_open and cell // self._num_cells != self._first_cell // self._num_cells:
            self._commit()
        if not self._is_open:
            self._open(files, cell)
        self._last_cell = cell
        self._num_bytes += len(data)
        if self._file is not None:
            self._file.write(data)

    def finish(self, files: ExitStack, damage: StreamDamage | None = None) -> None:
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

    def _commit(self, damage: StreamDamage | None = None) -> None:
        content, version = None, ""
        if self._file is not None:
            self._file.commit()
            stored = _describe_file(self._file, self._stage)
            content = StoredRange(file=stored, num_bytes=stored.bytes, checksum=int(stored.xxh3, 16))
            version = _find_version(self._file)
        self.pieces.append(
            PieceFile(
                content=content,
                version=version,
                first_cell=self._first_cell,
                num_cells=self._last_cell - self._first_cell + 1,
                start=self._start,
                num_bytes=self._num_bytes,
                damage=damage,
            )
        )
        self._start += self._num_bytes
        self._file, self._is_open = None, False
