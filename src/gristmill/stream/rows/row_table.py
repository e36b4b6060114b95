"""All stored rows of a stream: from the index of a row to its addresses in memory. No row is read or copied here.

A shard is mapped when one of its rows is first needed, and the headers of its batches are read once (about 0.1 ms
each): each batch becomes a line of addresses. After that a row costs O(1), and O(log shards) to find its shard. Memory:
640 bytes for each shard, and 136 bytes for each batch of the open ones. The file descriptor is closed, so the number of
open files does not grow with the number of shards.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import INPUT_IDS, KINDS, LOSS_MASK, WEIGHTS
from gristmill.shards.canonical import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.token_rows import LENGTHS, has_kinds
from gristmill.stream.mapped_memory import map_file, memory, request_pages
from gristmill.stream.stream_kernels import (
    A_ID_BYTES,
    A_IDS,
    A_SHARD,
    A_STORED,
    ADDRESS_COLUMNS,
    B_END_ROW,
    B_IDS_OFFSETS,
    B_LENGTHS,
    B_LENGTHS_OFFSETS,
    B_NUM_LENGTHS,
    B_ROW_LENGTH,
    B_ROWS,
    BLOCK_COLUMNS,
    DAMAGED,
    FINE,
    find_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.lanes.sources import RowShard


class StoredTable(ABC):
    """All stored rows of a stream, addressable by their indices. Threads may use it together."""

    def __init__(self, shards: list[RowShard]) -> None:
        self.shards = shards
        self.ends = np.cumsum([shard.rows for shard in shards], dtype=np.int64)
        """The number of rows until the end of each shard."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing will be fetched from a store anymore."""
        return True

    def check_sizes(self) -> None:
        """Raise an error that names the first shard on this disk that is missing or too short."""
        for shard in self.shards:
            if not shard.is_cached:
                check_size(shard)

    def shards_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each row's shard."""
        return np.searchsorted(self.ends, indices, side="right")

    @abstractmethod
    def request_rows(self, indices: NDArray[np.int64]) -> None:
        """Start reading rows that will be needed."""


class RowTable(StoredTable):
    """The addresses of all rows of shards on this disk."""

    def __init__(self, shards: list[RowShard], *, at_random: bool = False) -> None:
        super().__init__(shards)
        self._at_random = at_random
        self._mapped: list[pa.Buffer] = []
        # The first block and the number of blocks of each shard (0: not open yet), and all blocks. Both arrays are
        # replaced together, in one assignment, so that a thread never sees one without the other.
        self._tables = np.zeros((len(shards), 2), dtype=np.int64), np.empty((64, BLOCK_COLUMNS), dtype=np.int64)
        self._num_blocks = 0
        self._opening = threading.Lock()

    def find_addresses(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], RowTable]:
        """Find the rows with these indices. The addresses are valid as long as the table is kept.

        The index -1 is a row without tokens.
        """
        addresses = np.empty((len(indices), ADDRESS_COLUMNS), dtype=np.int64)
        while True:
            problem, shard = find_rows(indices, self.ends, *self._tables, memory().int32, addresses)
            if problem == FINE:
                return addresses, self
            if problem == DAMAGED:
                damaged = self.shards[shard]
                raise make_damage_error(damaged.path, "is damaged: a row's lengths do not fit it", damaged.folder)
            self._open(indices)

    def request_rows(self, indices: NDArray[np.int64]) -> None:
        """Start reading the rows with these indices from the disk."""
        addresses, _ = self.find_addresses(indices)
        addresses = addresses[addresses[:, A_SHARD] >= 0]
        sizes = addresses[:, A_STORED] * addresses[:, A_ID_BYTES]
        for address, num_bytes in zip(addresses[:, A_IDS].tolist(), sizes.tolist(), strict=True):
            request_pages(address, num_bytes)

    def _open(self, indices: NDArray[np.int64]) -> None:
        """Map the shards of these rows that are not mapped yet."""
        with self._opening:
            shard_blocks, blocks = self._tables
            # A copy, because a kernel in another thread may be reading the present array.
            shard_blocks = shard_blocks.copy()
            try:
                for shard in np.unique(self.shards_of(indices[indices >= 0])).tolist():
                    if not shard_blocks[shard, 1]:
                        mapped, of_shard = open_blocks(self.shards[shard], at_random=self._at_random)
                        self._mapped.append(mapped)
                        first, end = self._num_blocks, self._num_blocks + len(of_shard)
                        shard_blocks[shard] = first, len(of_shard)
                        if end > len(blocks):
                            larger = np.empty((max(end, 2 * len(blocks)), BLOCK_COLUMNS), dtype=np.int64)
                            larger[:first] = blocks[:first]
                            blocks = larger
                        blocks[first:end] = of_shard  # in place: no thread reads beyond the present end
                        self._num_blocks = end
            finally:  # shards before a damaged one stay open
                self._tables = shard_blocks, blocks


def open_blocks(shard: RowShard, *, at_random: bool) -> tuple[pa.Buffer, NDArray[np.int64]]:
    """Map a shard; return the mapping, which must be kept, and a line for each batch.

    `at_random` says that rows will be read in no order.
    """
    try:
        check_size(shard)
        mapped = map_file(shard.path, shard.bytes, at_random=at_random)
        with pa.ipc.open_stream(pa.BufferReader(mapped)) as stream:
            if not stream.schema.equals(shard.schema):
                raise ValueError("its columns are not those in the manifest")
            lines = [make_line(batch, mapped) for batch in stream]
    except FileNotFoundError as error:
        raise make_damage_error(shard.path, "is missing", shard.folder) from error
    except READ_ERRORS as error:
        raise make_damage_error(shard.path, f"cannot be read: {error}", shard.folder) from error
    blocks = np.array(lines, dtype=np.int64).reshape(-1, BLOCK_COLUMNS)
    blocks[:, B_END_ROW] = np.cumsum(blocks[:, B_ROWS])
    num_rows = int(blocks[-1, B_END_ROW]) if len(blocks) else 0
    if num_rows != shard.rows:
        raise make_damage_error(shard.path, f"holds {num_rows} rows, but the manifest says {shard.rows}", shard.folder)
    # Start reading the offsets of rows and the lengths of documents: 1 % of a shard, needed for any row.
    for block in blocks.tolist() if at_random else ():
        offsets_bytes = 4 * (block[B_ROWS] + 1)
        request_pages(block[B_LENGTHS_OFFSETS], offsets_bytes)
        request_pages(block[B_LENGTHS], 4 * block[B_NUM_LENGTHS])
        if not block[B_ROW_LENGTH]:
            request_pages(block[B_IDS_OFFSETS], offsets_bytes)
    return mapped, blocks


def check_size(shard: RowShard) -> None:
    """Refuse a file that is missing or has another size: reading a page beyond its end would kill the process."""
    try:
        num_bytes = Path(shard.path).stat().st_size
    except FileNotFoundError as error:
        raise make_damage_error(shard.path, "is missing", shard.folder) from error
    if num_bytes != shard.bytes:
        raise make_damage_error(shard.path, f"has {num_bytes} bytes, but {shard.bytes} were written", shard.folder)


def make_line(batch: pa.RecordBatch, mapped: pa.Buffer) -> list[int]:
    """Make the line of a block. The row at which it ends is filled in later."""
    batch.validate()  # no negative counts, no buffer shorter than its column; `find_rows` checks the values
    ids, lengths = batch.column(INPUT_IDS), batch.column(LENGTHS)
    fixed = pa.types.is_fixed_size_list(ids.type)
    id_buffers = ids.buffers()
    _, lengths_offsets, _, length_values = lengths.buffers()
    masks = batch.column(LOSS_MASK) if LOSS_MASK in batch.schema.names else None
    columns = [column for column in (ids, lengths, masks) if column is not None]
    if any(column.null_count or column.values.null_count or column.offset for column in columns):
        raise ValueError("a batch holds nulls")
    num_masks = len(ids.values) if masks is None else len(masks.values)
    if num_masks != len(ids.values) or (fixed and len(ids.values) != batch.num_rows * ids.type.list_size):
        raise ValueError("the columns of a batch have different lengths")
    if masks is not None and not fixed and not masks.offsets.equals(ids.offsets):
        raise ValueError("the rows of a batch and their masks have different lengths")
    num_ids, id_bytes = len(ids.values), ids.type.value_type.bit_width // 8
    return [
        0,
        batch.num_rows,
        _find_address(id_buffers[-1], mapped, num_ids * id_bytes),
        id_bytes,
        ids.type.list_size if fixed else 0,
        0 if fixed else _find_address(id_buffers[1], mapped, 4 * (batch.num_rows + 1)),
        num_ids,
        _find_address(lengths_offsets, mapped, 4 * (batch.num_rows + 1)),
        _find_address(length_values, mapped, 4 * len(lengths.values)),
        len(lengths.values),
        0 if masks is None else _find_address(masks.buffers()[-1], mapped, -(-num_masks // 8)),
        *_find_runs(batch, KINDS, mapped),
        *_find_runs(batch, WEIGHTS, mapped),
    ]


def _find_runs(batch: pa.RecordBatch, name: str, mapped: pa.Buffer) -> tuple[int, int, int]:
    """Return the addresses of the offsets and the values of a column of runs, and their number."""
    if name not in batch.schema.names or not has_kinds(batch.schema):
        return 0, 0, 0
    runs = batch.column(name)
    _, offsets, _, values = runs.buffers()
    if runs.null_count or runs.values.null_count or runs.offset:
        raise ValueError("a batch holds nulls")
    num_bytes = len(runs.values) * runs.type.value_type.bit_width // 8
    return (
        _find_address(offsets, mapped, 4 * (batch.num_rows + 1)),
        _find_address(values, mapped, num_bytes),
        len(runs.values),
    )


def _find_address(buffer: pa.Buffer | None, mapped: pa.Buffer, num_bytes: int) -> int:
    """Return the address of a buffer from which a kernel may read this many bytes."""
    if num_bytes == 0:  # a column without values: nothing will be read
        return int(mapped.address)
    if buffer is None or buffer.size < num_bytes:
        raise ValueError("a batch is damaged: a column has fewer values than rows need")
    inside = mapped.address <= buffer.address and buffer.address + buffer.size <= mapped.address + mapped.size
    if not inside or buffer.address % 4:
        raise ValueError("a batch is compressed or damaged: its columns cannot be used where they are")
    return int(buffer.address)
