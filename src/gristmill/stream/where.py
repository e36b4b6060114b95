"""From a step back to the documents: which of them a model saw, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.shards.dataset import open_dataset
from gristmill.shards.token_rows import LENGTHS

if TYPE_CHECKING:
    from gristmill.shards.dataset import Dataset, Origin
    from gristmill.stream.row_order import RowOrder
    from gristmill.stream.row_table import RowTable
    from gristmill.stream.sources import RowShard


@dataclass(frozen=True, slots=True)
class Document:
    """A document, or a piece of one, in a row."""

    origin: Origin
    tokens: int


@dataclass(frozen=True, slots=True)
class RowOrigins:
    """A row of the stream, and what it consists of."""

    row: int
    rank: int
    source: str
    epoch: int
    """How often the source's rows were all read before."""
    shard: str
    shard_row: int
    documents: list[Document]


def find_origins(order: RowOrder, table: RowTable, rows: range, first_row: int, batch_size: int) -> list[RowOrigins]:
    """Of some rows of the step that begins at `first_row`."""
    ordered = order(np.array(rows, dtype=np.int64))
    numbers = table.shards_of(ordered.indices)
    datasets: dict[str, Dataset] = {}
    found = []
    for index, row in enumerate(rows):
        shard = table.shards[int(numbers[index])]
        shard_row = int(ordered.indices[index] - table.ends[numbers[index]]) + shard.rows
        if shard.folder not in datasets:
            datasets[shard.folder] = open_dataset(shard.folder)
        dataset = datasets[shard.folder]
        record = shard.first_row + shard_row
        lengths = dataset[record][LENGTHS].tolist()
        documents = [Document(*pair) for pair in zip(dataset.origins(record), lengths, strict=True)]
        found.append(
            RowOrigins(
                row=row,
                rank=(row - first_row) // batch_size,
                source=_source(shard, documents),
                epoch=int(ordered.draws[index] // order.sizes[ordered.lanes[index]]),
                shard=shard.path,
                shard_row=shard_row,
                documents=documents,
            )
        )
    return found


def _source(shard: RowShard, documents: list[Document]) -> str:
    """For people, as in `Stream.sources`."""
    if shard.origin_sources is None:
        return shard.source
    return shard.origin_sources.label(documents[0].origin.source)
