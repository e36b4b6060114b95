"""Texts of JSON lines as an Arrow column, without a Python object for each, where all lines of a cell are plain.

The whole way from bytes to the column, cutting lines included, takes 0.3 to 0.6 s a GB; decoding to strings and copying
these takes four times as long. What is not plain (`text_kernel`) is decoded, or refused, by msgspec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import TEXT_TYPE
from gristmill.steps.read.batches import is_utf8
from gristmill.steps.read.json_files.text_kernel import BLOCK_BYTES, read_lines
from gristmill.steps.read.raw_cells.cut_records import CutRecords
from gristmill.steps.read.raw_cells.delimited_file import RawCell

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EMPTY_LINE_BYTES = len(b'{"":""}\n')


class PlainLines:
    """Reads the text under one key of the lines of cells."""

    def __init__(self, key: str, max_record_bytes: int) -> None:
        self._key = np.frombuffer(key.encode(), np.uint8)
        self._max_record_bytes = max_record_bytes
        self._scratch = np.empty((3, 0), np.int64)

    def read(self, raw: RawCell) -> tuple[CutRecords, pa.Array] | None:
        """Return the lines of a cell and their texts; None if msgspec has to look at them."""
        size = len(raw.data)
        if not size or raw.rest is not None or raw.num_left_out or raw.data[-1] != ord("\n"):
            return None
        if not is_utf8(raw.data):
            return None
        starts, stops, ends = self._make_room(size)
        texts = pa.allocate_buffer(size + BLOCK_BYTES)
        data = np.frombuffer(raw.data, np.uint8)
        data.flags.writeable = False  # whatever the cell is a view of, so that one kernel is compiled
        count = read_lines(data, self._key, starts, stops, ends, np.frombuffer(texts, np.uint8))
        if count < 0 or (stops[:count] - starts[:count]).max() > self._max_record_bytes:
            return None
        offsets = pa.py_buffer(ends[: count + 1].copy())
        column = pa.Array.from_buffers(TEXT_TYPE, count, [None, offsets, texts.slice(0, int(ends[count]))], 0)
        return CutRecords(raw, starts[:count].copy(), stops[:count].copy()), column

    def _make_room(self, size: int) -> NDArray[np.int64]:
        """Return arrays for as many lines as bytes may hold; only what is written takes memory."""
        num_lines = size // (_EMPTY_LINE_BYTES + len(self._key)) + 2
        if self._scratch.shape[1] < num_lines:
            self._scratch = np.zeros((3, num_lines), np.int64)
        return self._scratch


def call_kernels() -> None:
    """Read the text of one line."""
    data = memoryview(bytearray(b'{"text": "a"}\n'))
    PlainLines("text", len(data)).read(RawCell(0, 0, data, is_terminated=True, num_left_out=0))
