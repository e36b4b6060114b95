"""Token rows with the columns that transformers, TRL and axolotl expect of data that is already tokenized.

| column | |
|---|---|
| `input_ids` | without padding: collators pad, and `seq_lengths` sums to the row's length |
| `labels` | the ids, with -100 where a token is not trained; the model shifts them |
| `position_ids` | from 0 in each document |
| `seq_lengths` | the lengths of the documents |
| `attention_mask` | 1, and 0 on padding: axolotl recognizes tokenized data by it, collators of transformers pad it |
| `loss_mask`, `loss_weights` | 1 or its weight if the *next* token is trained, for Megatron-Bridge and Levanter |
| `seq_start_id` | where the documents of the row begin |

Packed rows for the collators of transformers keep their padding: `default_data_collator` stacks rows of one length and
pads nothing. In other packed rows there is no attention mask: it would hide where documents end.

The first token of a document is never a label: in a row it would be predicted from the end of another document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.shards.token_rows import LENGTHS, has_weights, list_weights, tokens_in_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

STORED, TRAINING, TRANSFORMERS, AXOLOTL, LEVANTER = COLUMNS = (
    "stored",
    "training",
    "transformers",
    "axolotl",
    "levanter",
)
"""The choices of columns for token rows: those of the dataset, or some of the above."""
MEGATRON_BRIDGE = "megatron-bridge"
LLAMAFACTORY = "llamafactory"
_NAMES = {
    TRAINING: (INPUT_IDS, "labels", "position_ids", "seq_lengths"),
    TRANSFORMERS: (INPUT_IDS, "attention_mask", "labels"),
    AXOLOTL: (INPUT_IDS, "attention_mask", "labels"),
    LEVANTER: (INPUT_IDS, "loss_weights"),
    MEGATRON_BRIDGE: (INPUT_IDS, "loss_mask", "seq_start_id"),
    LLAMAFACTORY: (INPUT_IDS, "attention_mask", "labels"),
}
_TYPES = {"loss_mask": pa.int8(), "loss_weights": pa.float32()}
_PADDED = (TRANSFORMERS, LLAMAFACTORY)
"""Packed rows with these columns keep their padding."""
_IGNORED = -100


def training_schema(columns: str) -> pa.Schema:
    """Return the schema that `make_training_rows` gives."""
    return pa.schema({name: pa.list_(_TYPES.get(name, pa.int32())) for name in _NAMES[columns]})


def make_training_rows(rows: pa.RecordBatch, columns: str, align: int = 1, pad_id: int = 0) -> pa.RecordBatch:
    """Replace the columns of token rows, packed or not. `align`: see `align_documents`, for rows without padding."""
    filled = tokens_in_rows(rows)
    ids = _without_padding(rows.column(INPUT_IDS), filled).astype(np.int32)
    sizes = rows.column(LENGTHS).flatten().to_numpy()
    positions = (np.arange(len(ids)) - np.repeat(np.cumsum(sizes) - sizes, sizes)).astype(np.int32)
    is_label = positions > 0
    if LOSS_MASK in rows.schema.names:
        is_label &= _without_padding(rows.column(LOSS_MASK), filled)
    labels = np.where(is_label, ids, np.int32(_IGNORED))
    attention = _number_documents(rows) if columns == LLAMAFACTORY else np.ones_like(ids)
    if columns in _PADDED and pa.types.is_fixed_size_list(rows.column(INPUT_IDS).type):
        row_length = rows.column(INPUT_IDS).type.list_size
        is_filled = (np.arange(row_length) < filled[:, None]).ravel()
        ids = rows.column(INPUT_IDS).flatten().to_numpy().astype(np.int32)
        labels, attention = (
            _spread(values, is_filled, len(ids), fill) for values, fill in ((labels, _IGNORED), (attention, 0))
        )
        filled = np.full(rows.num_rows, row_length)
    trains_next = np.append(is_label[1:], False)  # the first token of the next document is no label
    weights = trains_next.astype(np.float32)
    if columns == LEVANTER and has_weights(rows.schema):
        weights[:-1] *= np.concatenate(list_weights(rows))[1:]
    if align > 1:
        places, sizes, filled = align_documents(rows, sizes, align)
        ids, trains_next = (
            _spread(values, places, int(sizes.sum()), fill) for values, fill in ((ids, pad_id), (trains_next, False))
        )
    ends = pa.array(np.concatenate([[0], np.cumsum(filled)]).astype(np.int32))
    document_ends = rows.column(LENGTHS).offsets.to_numpy()
    documents = pa.array(document_ends - document_ends[0])
    lists_by_name = {
        INPUT_IDS: (ends, ids),
        "labels": (ends, labels),
        "position_ids": (ends, positions),
        "attention_mask": (ends, attention),
        "seq_lengths": (documents, sizes),
        "seq_start_id": (documents, _find_starts(rows, sizes, filled)),
        "loss_mask": (ends, trains_next),
        "loss_weights": (ends, weights),
    }
    schema = training_schema(columns)
    lists = [
        pa.ListArray.from_arrays(
            lists_by_name[field.name][0], pa.array(lists_by_name[field.name][1]).cast(field.type.value_type)
        )
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(lists, schema=schema)


def align_documents(
    rows: pa.RecordBatch, sizes: NDArray[np.int32], align: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Pad documents to a multiple of `align` and one token more, which the reader drops when it shifts the labels.

    Returns the place of each token, the sizes of documents and those of rows. With `align` 4, documents of 5 and 3
    tokens have 4 and 2 inputs; both are stored with 5 tokens, at the places 0 to 4 and 5 to 7.
    """
    aligned = -(-(sizes.astype(np.int64) - 1) // align) * align + 1
    padding_before = np.cumsum(aligned - sizes) - (aligned - sizes)
    places = np.arange(int(sizes.sum())) + np.repeat(padding_before, sizes)
    totals = np.concatenate([[0], np.cumsum(aligned)])
    offsets = rows.column(LENGTHS).offsets.to_numpy()
    return places, aligned, np.diff(totals[offsets - offsets[0]])


def _spread(values: NDArray[Any], places: NDArray[Any], size: int, fill: Any) -> NDArray[Any]:
    """Put values at their places, or where these are true, and `fill` everywhere else."""
    spread = np.full(size, fill, dtype=values.dtype)
    spread[places] = values
    return spread


def _find_starts(rows: pa.RecordBatch, sizes: NDArray[Any], filled: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find where each document begins in its row."""
    sizes = sizes.astype(np.int64)
    row_starts = np.cumsum(filled) - filled
    starts: NDArray[np.int64] = np.cumsum(sizes) - sizes
    return starts - np.repeat(row_starts, rows.column(LENGTHS).value_lengths().to_numpy())


def _number_documents(rows: pa.RecordBatch) -> NDArray[np.int32]:
    """Return for each token the number of its document in the row, from 1."""
    counts = rows.column(LENGTHS).value_lengths().to_numpy().astype(np.int64)
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    return np.repeat(numbers, rows.column(LENGTHS).flatten().to_numpy()).astype(np.int32)


def _without_padding(lists: pa.Array, filled: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values of all rows, one row after the other, without padding."""
    values: NDArray[Any] = lists.flatten().to_numpy(zero_copy_only=False)
    if not pa.types.is_fixed_size_list(lists.type):
        return values
    row_length = lists.type.list_size
    return values.reshape(-1, row_length)[np.arange(row_length) < filled[:, None]]
