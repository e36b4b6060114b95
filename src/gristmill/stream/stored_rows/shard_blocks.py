"""Where the rows of a shard are in memory: one line of addresses for each of its batches.

A shard is mapped when its first row is needed, and the headers of its batches are read once (about 0.1 ms each). After
that a row is found by arithmetic. No row is read or copied here. The file descriptor is closed, so the number of open
files does not grow with the number of shards; the mapping lives as long as the buffer that is returned.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.token_rows import LENGTHS
from gristmill.stream.batches.kernels import (
    B_END_ROW,
    B_IDS_OFFSETS,
    B_LENGTHS,
    B_LENGTHS_OFFSETS,
    B_NUM_LENGTHS,
    B_ROW_LENGTH,
    B_ROWS,
    BLOCK_COLUMNS,
)
from gristmill.stream.batches.mapping import map_file, request_pages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.lanes.sources import RowShard


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
    if at_random:
        _request_lengths(blocks)
    return mapped, blocks


def _request_lengths(blocks: NDArray[np.int64]) -> None:
    """Start reading the offsets of rows and the lengths of documents: 1 % of a shard, needed for any row."""
    for block in blocks.tolist():
        offsets_bytes = 4 * (block[B_ROWS] + 1)
        request_pages(block[B_LENGTHS_OFFSETS], offsets_bytes)
        request_pages(block[B_LENGTHS], 4 * block[B_NUM_LENGTHS])
        if not block[B_ROW_LENGTH]:
            request_pages(block[B_IDS_OFFSETS], offsets_bytes)


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
    ]


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
