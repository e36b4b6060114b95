"""What a remote stream will fetch, computed from its order and its index alone: nothing is read.

The blocks of every step are known. So requests and bytes are exact for each node whose ranks share a cache that holds
all of these blocks. Blocks that ranks fetch ahead for later steps are counted separately. A smaller cache evicts blocks
in the order in which threads and processes have opened them, which is not known in advance: two equal runs differ. Then
the numbers are those of a cache that evicts the least recently used block, and only the minimum is certain: each block
once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.stream.rows.block_reader import PARTS_OF_CACHE, BlockReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.stream.stream import Stream


_SMALL_CACHE = (
    "the cache cannot hold all of these blocks, and which of them go first depends on when threads fetch ahead"
)
_CONVERTED = "blocks of tables are converted, and how large they are then is not known before"


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The reads of all ranks of one node."""

    steps: int
    rows: int
    requests: int
    bytes_read: int
    distinct_requests: int
    """The number of blocks that are needed: the least requests."""
    distinct_bytes: int
    """The bytes of all blocks that are needed: what is read if none is fetched twice."""
    ahead_requests: int
    """The most requests for later steps, which are made before the last of these steps."""
    ahead_bytes: int
    cache_bytes: int
    """The size of the cache that was assumed."""
    needed_cache_bytes: int
    """A cache with which no block is fetched twice: one part of it is for what is fetched ahead."""
    uncertainty: str
    """Why `requests` and `bytes_read` may turn out otherwise; empty: they are exact for a cache that begins empty."""

    @property
    def bytes_per_row(self) -> float:
        return self.bytes_read / max(self.rows, 1)


def plan_reads(stream: Stream, batch_size: int, world_size: int, steps: int, nodes: int = 1) -> ReadPlan:
    """Plan what the first node fetches in some steps from the stream's position on."""
    batch_size, _, world_size = stream.check_ranks(batch_size, 0, world_size)
    if stream.arguments.balance and nodes > 1:
        raise UsageError(
            "with balance, a node reads any rows of a global batch, so this plan would be wrong",
            help="plan without balance: the number of rows is the same",
        )
    reader = getattr(stream.reader.table, "blocks", None)
    if not isinstance(reader, BlockReader):
        raise UsageError("this dataset is on a local disk: nothing is fetched", help="name a dataset on a store")
    if world_size % nodes:
        raise UsageError(f"{world_size} ranks cannot be divided evenly among {nodes} nodes")
    num_rows = batch_size * (world_size // nodes)
    num_ahead = stream.reader.count_batches_ahead(batch_size, batch_size * world_size)
    listed = list(_list_blocks(stream, reader, batch_size * world_size, num_rows, steps + num_ahead))
    planned = listed[:steps]
    blocks_of_steps = [blocks for _, blocks in planned]
    limit = reader.cache.max_bytes
    cached: OrderedDict[int, int] = OrderedDict()
    in_cache = requests = bytes_read = 0
    for blocks in blocks_of_steps:
        for block, size in zip(blocks.tolist(), reader.bytes[blocks].tolist(), strict=True):
            if block in cached:
                cached.move_to_end(block)
                continue
            cached[block] = size
            requests, bytes_read, in_cache = requests + 1, bytes_read + size, in_cache + size
            while in_cache > limit and len(cached) > 1:
                in_cache -= cached.popitem(last=False)[1]
    used_blocks, listed_blocks = (
        np.unique(np.concatenate([np.empty(0, np.int64), *(blocks for _, blocks in steps_with_blocks)]))
        for steps_with_blocks in (planned, listed)
    )
    distinct_bytes = int(reader.bytes[used_blocks].sum())
    # In full shuffle any block may be needed again, and a cache does not know which.
    is_full = stream.arguments.shuffle and not stream.order.window_rows
    most_bytes = distinct_bytes if is_full else _count_most_bytes(blocks_of_steps, reader)
    return ReadPlan(
        steps=len(blocks_of_steps),
        rows=sum(count for count, _ in planned),
        requests=requests,
        bytes_read=bytes_read,
        distinct_requests=len(used_blocks),
        distinct_bytes=distinct_bytes,
        ahead_requests=len(listed_blocks) - len(used_blocks),
        ahead_bytes=int(reader.bytes[listed_blocks].sum()) - distinct_bytes,
        cache_bytes=limit,
        # What is in use, and one part for what is fetched ahead.
        needed_cache_bytes=min(
            -(-most_bytes * PARTS_OF_CACHE // (PARTS_OF_CACHE - 1)), int(reader.bytes[_find_fetched(reader)].sum())
        ),
        uncertainty=_find_uncertainty(reader, distinct_bytes),
    )


def _find_uncertainty(reader: BlockReader, needed_bytes: int) -> str:
    """Find out why a real run may differ from the plan; empty: no block is evicted before it was used last."""
    if any(shard.table is not None for shard in reader.shards):
        return _CONVERTED
    limit = reader.cache.max_bytes
    # Blocks that are fetched ahead of the last step are in the cache too.
    most_bytes = min(int(reader.bytes[_find_fetched(reader)].sum()), needed_bytes + limit // PARTS_OF_CACHE)
    return _SMALL_CACHE if most_bytes > limit else ""


def _list_blocks(
    stream: Stream, reader: BlockReader, global_size: int, num_rows: int, steps: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the number of rows of each step, and their blocks in the order in which they are needed."""
    row = stream.passes.batch_begin(stream.next_row, global_size)
    is_fetched = _find_fetched(reader)
    for _ in range(steps):
        if not stream.has_batch(row, global_size):
            return
        end = stream.passes.end_of(row)
        rows = np.arange(row, row + num_rows if end is None else min(row + num_rows, end))
        blocks = np.unique(reader.blocks_of(stream.order(rows).indices))
        yield len(rows), blocks[is_fetched[blocks]]
        row = stream.passes.batch_begin(stream.passes.batch_end(row, global_size), global_size)


def _find_fetched(reader: BlockReader) -> NDArray[np.bool_]:
    """Find which blocks are fetched into the cache; the others are on this disk."""
    return np.array([shard.is_cached for shard in reader.shards])[reader.shard_of]


def _count_most_bytes(blocks_of_steps: list[NDArray[np.int64]], reader: BlockReader) -> int:
    """Count the most bytes of blocks that are needed before and again after a step."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, blocks in enumerate(blocks_of_steps):
        for block in blocks.tolist():
            first.setdefault(block, step)
            last[block] = step
    changes = np.zeros(len(blocks_of_steps) + 1, dtype=np.int64)
    for block, step in first.items():
        changes[step] += reader.bytes[block]
        changes[last[block] + 1] -= reader.bytes[block]
    return int(np.cumsum(changes).max(initial=0))
