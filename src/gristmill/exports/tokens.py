"""Token shards, read batch by batch from the mapped file: memory stays at one batch, whatever the shard's size.

Rows come in the order of the manifest. Without packing or `shuffle` that is the order of the documents' origins: the
input files of a source in the order of their paths, and the documents of a file in its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.shards.arrow_stream import read_mapped_batches
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.token_rows import CHATS, check_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gristmill.exports.layout import ShardSlot
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location


class IdsDoNotFitError(GristmillError, OverflowError):
    """A token id is too large for the numbers of the format."""


@dataclass(frozen=True, slots=True)
class ShardSize:
    """The size of a shard in rows and tokens."""

    rows: int
    tokens: int
    max_id: int = -1
    """The largest token id; -1: not asked for, or there are no tokens."""


def refuse_untokenized(manifest: Manifest, to: str, folder: Location) -> None:
    """Refuse a dataset of documents or chats that holds no tokens."""
    if not manifest.holds_rows:
        raise UsageError(
            f"{folder} holds {manifest.kind}, and {to} is a format for tokens",
            help="add a `tokenize` step to the recipe, or export to webdataset, parquet or jsonl",
        )


def find_row_length(manifest: Manifest) -> int | None:
    """Find the number of tokens in each packed row; None: rows differ in length."""
    ids = manifest.schema.to_arrow().field(INPUT_IDS).type
    return int(ids.list_size) if pa.types.is_fixed_size_list(ids) else None


def refuse_unpacked(manifest: Manifest, to: str, folder: Location) -> None:
    """Refuse tokens in rows that differ in length."""
    if find_row_length(manifest) is None:
        raise UsageError(
            f"{folder} is not packed: its rows differ in length, and {to} takes packed rows",
            help="add `- pack: {row_length: 2048}` to the recipe",
        )


def refuse_packed(manifest: Manifest, to: str, folder: Location) -> None:
    """Refuse packed rows, where whole documents in order are needed."""
    if row_length := find_row_length(manifest):
        raise UsageError(
            f"{folder} is packed into rows of {row_length} tokens, and {to} takes whole documents in order",
            help="run the recipe without `pack` into another folder and export that, or export to numpy",
        )


def refuse_masked(manifest: Manifest, to: str, folder: Location) -> None:
    """Refuse chats, where only some tokens are trained."""
    if manifest.kind == CHATS:
        raise UsageError(
            f"{folder} says which tokens are trained ({LOSS_MASK}), and {to} cannot store that",
            help="export to parquet or jsonl, or pack it and export to numpy",
        )


def measure_shard(slot: ShardSlot, *, with_max: bool) -> ShardSize:
    """Measure a shard, padding included. The tokens themselves are read only for the largest id."""
    tokens, max_id = 0, -1
    for batch in read_shard_batches(slot):
        ids = token_ids(batch)
        tokens += len(ids)
        if with_max and len(ids):
            max_id = max(max_id, int(ids.max()))
    return ShardSize(slot.rows, tokens, max_id)


def read_shard_batches(slot: ShardSlot) -> Iterator[pa.RecordBatch]:
    """Read the batches of a shard of token rows from the mapped file, each checked."""
    return check_shard_batches(_read_checked_rows(slot), slot.path, slot.rows)


def _read_checked_rows(slot: ShardSlot) -> Iterator[pa.RecordBatch]:
    for batch in read_mapped_batches(Path(slot.path), slot.schema):
        check_rows(batch)
        yield batch


def check_shard_batches(batches: Iterator[pa.RecordBatch], path: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Pass on the batches of a shard; raise an error if it cannot be read or does not hold that many rows."""
    num_rows = 0
    while True:
        try:
            batch = next(batches, None)
        except READ_ERRORS as error:
            raise make_damage_error(path, f"cannot be read: {error}") from error
        if batch is None:
            break
        num_rows += batch.num_rows
        yield batch
    if num_rows != rows:
        raise make_damage_error(path, f"holds {num_rows} records, but the manifest says {rows}")


def token_ids(batch: pa.RecordBatch) -> NDArray[np.unsignedinteger]:
    """Return all ids of a batch, row after row; a view where possible."""
    ids: NDArray[np.unsignedinteger] = batch.column(INPUT_IDS).flatten().to_numpy(zero_copy_only=False)
    return ids


def refuse_large_ids(ids: NDArray[np.unsignedinteger], dtype: np.dtype[np.integer], path: str, help: str) -> None:
    """Refuse ids that `dtype` cannot hold."""
    limit = int(np.iinfo(dtype).max)
    if np.iinfo(ids.dtype).max > limit and len(ids) and int(ids.max()) > limit:
        raise IdsDoNotFitError(
            f"token id {int(ids.max())} does not fit into {dtype}, whose largest number is {limit}",
            help=help,
            path=path,
        )


def describe_unpadded(manifest: Manifest) -> list[str]:
    """Warn that a format does not pad the documents of rows that were packed with `align`."""
    if (align := find_align(manifest)) == 1:
        return []
    problem = f"documents were packed with align: {align}, but this format does not pad them: they begin anywhere"
    return [f"{problem}; megatron-bridge pads them, and so does a Stream with Collate(align={align})"]


def find_align(manifest: Manifest) -> int:
    """Find the `align` that rows were packed with, by the recipe in the manifest; 1: none."""
    steps = manifest.recipe.get("steps")
    for step in steps if isinstance(steps, list) else ():
        pack = step.get("pack") if isinstance(step, dict) else None
        align = pack.get("align", 1) if isinstance(pack, dict) else 1
        if isinstance(align, int) and align > 1:
            return align
    return 1
