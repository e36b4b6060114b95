"""The images of rows: the references that a shard keeps beside its rows, and what they refer to."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.core.records import IMAGES
from gristmill.images.codec import decode_image
from gristmill.images.image_files import ImageReader
from gristmill.shards.arrow_stream import read_unchecked_batches
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.stream.stored_rows.remote_table import RemoteTable

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.stream.lanes.sources import RowShard
    from gristmill.stream.stored_rows.row_table import RowTable


class ImageReference(NamedTuple):
    """The place of an image, and the number of tokens that stand for it in its row."""

    shard: str
    """The tar that holds it; empty for a file of a folder."""
    member: str
    tokens: int


class RowImages:
    """The images of all rows of a stream. Threads may use it together."""

    def __init__(
        self,
        shards: list[RowShard],
        table: RowTable | RemoteTable,
        files: str | None,
        decode: str | Callable[[bytes], Any] | None,
    ) -> None:
        """`files` are the images that the recipe names; None: batches have references only."""
        self._shards = shards
        self._blocks = table.blocks if isinstance(table, RemoteTable) else None
        self._ends = np.cumsum([shard.rows for shard in shards], dtype=np.int64)
        self._reader = ImageReader(files) if files is not None else None
        self._decode = "bytes" if decode is None else decode
        self._columns: dict[int, tuple[NDArray[np.int64], list[pa.ListArray]]] = {}
        self._lock = threading.Lock()

    def take(self, indices: NDArray[np.int64]) -> list[list[Any]]:
        """Return the images of each row, in the order of its tokens; a row that only fills up a batch has none."""
        return [self._read_row(index) if index >= 0 else [] for index in indices.tolist()]

    def _read_row(self, index: int) -> list[Any]:
        references = [ImageReference(**reference) for reference in self._read_references(index)]
        return references if self._reader is None else [self._load(reference) for reference in references]

    def _read_references(self, index: int) -> list[dict[str, Any]]:
        stored: list[dict[str, Any]]
        if self._blocks is not None:
            _, row, block = self._blocks.open_row(index)
            assert block.batch is not None
            stored = block.batch.column(IMAGES)[row].as_py()
            return stored
        number = int(np.searchsorted(self._ends, index, side="right"))
        row = index - int(self._ends[number]) + self._shards[number].rows
        ends, columns = self._open(number)
        batch = int(np.searchsorted(ends, row, side="right"))
        stored = columns[batch][row - int(ends[batch]) + len(columns[batch])].as_py()
        return stored

    def _load(self, reference: ImageReference) -> Any:
        assert self._reader is not None
        content = self._reader.read(reference.shard, reference.member)
        if callable(self._decode):
            return self._decode(content)
        if self._decode == "bytes":
            return content
        image = decode_image(content)
        return np.asarray(image) if self._decode == "numpy" else image

    def _open(self, number: int) -> tuple[NDArray[np.int64], list[pa.ListArray]]:
        """Map the column of a shard."""
        with self._lock:
            if number not in self._columns:
                shard = self._shards[number]
                try:
                    columns = [batch.column(IMAGES) for batch in read_unchecked_batches(Path(shard.path), shard.schema)]
                    for column in columns:
                        column.validate(full=True)
                except READ_ERRORS as error:
                    raise make_damage_error(shard.path, f"cannot be read: {error}", shard.folder) from error
                self._columns[number] = np.cumsum([len(column) for column in columns], dtype=np.int64), columns
            return self._columns[number]
