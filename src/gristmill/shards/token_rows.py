"""Training rows on disk: token ids, the lengths of the documents in a row, and the origin of each document.

Rows of chats also say which of their tokens are trained, with one bit for each token, and rows of literal tokens may
have more numbers for each token. A row of preferences is a prompt and its answers, which are its documents:
`[p p p c c r r r]` with the lengths 3, 2, 3 is a pair of two answers. All that trainers need besides (labels,
positions, document numbers) is computed from these when batches are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import IMAGES, IMAGES_TYPE, INPUT_IDS, LOSS_MASK, ORIGIN, ORIGIN_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

LENGTHS = "lengths"
"""The column of the lengths of the documents in a row, in their order. The rest of a row of fixed length is padding."""
ORIGINS = "origins"
"""The column of the origins of the documents in a row."""
TOKENS = "tokens"
CHATS = "chats"
PREFERENCES = "preferences"
KINDS = (TOKENS, CHATS, PREFERENCES)
"""The kinds of datasets that hold rows: without and with a loss mask, and prompts with answers that were judged."""
LABEL = "label"
PAIR_VALUES = (("margin", pa.float64()), ("score_chosen", pa.float64()), ("score_rejected", pa.float64()))
LABEL_VALUES = ((LABEL, pa.bool_()), ("score", pa.float64()))
"""The columns of preferences besides their tokens. A value that a record does not have is null."""
PROMPT_IDS = "prompt_ids"
PAIR_PARTS = (PROMPT_IDS, "chosen_ids", "rejected_ids")
LABELED_PARTS = (PROMPT_IDS, "completion_ids")
"""What the documents of a row of preferences are, in TRL's names."""


def rows_schema(
    id_type: pa.DataType,
    row_length: int | None,
    *,
    masked: bool = False,
    has_images: bool = False,
    token_columns: Mapping[str, pa.DataType] | None = None,
) -> pa.Schema:
    """Return the schema of rows of one length, or (None) of rows of one document each."""
    size = -1 if row_length is None else row_length
    mask = [(LOSS_MASK, pa.list_(pa.bool_(), size))] if masked else []
    fields = [(INPUT_IDS, pa.list_(id_type, size)), (LENGTHS, pa.list_(pa.int32())), *mask]
    fields += [(name, pa.list_(kind, size)) for name, kind in (token_columns or {}).items()]
    images = [(IMAGES, IMAGES_TYPE)] if has_images else []
    return pa.schema([*fields, (ORIGINS, pa.list_(ORIGIN_TYPE)), *images])


def shard_schema(schema: pa.Schema, row_length: int | None) -> pa.Schema:
    """Return the schema in which records are written: tokenized documents as rows, others unchanged."""
    if INPUT_IDS not in schema.names:
        return schema
    if values := find_preference_values(schema):
        plain = rows_schema(find_id_type(schema), None)
        return pa.schema([*plain, *(pa.field(*value) for value in values)])
    return rows_schema(
        find_id_type(schema),
        row_length,
        masked=is_masked(schema),
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
    lists = [
        field
        for field in schema
        if field.name not in (INPUT_IDS, LENGTHS)
        and (pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type))
    ]
    return {
        field.name: field.type.value_type
        for field in lists
        if pa.types.is_integer(field.type.value_type) or pa.types.is_floating(field.type.value_type)
    }


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


def find_preference_values(schema: pa.Schema) -> tuple[tuple[str, pa.DataType], ...]:
    """Find the columns of tokenized preferences, or rows of them, besides their tokens; none: others."""
    if {INPUT_IDS, LENGTHS} <= set(schema.names):
        for values in (PAIR_VALUES, LABEL_VALUES):
            if {name for name, _ in values} <= set(schema.names):
                return values
    return ()


def list_parts(schema: pa.Schema) -> tuple[str, ...]:
    """List what the documents of each row are: of preferences the prompt and its answers; none: any documents.

    A row holds its parts one after another, so that the prompt is stored once.
    """
    values = find_preference_values(schema)
    return () if not values else LABELED_PARTS if values is LABEL_VALUES else PAIR_PARTS


def find_kind(schema: pa.Schema) -> str:
    """Find the kind of a dataset of rows with these columns."""
    return PREFERENCES if find_preference_values(schema) else CHATS if is_masked(schema) else TOKENS


def find_schema_problem(kind: str, schema: pa.Schema) -> str | None:
    """Describe why Arrow or Parquet shards of this kind cannot have these columns; None: they can."""
    if kind not in KINDS:
        has_origin = ORIGIN in schema.names and schema.field(ORIGIN).type == ORIGIN_TYPE
        return None if has_origin else f"a dataset of {kind} must have a column {ORIGIN} of type {ORIGIN_TYPE}"
    described = ", ".join(f"{field.name} {field.type}" for field in schema)
    problem = f"a dataset of {kind} has other columns than {described}"
    has_images = kind == CHATS and has_image_references(schema)
    optional = {LOSS_MASK} if kind == CHATS else set[str]()
    optional |= {IMAGES} if has_images else set()
    values = find_preference_values(schema) if kind == PREFERENCES else ()
    if kind == PREFERENCES and (not values or any(schema.field(name).type != value for name, value in values)):
        return problem
    optional |= {name for name, _ in values}
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
    if values := find_preference_values(schema):
        return _make_preference_rows(batch, [name for name, _ in values], schema)
    columns = {
        INPUT_IDS: ids,
        LENGTHS: pa.ListArray.from_arrays(pa.array(ends), sizes.astype(np.int32)).cast(schema.field(LENGTHS).type),
        ORIGINS: pa.ListArray.from_arrays(pa.array(ends), batch.column(ORIGIN)),
    }
    if LOSS_MASK in schema.names:
        columns[LOSS_MASK] = check_mask(batch, sizes)
    for name in find_token_columns(schema):
        columns[name] = check_token_column(batch, name, sizes)
    if IMAGES in schema.names:
        columns[IMAGES] = batch.column(IMAGES)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _make_preference_rows(batch: pa.RecordBatch, values: list[str], schema: pa.Schema) -> pa.RecordBatch:
    """Make rows of tokenized preferences. Each part of a row has the origin of the record."""
    lengths = batch.column(LENGTHS)
    counts = lengths.value_lengths().to_numpy()
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    origins = batch.column(ORIGIN).take(pa.array(np.repeat(np.arange(batch.num_rows), counts)))
    columns = {
        INPUT_IDS: batch.column(INPUT_IDS),
        LENGTHS: lengths,
        ORIGINS: pa.ListArray.from_arrays(pa.array(offsets), origins),
        **{name: batch.column(name) for name in values},
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def check_mask(documents: pa.RecordBatch, sizes: NDArray[np.int64]) -> pa.ListArray:
    """Return the loss masks of documents of these lengths, checked: a user's function may have changed only the ids."""
    return check_token_column(documents, LOSS_MASK, sizes)


def check_token_column(documents: pa.RecordBatch, name: str, sizes: NDArray[np.int64]) -> pa.ListArray:
    """Return a column with an entry for each token of documents of these lengths, checked."""
    values = documents.column(name)
    if values.null_count or values.values.null_count or not np.array_equal(document_lengths(values), sizes):
        raise UsageError(
            f'a document does not have one entry in "{name}" for each of its "{INPUT_IDS}"',
            help=f'a function that changes the ids must change "{name}", too',
        )
    return values


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
    if parts := list_parts(rows.schema):
        wrong = document_lengths(lengths) != len(parts)
        if wrong.any():
            return f"row {int(np.argmax(wrong))} of a batch does not have the parts {', '.join(parts)}"
    flat = ids.flatten().to_numpy()
    if vocab_size is not None and len(flat) and int(flat.max()) >= vocab_size:
        return f"holds the id {int(flat.max())}, but the vocabulary ends at {vocab_size}"
    return _find_mask_problem(rows, filled) if is_masked(rows.schema) else None


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
