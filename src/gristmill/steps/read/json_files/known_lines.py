"""JSON lines read again: where each is in its file and how long it is are known, and that it is a record."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NoReturn, cast

import numpy as np
import pyarrow as pa

from gristmill.core.errors import SourceChangedError
from gristmill.core.records import RECORD_LINES
from gristmill.steps.read.json_files.json_lines import LINE_END, JsonLinesReader
from gristmill.steps.read.raw_cells.delimited_file import DelimitedFile, RawCell
from gristmill.storage.files import check_unchanged, open_input

if TYPE_CHECKING:
    import io
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.read import Read

_MAX_GAP = 1 << 16
"""Lines that are closer are read together, with what is between them."""


class KnownLines:
    """Reads lines of one plain file again, and checks before and after that the file is still the planned one.

    Args:
        read: The source.
        file: The file: local, not compressed.
        schema: The columns to read: text and record, or one of them, or `RECORD_LINES`.
    """

    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema) -> None:
        self.file = file
        self._read = read
        self._schema = schema
        self._held = bytearray()

    def __enter__(self) -> Self:
        self._check()
        self._stream = cast("io.FileIO", open_input(self.file.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()
        if kind is None:
            self._check()

    def read(self, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> dict[str, pa.Array]:
        """Read the columns of the lines at ascending positions."""
        lines = self._read_lines(positions, sizes)
        if RECORD_LINES in self._schema.names:
            return {RECORD_LINES: lines}
        data = memoryview(lines.buffers()[2]).cast("B")
        batch = self._reader.parse(RawCell(0, 0, data, is_terminated=True, num_left_out=0)).batch
        if batch.num_rows != len(sizes):
            self._refuse()
        return {name: batch.column(name) for name in self._schema.names}

    @cached_property
    def _reader(self) -> JsonLinesReader:
        return JsonLinesReader(
            self._read, DelimitedFile(self.file, LINE_END, self._read.max_record_bytes), self._schema
        )

    def _read_lines(self, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.LargeBinaryArray:
        """Read lines, each with its line end."""
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes + len(LINE_END), out=offsets[1:])
        lines = pa.allocate_buffer(int(offsets[-1]))
        target = memoryview(lines).cast("B")
        ends = positions + sizes
        # Lines that follow each other are copied together.
        firsts = np.flatnonzero(np.append(True, positions[1:] != ends[:-1] + len(LINE_END)))
        lasts = np.append(firsts[1:], len(sizes))[: len(firsts)] - 1
        begins, stops = positions[firsts], ends[lasts]
        borders = np.flatnonzero(begins[1:] - stops[:-1] > _MAX_GAP) + 1
        at = 0
        for group in np.split(np.arange(len(begins)), borders) if len(begins) else ():
            start = int(begins[group[0]])
            held = self._read_range(start, int(stops[group[-1]]))
            for begin, stop in zip(begins[group].tolist(), stops[group].tolist(), strict=True):
                target[at : at + stop - begin] = held[begin - start : stop - start]
                at += stop - begin
                target[at] = LINE_END[0]
                at += 1
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), lines])

    def _read_range(self, start: int, stop: int) -> memoryview:
        """Read bytes of the file into memory that the next call overwrites."""
        if len(self._held) < stop - start:
            self._held = bytearray(stop - start)
        held = memoryview(self._held)[: stop - start]
        self._stream.seek(start)
        num_read = 0
        while num_read < len(held):
            count = self._stream.readinto(held[num_read:])
            if not count:
                self._refuse()
            num_read += count
        return held

    def _check(self) -> None:
        check_unchanged(self.file.path, self.file.num_bytes, self.file.version)

    def _refuse(self) -> NoReturn:
        self._check()
        raise SourceChangedError(
            f"{self.file.path} does not hold the lines that were read from it in this run",
            help="run the same command again: it makes a new plan, and keeps what has not changed",
        )
