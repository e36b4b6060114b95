"""Token shards, read batch by batch from the mapped file: memory stays at one batch, whatever a shard holds.

Rows come in the order of the manifest. Without packing that is the order of the documents' origins: the input files of
a source in the order of their paths, and documents in a file as they stand in it (unless a `shuffle` came before).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import DamagedDatasetError, GristmillError
from gristmill.core.records import INPUT_IDS
from gristmill.shards.arrow_stream import mapped_batches
from gristmill.shards.readers import READ_ERRORS
from gristmill.shards.token_rows import check_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.exports.layout import Place


class IdsDoNotFitError(GristmillError, OverflowError):
    """A token id is too large for the numbers of the format."""


@dataclass(frozen=True, slots=True)
class ShardSize:
    """What a shard takes up."""

    rows: int
    tokens: int
    max_id: int = -1
    """-1: not looked for, or there is no token."""


def measure(place: Place, *, with_max: bool) -> ShardSize:
    """The size of a shard of unpacked documents. Only with the greatest id are the tokens themselves read."""
    tokens, max_id = 0, -1
    for batch in shard_batches(place):
        tokens += int(document_lengths(batch).sum())
        ids = token_ids(batch)
        if with_max and len(ids):
            max_id = max(max_id, int(ids.max()))
    return ShardSize(place.rows, tokens, max_id)


def shard_batches(place: Place) -> Iterator[pa.RecordBatch]:
    """The batches of a shard of rows, from the mapped file; none that is damaged."""
    return counted(_sound_rows(place), place.path, place.rows)


def _sound_rows(place: Place) -> Iterator[pa.RecordBatch]:
    for batch in mapped_batches(Path(place.path), place.schema):
        check_rows(batch)
        yield batch


def counted(batches: Iterator[pa.RecordBatch], path: str, rows: int) -> Iterator[pa.RecordBatch]:
    """The batches of a shard; an error if it cannot be read or does not hold so many rows."""
    num_rows = 0
    while True:
        try:
            batch = next(batches, None)
        except READ_ERRORS as error:
            raise damaged(path, f"cannot be read: {error}") from error
        if batch is None:
            break
        num_rows += batch.num_rows
        yield batch
    if num_rows != rows:
        raise damaged(path, f"holds {num_rows} records, but the manifest says {rows}")


def token_ids(batch: pa.RecordBatch) -> NDArray[np.unsignedinteger]:
    """All ids of a batch, one row after the other; a view where there is one."""
    ids: NDArray[np.unsignedinteger] = batch.column(INPUT_IDS).flatten().to_numpy(zero_copy_only=False)
    return ids


def document_lengths(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Tokens in each row of unpacked documents."""
    offsets: NDArray[np.int64] = batch.column(INPUT_IDS).offsets.to_numpy()
    return np.diff(offsets).astype(np.int64)


def refuse_large_ids(ids: NDArray[np.unsignedinteger], dtype: np.dtype[np.integer], path: str, help: str) -> None:
    """Refuse ids that `dtype` would wrap."""
    limit = int(np.iinfo(dtype).max)
    if np.iinfo(ids.dtype).max > limit and len(ids) and int(ids.max()) > limit:
        raise IdsDoNotFitError(
            f"token id {int(ids.max())} does not fit into {dtype}, which ends at {limit}", help=help, path=path
        )


def damaged(path: str, message: str) -> DamagedDatasetError:
    """An error that names a shard."""
    return DamagedDatasetError(f"{path} {message}", help="`gristmill verify` names all that is damaged")
