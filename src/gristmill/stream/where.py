"""From a training step back to its documents, and to the input files that they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.shards.dataset import open_dataset
from gristmill.shards.token_rows import LENGTHS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gristmill.shards.dataset import Dataset, Origin
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import RowShard
    from gristmill.stream.stream_reader import StoredTable


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
    """Nothing for a row of a file of others: file and row number are its origin."""


def find_origins(
    order: RowOrder, table: StoredTable, rows: NDArray[np.int64], ranks: NDArray[np.int64]
) -> list[RowOrigins]:
    """Find the documents of rows, each of which a rank reads."""
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
