"""Training rows on disk: token ids, the lengths of the documents in them, and where each of these came from.

What trainers want besides (labels, positions, document numbers) follows from the lengths when batches are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.records import INPUT_IDS, ORIGIN, ORIGIN_TYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

LENGTHS = "lengths"
"""Of the documents in the row, in their order; what they leave of a row of fixed length is padding."""
ORIGINS = "origins"
"""Of the documents in the row."""


def rows_schema(id_type: pa.DataType, row_length: int | None) -> pa.Schema:
    """Rows of one length, or (None) of one document each."""
    ids = pa.list_(id_type) if row_length is None else pa.list_(id_type, row_length)
    return pa.schema([(INPUT_IDS, ids), (LENGTHS, pa.list_(pa.int32())), (ORIGINS, pa.list_(ORIGIN_TYPE))])


def shard_schema(schema: pa.Schema, row_length: int | None) -> pa.Schema:
    """The columns in which records of this schema are written: tokenized documents as rows, others as they are."""
    return rows_schema(id_type_of(schema), row_length) if INPUT_IDS in schema.names else schema


def id_type_of(schema: pa.Schema) -> pa.DataType:
    """Of the token ids in documents or rows."""
    return schema.field(INPUT_IDS).type.value_type


def one_document_a_row(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Tokenized documents (`origin`, `input_ids`) as rows."""
    ids = batch.column(INPUT_IDS)
    ends = np.arange(batch.num_rows + 1, dtype=np.int32)
    lengths = pa.ListArray.from_arrays(pa.array(ends), document_lengths(ids).astype(np.int32))
    origins = pa.ListArray.from_arrays(pa.array(ends), batch.column(ORIGIN))
    schema = rows_schema(ids.type.value_type, None)
    return pa.RecordBatch.from_arrays([ids, lengths.cast(schema.field(LENGTHS).type), origins], schema=schema)


def document_lengths(ids: pa.ListArray) -> NDArray[np.int64]:
    """How many tokens each document has."""
    offsets: NDArray[np.int32] = ids.offsets.to_numpy()
    return np.diff(offsets).astype(np.int64)


def num_tokens(rows: pa.RecordBatch) -> int:
    """Tokens in rows, without padding."""
    return int(rows.column(LENGTHS).flatten().to_numpy().sum(dtype=np.int64))


def rows_problem(rows: pa.RecordBatch, vocab_size: int | None) -> str | None:
    """What is wrong with rows, in words."""
    lengths = rows.column(LENGTHS)
    ends = lengths.offsets.to_numpy()
    totals = np.concatenate([[0], np.cumsum(lengths.values.to_numpy(), dtype=np.int64)])
    filled = totals[ends[1:]] - totals[ends[:-1]]
    ids = rows.column(INPUT_IDS)
    if pa.types.is_fixed_size_list(ids.type):
        wrong = filled > ids.type.list_size
    else:
        wrong = filled != document_lengths(ids)
    if wrong.any():
        return f"row {int(np.argmax(wrong))} of a batch does not hold as many tokens as its lengths say"
    flat = ids.flatten().to_numpy()
    if vocab_size is not None and len(flat) and int(flat.max()) >= vocab_size:
        return f"holds the id {int(flat.max())}, but the vocabulary ends at {vocab_size}"
    return None
