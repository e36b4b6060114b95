"""Training rows on disk: token ids, the lengths of the documents in a row, and the origin of each document.

Rows of chats also say which of their tokens are trained, with one bit for each token, and rows of literal tokens may
have more numbers for each token. All that trainers need besides (labels, positions, document numbers) is computed from
these when batches are made.

The kinds of tokens are stored as runs: a run is a number of 16 bits, the kind in the upper four and the number of
tokens in the others. Padding is in no run.

    kinds  template x 3, user x 5000, assistant x 2        runs  0x0003  0x5fff 0x5389  0x7002
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import IMAGES, IMAGES_TYPE, INPUT_IDS, KINDS, LOSS_MASK, ORIGIN, ORIGIN_TYPE, WEIGHTS
from gristmill.core.token_kinds import PADDING, TOKEN_KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

LENGTHS = "lengths"
"""The column of the lengths of the documents in a row, in their order. The rest of a row of fixed length is padding."""
ORIGINS = "origins"
"""The column of the origins of the documents in a row."""
TOKENS = "tokens"
CHATS = "chats"
_DOCUMENT_KINDS, _RUNS_OF_KINDS = pa.list_(pa.uint8()), pa.list_(pa.uint16())
ROW_DATASETS = (TOKENS, CHATS)
"""The kinds of datasets that hold rows: without and with a loss mask."""


def rows_schema(
    id_type: pa.DataType,
    row_length: int | None,
    *,
    masked: bool = False,
    has_kinds: bool = False,
    has_weights: bool = False,
    has_images: bool = False,
    token_columns: Mapping[str, pa.DataType] | None = None,
) -> pa.Schema:
    """Return the schema of rows of one length, or (None) of rows of one document each."""
    size = -1 if row_length is None else row_length
    mask = [(LOSS_MASK, pa.list_(pa.bool_(), size))] if masked else []
    fields = [(INPUT_IDS, pa.list_(id_type, size)), (LENGTHS, pa.list_(pa.int32())), *mask]
    fields += [(name, pa.list_(kind, size)) for name, kind in (token_columns or {}).items()]
    kinds = [(KINDS, pa.list_(pa.uint16()))] if has_kinds else []
    images = [(IMAGES, IMAGES_TYPE)] if has_images else []
    kinds += [(WEIGHTS, pa.list_(pa.float32()))] if has_weights else []
    return pa.schema([*fields, *kinds, (ORIGINS, pa.list_(ORIGIN_TYPE)), *images])


def shard_schema(schema: pa.Schema, row_length: int | None) -> pa.Schema:
    """Return the schema in which records are written: tokenized documents as rows, others unchanged."""
    if INPUT_IDS not in schema.names:
        return schema
    return rows_schema(
        find_id_type(schema),
        row_length,
        masked=is_masked(schema),
        has_kinds=has_kinds(schema),
        has_weights=has_weights(schema),
        has_images=has_image_references(schema),
        token_columns=find_token_columns(schema),
    )


def find_token_columns(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Find the columns with a number for each token in addition to its id, and the types of the numbers.

    These are weights of tokens, log-probabilities and the like: any list of numbers in documents or rows with ids.

    >>> numbers = pa.list_(pa.float32())
    >>> find_token_columns(pa.schema({"input_ids": pa.list_(pa.uint16()), "logprobs": numbers, "score": pa.float32()}))
    {'logprobs': DataType(float)}
    """
    if INPUT_IDS not in schema.names:
        return {}
    in_runs = (KINDS, WEIGHTS) if has_kinds(schema) else ()
    lists = [
        field
        for field in schema
        if field.name not in (INPUT_IDS, LENGTHS, *in_runs)
        and (pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type))
    ]
    return {
        field.name: field.type.value_type
        for field in lists
        if pa.types.is_integer(field.type.value_type) or pa.types.is_floating(field.type.value_type)
    }


def list_token_names(schema: pa.Schema) -> list[str]:
    """List the columns of tokenized documents that rows keep."""
    in_runs = (KINDS, WEIGHTS) if has_kinds(schema) else ()
    names = (INPUT_IDS, LOSS_MASK, IMAGES, *in_runs, *find_token_columns(schema))
    return [name for name in names if name in schema.names]


def find_id_type(schema: pa.Schema) -> pa.DataType:
    """Return the type of the token ids in documents or rows."""
    return schema.field(INPUT_IDS).type.value_type


def has_image_references(schema: pa.Schema) -> bool:
    """Whether tokenized chats or rows of them refer to images."""
    return {INPUT_IDS, IMAGES} <= set(schema.names) and schema.field(IMAGES).type == IMAGES_TYPE


def is_masked(schema: pa.Schema) -> bool:
    """Whether tokenized documents or rows say which of their tokens are trained."""
    if not {INPUT_IDS, LOSS_MASK} <= set(schema.names):
        return False
    kind = schema.field(LOSS_MASK).type
    if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)) or kind.value_type != pa.bool_():
        raise UsageError(f'column "{LOSS_MASK}" is {kind}', help="it must be list<bool>: whether each token is trained")
    return True


def has_kinds(schema: pa.Schema) -> bool:
    """Whether tokenized chats or rows of them say of which kind their tokens are."""
    return is_masked(schema) and KINDS in schema.names and schema.field(KINDS).type in (_DOCUMENT_KINDS, _RUNS_OF_KINDS)


def has_weights(schema: pa.Schema) -> bool:
    """Whether tokenized chats or rows of them have weights for their tokens."""
    return has_kinds(schema) and WEIGHTS in schema.names


def find_schema_problem(kind: str, schema: pa.Schema) -> str | None:
    """Describe why Arrow or Parquet shards of this kind cannot have these columns; None: they can."""
    if kind not in ROW_DATASETS:
        has_origin = ORIGIN in schema.names and schema.field(ORIGIN).type == ORIGIN_TYPE
        return None if has_origin else f"a dataset of {kind} must have a column {ORIGIN} of type {ORIGIN_TYPE}"
    described = ", ".join(f"{field.name} {field.type}" for field in schema)
    problem = f"a dataset of {kind} has other columns than {described}"
    has_images = kind == CHATS and has_image_references(schema)
    optional = {LOSS_MASK} if kind == CHATS else set[str]()
    optional |= {KINDS, WEIGHTS} & set(schema.names) if kind == CHATS and has_kinds(schema) else set()
    optional |= {IMAGES} if has_images else set()
    token_columns = find_token_columns(schema)
    if set(schema.names) != {INPUT_IDS, LENGTHS, ORIGINS, *token_columns} | optional:
        return problem
    ids = schema.field(INPUT_IDS).type
    is_fixed = pa.types.is_fixed_size_list(ids)
    if not (is_fixed and ids.list_size > 0) and not pa.types.is_list(ids):
        return problem
    if ids.value_type not in (pa.uint16(), pa.uint32()):
        return problem
    fitting = rows_schema(
        ids.value_type,
        ids.list_size if is_fixed else None,
        masked=kind == CHATS,
        has_kinds=KINDS in optional,
        has_weights=WEIGHTS in optional,
        has_images=has_images,
        token_columns=token_columns,
    )
    return None if all(schema.field(field.name).type == field.type for field in fitting) else problem


def make_document_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make rows of one document each from tokenized documents (`origin`, `input_ids`, for chats `loss_mask`)."""
    ids = batch.column(INPUT_IDS)
    ends = np.arange(batch.num_rows + 1, dtype=np.int32)
    sizes = document_lengths(ids)
    schema = shard_schema(batch.schema, None)
    columns = {
        INPUT_IDS: ids,
        LENGTHS: pa.ListArray.from_arrays(pa.array(ends), sizes.astype(np.int32)).cast(schema.field(LENGTHS).type),
        ORIGINS: pa.ListArray.from_arrays(pa.array(ends), batch.column(ORIGIN)),
    }
    if LOSS_MASK in schema.names:
        columns[LOSS_MASK] = check_marks(batch, LOSS_MASK, sizes)
    if has_kinds(schema):
        columns[KINDS] = encode_kinds(check_marks(batch, KINDS, sizes).flatten().to_numpy(), sizes)
    for name in find_token_columns(schema):
        columns[name] = check_marks(batch, name, sizes)
    for name in (WEIGHTS, IMAGES):
        if name in schema.names and name not in columns:
            columns[name] = batch.column(name)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def check_marks(documents: pa.RecordBatch, name: str, sizes: NDArray[np.int64]) -> pa.ListArray:
    """Return a column with an entry for each token of documents of these lengths, checked.

    A user's function may have changed only the ids.
    """
    marks = documents.column(name)
    if marks.null_count or marks.values.null_count or not np.array_equal(document_lengths(marks), sizes):
        raise UsageError(
            f'a document does not have one entry in "{name}" for each of its "{INPUT_IDS}"',
            help=f"a function that changes the ids of chats must change their {name}, too, or leave the column out",
        )
    return marks


def pack_bits(marks: NDArray[np.bool_]) -> pa.BooleanArray:
    """Return a column of bits: `pa.array` would take ten times as long."""
    bits = pa.py_buffer(np.packbits(marks, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(marks), [None, bits])


RUN_BITS = 12
MAX_RUN = (1 << RUN_BITS) - 1


def encode_kinds(kinds: NDArray[np.uint8], sizes: NDArray[np.int64]) -> pa.ListArray:
    """Encode the kinds of rows of these sizes, one after the other, as runs; padding is left out.

    >>> encode_kinds(np.array([5, 5, 7, 3], np.uint8), np.array([1, 3])).to_pylist()
    [[20481], [20481, 28673]]
    """
    ends = np.cumsum(sizes)
    borders = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    row_starts = ends - sizes
    starts = np.unique(np.concatenate([borders, row_starts[sizes > 0]]))
    lengths = np.diff(starts, append=len(kinds))
    lengths[kinds[starts] == PADDING] = 0
    num_pieces = -(-lengths // MAX_RUN)
    last = np.cumsum(num_pieces)
    runs = np.full(int(last[-1]) if len(last) else 0, MAX_RUN, np.uint16)
    is_run = num_pieces > 0
    runs[last[is_run] - 1] = lengths[is_run] - MAX_RUN * (num_pieces[is_run] - 1)
    runs |= np.repeat(kinds[starts].astype(np.uint16) << RUN_BITS, num_pieces)
    offsets = np.concatenate([[0], last])[np.searchsorted(starts, np.concatenate([[0], ends]))]
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(runs))


def decode_kinds(runs: pa.ListArray) -> pa.ListArray:
    """Return the kinds of rows, one for each token without padding.

    >>> decode_kinds(pa.array([[20481], [20481, 28673]], pa.list_(pa.uint16()))).to_pylist()
    [[5], [5, 7]]
    """
    values = runs.flatten().to_numpy()
    lengths = (values & MAX_RUN).astype(np.int64)
    totals = np.concatenate([[0], np.cumsum(lengths)])
    offsets = runs.offsets.to_numpy()
    kinds = np.repeat((values >> RUN_BITS).astype(np.uint8), lengths)
    return pa.ListArray.from_arrays(pa.array(totals[offsets - offsets[0]].astype(np.int32)), pa.array(kinds))


def document_lengths(ids: pa.ListArray) -> NDArray[np.int64]:
    """Count the tokens of each document."""
    offsets: NDArray[np.int32] = ids.offsets.to_numpy()
    return np.diff(offsets).astype(np.int64)


def num_tokens(rows: pa.RecordBatch) -> int:
    """Count the tokens of all rows, without padding."""
    return int(rows.column(LENGTHS).flatten().to_numpy().sum(dtype=np.int64))


def num_trained_tokens(rows: pa.RecordBatch) -> int:
    """Count the trained tokens of all rows of chats."""
    return int(rows.column(LOSS_MASK).flatten().true_count)


def tokens_in_rows(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """Count the tokens of each row, without padding."""
    lengths = rows.column(LENGTHS)
    totals = np.concatenate([[0], np.cumsum(lengths.values.to_numpy(), dtype=np.int64)])
    filled: NDArray[np.int64] = np.diff(totals[lengths.offsets.to_numpy()])
    return filled


def compute_attention_costs(rows: pa.RecordBatch) -> NDArray[np.uint64]:
    """Compute the cost of attention in each row: the sum of its documents' squared lengths.

    A document attends to itself alone: rows of 3 + 1 and 2 + 2 tokens cost 10 and 8.
    """
    lengths = rows.column(LENGTHS)
    squares = np.square(lengths.values.to_numpy().astype(np.uint64))
    totals = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(squares, dtype=np.uint64)])
    costs: NDArray[np.uint64] = np.diff(totals[lengths.offsets.to_numpy()])
    return costs


def encode_weights(weights: NDArray[np.float32]) -> list[float]:
    """Encode the weights of the tokens of a chat as runs, each a number of tokens and their weight.

    >>> encode_weights(np.array([1, 1, 0.5], np.float32))
    [2.0, 1.0, 1.0, 0.5]
    """
    ends = np.flatnonzero(np.diff(weights, append=np.nan))
    lengths = np.diff(ends, prepend=-1)
    runs: list[float] = np.stack([lengths, weights[ends]], axis=1).ravel().tolist()
    return runs


def decode_weights(runs: NDArray[np.float32], num_tokens: int) -> NDArray[np.float32]:
    """Return the weight of each token of a row without padding: 1 where there are no runs."""
    if not len(runs):
        return np.ones(num_tokens, np.float32)
    return np.repeat(runs[1::2], runs[::2].astype(np.int64))


def list_weights(rows: pa.RecordBatch) -> list[NDArray[np.float32]]:
    """List the weights of the tokens of each row, without padding."""
    filled = tokens_in_rows(rows).tolist()
    return [
        decode_weights(runs.values.to_numpy(), size) for runs, size in zip(rows.column(WEIGHTS), filled, strict=True)
    ]


_PLAIN = {KINDS: _DOCUMENT_KINDS, WEIGHTS: pa.list_(pa.float32())}


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `without_runs`."""
    return pa.schema([pa.field(field.name, _PLAIN.get(field.name, field.type)) for field in schema])


def without_runs(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with a kind and a weight for each token instead of runs."""
    columns = {KINDS: decode_kinds(rows.column(KINDS))}
    if has_weights(rows.schema):
        columns[WEIGHTS] = pa.array(list_weights(rows), _PLAIN[WEIGHTS])
    arrays = [columns.get(name, rows.column(name)) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=plain_schema(rows.schema))


def check_rows(rows: pa.RecordBatch) -> None:
    """Refuse rows whose columns contradict each other.

    Raises:
        ValueError: The message says what is wrong.
    """
    if problem := find_row_problem(rows, None):
        raise ValueError(problem)


def find_row_problem(rows: pa.RecordBatch, vocab_size: int | None) -> str | None:
    """Describe what is wrong with rows whose buffers are valid (`read_mapped_batches`); None: nothing."""
    token_columns = find_token_columns(rows.schema)
    names = (INPUT_IDS, LENGTHS, ORIGINS, *((LOSS_MASK,) if is_masked(rows.schema) else ()), *token_columns)
    columns = [rows.column(name) for name in names]
    if any(column.null_count or column.values.null_count for column in columns):
        return "holds nulls"
    lengths = rows.column(LENGTHS)
    if len(lengths.values) and int(lengths.values.to_numpy().min()) < 0:
        return "holds a document with a negative length"
    if not np.array_equal(document_lengths(lengths), document_lengths(rows.column(ORIGINS))):
        return "does not hold the origin of each document"
    filled = tokens_in_rows(rows)
    ids = rows.column(INPUT_IDS)
    if pa.types.is_fixed_size_list(ids.type):
        wrong = filled > ids.type.list_size
    else:
        wrong = filled != document_lengths(ids)
    if wrong.any():
        return f"row {int(np.argmax(wrong))} of a batch does not hold as many tokens as its lengths say"
    for name in token_columns:
        if not pa.types.is_fixed_size_list(ids.type) and not rows.column(name).offsets.equals(ids.offsets):
            return f'does not have one entry in "{name}" for each token'
    flat = ids.flatten().to_numpy()
    if vocab_size is not None and len(flat) and int(flat.max()) >= vocab_size:
        return f"holds the id {int(flat.max())}, but the vocabulary ends at {vocab_size}"
    if is_masked(rows.schema) and (problem := _find_mask_problem(rows, filled)):
        return problem
    if has_kinds(rows.schema) and (problem := _find_kinds_problem(rows.column(KINDS), filled)):
        return problem
    return _find_weights_problem(rows.column(WEIGHTS), filled) if has_weights(rows.schema) else None


def _find_weights_problem(runs: pa.ListArray, filled: NDArray[np.int64]) -> str | None:
    if runs.null_count or runs.values.null_count:
        return "holds nulls"
    for row in np.flatnonzero(document_lengths(runs)).tolist():
        values = runs[row].values.to_numpy()
        if len(values) % 2 or not (np.isfinite(values).all() and (values >= 0).all()):
            return f"row {row} of a batch has weights that are no runs of numbers from 0 on"
        if int(values[::2].sum(dtype=np.float64)) != filled[row]:
            return f"row {row} of a batch does not have one weight for each token"
    return None


def _find_kinds_problem(runs: pa.ListArray, filled: NDArray[np.int64]) -> str | None:
    if runs.null_count or runs.values.null_count:
        return "holds nulls"
    values = runs.flatten().to_numpy()
    totals = np.concatenate([[0], np.cumsum((values & MAX_RUN).astype(np.int64))])
    offsets = runs.offsets.to_numpy()
    wrong = np.diff(totals[offsets - offsets[0]]) != filled
    if wrong.any():
        return f"row {int(np.argmax(wrong))} of a batch does not have one kind for each token"
    highest = int(values.max(initial=0)) >> RUN_BITS
    return f"holds the kind {highest}, and there are {len(TOKEN_KINDS)}" if highest >= len(TOKEN_KINDS) else None


def _find_mask_problem(rows: pa.RecordBatch, filled: NDArray[np.int64]) -> str | None:
    masks = rows.column(LOSS_MASK)
    if not pa.types.is_fixed_size_list(masks.type):
        wrong = filled != document_lengths(masks)
        return (
            f"row {int(np.argmax(wrong))} of a batch does not have one loss mask entry for each token"
            if wrong.any()
            else None
        )
    trained = masks.flatten().to_numpy(zero_copy_only=False).reshape(-1, masks.type.list_size)
    wrong = (trained & (np.arange(masks.type.list_size) >= filled[:, None])).any(axis=1)
    return f"row {int(np.argmax(wrong))} of a batch trains its padding" if wrong.any() else None
