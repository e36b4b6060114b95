"""What a stream knows of a row besides its tokens: its source, the images of a chat, and the documents it is made of.

In a mixed lane a row's origins name its source, not its shard. When a row of such a shard is first read, the input file
of each row's first document is looked up, which reads about 20 bytes for each document and keeps 2 bytes for each row.
Images are read by the references that a row holds. `find_origins` leads from the rows of a training step back to their
documents, and to the input files that these came from.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.core.records import IMAGES, ORIGIN
from gristmill.shards.canonical import make_damage_error, read_unchecked_batches
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.token_rows import LENGTHS, ORIGINS
from gristmill.stream.rows.block_reader import RemoteTable
from gristmill.stream.rows.row_table import check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.images.image_files import ImageReader
    from gristmill.shards.dataset import Dataset, Origin
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import OriginSources, RowShard
    from gristmill.stream.rows.row_table import RowTable, StoredTable


_BY_ROW = -2
"""The number for a shard whose rows have different sources."""


class RowSources:
    """Finds the source of any rows, as numbers in `Stream.sources`."""

    def __init__(self, shards: list[RowShard], sources: list[str], table: RowTable | RemoteTable | None = None) -> None:
        """Make a finder; remote rows are looked up in `table`."""
        self._table = table
        self._shards = shards
        self._numbers = {source: number for number, source in enumerate(sources)}
        of_shards = [_BY_ROW if shard.origin_sources else self._numbers[shard.source] for shard in shards]
        # One more at the end: rows that only fill up a batch have shard -1, which is this entry.
        self._of_shards = np.array([*of_shards, -1], dtype=np.int64)
        self._of_rows: dict[int, NDArray[np.uint16]] = {}
        """The sources of rows, for the shards of mixed lanes that were read so far."""
        self._starts = np.cumsum([0, *(shard.rows for shard in shards)], dtype=np.int64)
        """The first index of each shard among all rows."""
        self._has_mixed = _BY_ROW in of_shards

    def __call__(self, shards: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the sources, from the number of each row's shard and its index among all rows."""
        numbers = self._of_shards[shards]
        if not self._has_mixed:
            return numbers
        for number in np.unique(shards[numbers == _BY_ROW]).tolist():
            lane = self._shards[number].origin_sources
            assert lane is not None
            chosen = shards == number
            of_lane = np.array([self._numbers[label] for label in lane.labels], dtype=np.int64)
            if isinstance(self._table, RemoteTable):
                files = self._find_remote_files(self._table, indices[chosen])
                numbers[chosen] = of_lane[_number_files(files, lane, self._shards[number])]
                continue
            if number not in self._of_rows:
                self._of_rows[number] = _find_sources(self._shards[number], lane)
            numbers[chosen] = of_lane[self._of_rows[number][indices[chosen] - self._starts[number]]]
        return numbers

    @staticmethod
    def _find_remote_files(table: RemoteTable, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Find the input file of each row in the blocks, which are open: only rows of open blocks are asked for."""
        blocks = table.blocks.blocks_of(indices)
        files = np.empty(len(indices), dtype=np.uint64)
        for block in np.unique(blocks).tolist():
            of_block = blocks == block
            rows = indices[of_block] - (table.blocks.ends[block] - table.blocks.rows[block])
            batch = table.blocks.open_blocks([block])[0].batch
            assert batch is not None
            files[of_block] = _take_first_files(batch)[rows]
        return files


def _find_sources(shard: RowShard, lane: OriginSources) -> NDArray[np.uint16]:
    """Find the source of each row of a shard, as a number in `lane.names`."""
    check_size(shard)
    path = Path(shard.path if shard.origins is None else shard.origins)
    try:
        files = np.concatenate([np.empty(0, np.uint64), *_read_first_files(path)])
    except READ_ERRORS as error:
        raise make_damage_error(shard.path, f"cannot be read: {error}", shard.folder) from error
    if len(files) != shard.rows:
        raise make_damage_error(
            shard.path, f"holds {len(files)} rows, but the manifest says {shard.rows}", shard.folder
        )
    return _number_files(files, lane, shard)


def _number_files(files: NDArray[np.uint64], lane: OriginSources, shard: RowShard) -> NDArray[np.uint16]:
    """Return the sources of input files, as numbers in `lane.names`."""
    indices = np.searchsorted(lane.files, files)
    is_known = indices < len(lane.files)
    is_known[is_known] = lane.files[indices[is_known]] == files[is_known]
    if not is_known.all():
        raise make_damage_error(shard.path, "has rows of an input file that is not in the manifest", shard.folder)
    return lane.numbers[indices]


def _read_first_files(path: Path) -> Iterator[NDArray[np.uint64]]:
    for batch in read_unchecked_batches(path):
        is_sample = ORIGIN in batch.schema.names  # it has one origin
        yield batch.column(ORIGIN).field("file").to_numpy() if is_sample else _take_first_files(batch)


def _take_first_files(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """Return the input file of the first document of each row of tokens."""
    origins = batch.column(ORIGINS)
    origins.validate(full=True)
    files = origins.values.field("file").to_numpy(zero_copy_only=False)
    starts = origins.offsets.to_numpy()[:-1]
    if len(starts) and not 0 <= int(starts.min()) <= int(starts.max()) < len(files):
        raise ValueError("its origins are not those of its rows")
    first_files: NDArray[np.uint64] = files[starts]
    return first_files


class ImageReference(NamedTuple):
    """The place of an image, and the number of tokens that stand for it in its row."""

    shard: str
    """The tar that holds it; empty for a file of a folder."""
    member: str
    tokens: int


class RowColumn:
    """One column of all stored rows of a stream, read where it is. Threads may use it together."""

    def __init__(self, name: str, shards: list[RowShard], table: RowTable | RemoteTable) -> None:
        self.name = name
        self._shards = shards
        self._blocks = table.blocks if isinstance(table, RemoteTable) else None
        self._ends = np.cumsum([shard.rows for shard in shards], dtype=np.int64)
        self._columns: dict[int, tuple[NDArray[np.int64], list[pa.Array]]] = {}
        self._lock = threading.Lock()

    def read(self, index: int) -> pa.Scalar:
        """Return the stored value of a row, by its index among all rows."""
        if self._blocks is not None:
            _, row, block = self._blocks.open_row(index)
            assert block.batch is not None
            return block.batch.column(self.name)[row]
        number = int(np.searchsorted(self._ends, index, side="right"))
        row = index - int(self._ends[number]) + self._shards[number].rows
        ends, columns = self._open(number)
        batch = int(np.searchsorted(ends, row, side="right"))
        return columns[batch][row - int(ends[batch]) + len(columns[batch])]

    def fill(self, indices: NDArray[np.int64], filled: NDArray[np.int64], matrix: Any) -> None:
        """Write the numbers of rows of that many tokens into the lines of a matrix; all else is 0."""
        matrix[:] = 0
        for line, (index, num_tokens) in enumerate(zip(indices.tolist(), filled.tolist(), strict=True)):
            if index >= 0:
                matrix[line, :num_tokens] = self.read(index).values.to_numpy()[:num_tokens]

    def _open(self, number: int) -> tuple[NDArray[np.int64], list[pa.Array]]:
        """Map the column of a shard."""
        with self._lock:
            if number not in self._columns:
                shard = self._shards[number]
                try:
                    batches = read_unchecked_batches(Path(shard.path), shard.schema)
                    columns = [batch.column(self.name) for batch in batches]
                    for column in columns:
                        column.validate(full=True)
                except READ_ERRORS as error:
                    raise make_damage_error(shard.path, f"cannot be read: {error}", shard.folder) from error
                self._columns[number] = np.cumsum([len(column) for column in columns], dtype=np.int64), columns
            return self._columns[number]


class RowValues:
    """The scores and labels of preferences, by row."""

    def __init__(self, shards: list[RowShard], table: RowTable | RemoteTable) -> None:
        self._shards = shards
        self._table = table
        self._columns: dict[str, RowColumn] = {}

    def read(self, name: str, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read a column of some rows; nan where there is no value."""
        column = self._columns.setdefault(name, RowColumn(name, self._shards, self._table))
        values = [column.read(index).as_py() if index >= 0 else None for index in indices.tolist()]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float32)


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
        self._column = RowColumn(IMAGES, shards, table)
        self._reader = None
        if files is not None:
            from gristmill.images.image_files import ImageReader  # noqa: PLC0415  (few streams have images)

            self._reader = ImageReader(files)
        self._decode = "bytes" if decode is None else decode

    def take(self, indices: NDArray[np.int64]) -> list[list[Any]]:
        """Return the images of each row, in the order of its tokens; a row that only fills up a batch has none."""
        images = [self._read_references(index) if index >= 0 else [] for index in indices.tolist()]
        reader = self._reader
        return images if reader is None else [[self._load(reader, image) for image in row] for row in images]

    def _read_references(self, index: int) -> list[Any]:
        return [ImageReference(**reference) for reference in self._column.read(index).as_py()]

    def _load(self, reader: ImageReader, reference: ImageReference) -> Any:
        content = reader.read(reference.shard, reference.member)
        if callable(self._decode):
            return self._decode(content)
        if self._decode == "bytes":
            return content
        from gristmill.images.codec import decode_image  # noqa: PLC0415  (few streams have images)

        image = decode_image(content)
        return np.asarray(image) if self._decode == "numpy" else image


@dataclass(frozen=True, slots=True)
class Document:
    """A document in a row, or a piece of one."""

    origin: Origin
    tokens: int


@dataclass(frozen=True, slots=True)
class RowOrigins:
    """A row of the stream, with its documents."""

    row: int
    rank: int
    source: str
    epoch: int
    """How often all rows of the source were read before."""
    shard: str
    shard_row: int
    documents: list[Document]
    """Nothing for a row of a third-party file: file and row number are its origin."""


def find_origins(
    order: RowOrder, table: StoredTable, rows: NDArray[np.int64], ranks: NDArray[np.int64]
) -> list[RowOrigins]:
    """Find the documents of rows, each of which a rank reads."""
    from gristmill.shards.dataset import open_dataset  # noqa: PLC0415  (training itself opens no dataset)

    ordered = order(rows)
    numbers = table.shards_of(ordered.indices)
    datasets: dict[str, Dataset] = {}
    origins = []
    for index, row in enumerate(rows.tolist()):
        shard = table.shards[int(numbers[index])]
        shard_row = int(ordered.indices[index] - table.ends[numbers[index]]) + shard.rows
        documents: list[Document] = []
        if not shard.is_foreign:
            if shard.folder not in datasets:
                datasets[shard.folder] = open_dataset(shard.folder)
            dataset = datasets[shard.folder]
            record = shard.first_row + shard_row
            lengths = dataset[record][LENGTHS].tolist() if dataset.manifest.holds_rows else [0]
            documents = [Document(*pair) for pair in zip(dataset.origins(record), lengths, strict=True)]
        origins.append(
            RowOrigins(
                row=row,
                rank=int(ranks[index]),
                source=_find_source(shard, documents),
                epoch=int(ordered.draws[index] // order.sizes[ordered.lanes[index]]),
                shard=shard.path,
                shard_row=shard_row,
                documents=documents,
            )
        )
    return origins


def _find_source(shard: RowShard, documents: list[Document]) -> str:
    """Find the name of the row's source, as in `Stream.sources`."""
    if shard.origin_sources is None:
        return shard.source
    return shard.origin_sources.label(documents[0].origin.source)
