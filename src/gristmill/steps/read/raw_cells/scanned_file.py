"""Files that must be scanned from their start to find where a record begins, as raw cells.

Quotes decide it, in a JSON array and in CSV. So everything before a cell is scanned. For a file of several units this
is done once, and the beginning of each unit is noted (see `UnpackedPiece`).
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Protocol, cast

from gristmill.core.records import QuarantinedRecord
from gristmill.steps.read.cells import CELL_BYTES
from gristmill.steps.read.raw_cells.cell_cutter import CellCutter, ChunkStream
from gristmill.steps.read.raw_cells.delimited_file import DelimitedFile, RawCell, read_unpacked_chunks
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.cells import StreamDamage, UnpackedPiece
    from gristmill.steps.read.raw_cells.cell_cutter import ByteStream


class Scanner(Protocol):
    """A scanner that follows the quotes of a file, in pieces of any size."""

    def find_start(self, data: bytearray, begin: int, end: int, at_least: int, /) -> int | None:
        """Find the first record that begins at or after `at_least`; scans up to it, or up to `end`."""


class ScannedCutter(CellCutter):
    """A cutter whose cells begin at the records that a scanner finds."""

    def __init__(
        self,
        stream: ByteStream,
        start: int,
        scanner: Scanner,
        cell_bytes: int,
        num_bytes: int = 0,
        piece: UnpackedPiece | None = None,
    ) -> None:
        damage = piece.damage.to_error() if piece is not None and piece.damage is not None else None
        super().__init__(stream, start, b"\n", cell_bytes, num_bytes, damage)
        self._scanner = scanner

    def _find_end(self, border: int) -> int | None:
        at_least = self._begin + border - self.position
        start = self._scanner.find_start(self._buffer, self._begin + self._scanned, self._end, at_least)
        self._scanned = (self._end if start is None else start) - self._begin
        return None if start is None else self._scanned


class ScannedFile(DelimitedFile):
    """Cuts one file, or an unpacked piece of it, into raw cells from its first record on."""

    def __init__(
        self,
        file: SourceFile,
        start: int,
        max_record_bytes: int,
        piece: UnpackedPiece | None = None,
        cell_bytes: int = CELL_BYTES,
    ) -> None:
        super().__init__(file, b"\n", max_record_bytes, piece, cell_bytes)
        self.start = start

    def _cutter(self, stream: ByteStream, start: int, num_bytes: int = 0) -> CellCutter:
        """Make the cutter of a stream that begins at `start` of the file."""
        raise NotImplementedError

    def _chunks(self) -> Generator[bytes]:
        return read_unpacked_chunks(self.file.path)

    def _break_off(self, raw: RawCell, damage: StreamDamage) -> None:
        end = raw.start + len(raw.data) + raw.num_left_out
        raw.rest = QuarantinedRecord(self.file.id, end, 0, damage.reason, damage.message)

    @contextmanager
    def _open(self, first: int, stop: int | None = None) -> Iterator[CellCutter]:  # noqa: ARG002  (all before it must be scanned)
        piece = self._piece
        if not self.can_cut:
            with closing(self._chunks()) as chunks:
                stream = ChunkStream(chunks)
                stream.skip(self.start)
                yield self._cutter(stream, self.start)
            return
        path, start, offset = self.file.path, self.start, self.start
        if piece is not None:
            path, start, offset = piece.path, piece.start, piece.offset
        with open_input(path, offset) as opened:
            yield self._cutter(cast("ByteStream", opened), start, self.file.num_bytes)
