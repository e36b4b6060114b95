"""Rows of tokens as the trainers of transformers, TRL and axolotl take data that is tokenized already.

| column | |
|---|---|
| `input_ids` | without padding: collators pad, and `seq_lengths` adds up to the row |
| `labels` | the ids, and -100 where a token is not trained; the model shifts them |
| `position_ids` | from 0 in each document |
| `seq_lengths` | of the documents |

The first token of a document is never a label: in a row it would be predicted from the end of another document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.shards.token_rows import LENGTHS, tokens_in_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRAINING_SCHEMA = pa.schema(
    {name: pa.list_(pa.int32()) for name in (INPUT_IDS, "labels", "position_ids", "seq_lengths")}
)
_IGNORED = -100


def training_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a dataset, packed or not, with these columns."""
    filled = tokens_in_rows(rows)
    ids = _without_padding(rows.column(INPUT_IDS), filled).astype(np.int32)
    sizes = rows.column(LENGTHS).flatten().to_numpy()
    positions = (np.arange(len(ids)) - np.repeat(np.cumsum(sizes) - sizes, sizes)).astype(np.int32)
    is_label = positions > 0
    if LOSS_MASK in rows.schema.names:
        is_label &= _without_padding(rows.column(LOSS_MASK), filled)
    labels = np.where(is_label, ids, np.int32(_IGNORED))
    ends = pa.array(np.concatenate([[0], np.cumsum(filled)]).astype(np.int32))
    documents = np.diff(rows.column(LENGTHS).offsets.to_numpy())
    document_ends = pa.array(np.concatenate([[0], np.cumsum(documents)]).astype(np.int32))
    columns = [pa.ListArray.from_arrays(ends, pa.array(values)) for values in (ids, labels, positions)]
    columns.append(pa.ListArray.from_arrays(document_ends, pa.array(sizes)))
    return pa.RecordBatch.from_arrays(columns, schema=TRAINING_SCHEMA)


def _without_padding(lists: pa.Array, filled: NDArray[np.int64]) -> NDArray[Any]:
    """The values of all rows, one after the other."""
    values: NDArray[Any] = lists.flatten().to_numpy(zero_copy_only=False)
    if not pa.types.is_fixed_size_list(lists.type):
        return values
    row_length = lists.type.list_size
    return values.reshape(-1, row_length)[np.arange(row_length) < filled[:, None]]
