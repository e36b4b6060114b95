"""Rows of a token dataset that is not packed, read as documents again: each row is one document.

A document has its ids and, if it is a chat, its loss mask; the text and all other columns are gone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK, ORIGIN, ORIGIN_TYPE
from gristmill.shards.damage import make_damage_error
from gristmill.shards.token_rows import (
    CHATS,
    LENGTHS,
    ORIGINS,
    TOKENS,
    find_schema_problem,
    has_image_references,
    shard_schema,
)
from gristmill.steps.read.batches import build_batch
from gristmill.steps.read.read import Read

if TYPE_CHECKING:
    from gristmill.core.records import QuarantinedRecord, SourceFile

_TEXT_KEYS = ("text", "columns", "max_record_bytes")


def refuse_text_keys(read: Read) -> None:
    """Refuse keys of a source that have no meaning without text."""
    untouched = Read(read=read.read)
    for key in _TEXT_KEYS:
        if getattr(read, key) != getattr(untouched, key):
            raise UsageError(
                f"{key}: a dataset of tokens has only token ids and splits, no text and no other columns",
                help=f"leave {key} out, or read the documents that the tokens were made of",
            )


def holds_token_rows(stored_schema: pa.Schema) -> bool:
    """Whether a shard with these columns holds rows of tokens."""
    return {INPUT_IDS, LENGTHS, ORIGINS} <= set(stored_schema.names)


def documents_schema(stored_schema: pa.Schema, path: str) -> pa.Schema:
    """Return the columns of the documents in a shard of rows."""
    if has_image_references(stored_schema):
        raise UsageError(f"{path} holds chats with images, which cannot be read again", help="read the chats")
    kind = CHATS if LOSS_MASK in stored_schema.names else TOKENS
    if find_schema_problem(kind, stored_schema) is not None or not stored_schema.equals(
        shard_schema(stored_schema, None)
    ):
        raise UsageError(
            f"{path} holds {', '.join(f'{field.name} {field.type}' for field in stored_schema)}: only rows of one "
            "document each, with its ids alone, can be read again",
            help="read the documents that the tokens were made of",
        )
    fields = [stored_schema.field(name) for name in (INPUT_IDS, LOSS_MASK) if name in stored_schema.names]
    return pa.schema([(ORIGIN, ORIGIN_TYPE), *fields])


class TokenRowMapper:
    """A mapper of rows of one shard to batches of the planned schema; the counterpart of `ColumnMapper`."""

    def __init__(self, file: SourceFile, stored_schema: pa.Schema, planned: pa.Schema) -> None:
        self._file = file
        self._planned = planned
        own = documents_schema(stored_schema, file.path)
        self.top_level = [name for name in planned.names if name != ORIGIN]
        for name in self.top_level:
            if name not in own.names or own.field(name).type != planned.field(name).type:
                raise UsageError(
                    f'{file.path} holds {", ".join(map(str, own))}, but other shards hold "{name}" as '
                    f"{planned.field(name).type}",
                    help="read datasets of one tokenizer only",
                )

    def batch(
        self, rows: pa.RecordBatch, first_row: int
    ) -> tuple[pa.RecordBatch, list[QuarantinedRecord], Counter[str]]:
        columns = {name: rows.column(name) for name in self.top_level}
        if any(column.null_count or column.values.null_count for column in columns.values()):
            raise make_damage_error(self._file.path, "holds nulls")
        positions = np.arange(first_row, first_row + len(rows))
        return build_batch(self._planned, self._file.id, positions, columns), [], Counter()
