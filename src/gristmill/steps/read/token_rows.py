"""Rows of a token dataset that is not packed, read as documents again: each row is one.

What a document still has is its ids, and the split that its dataset has it in: packing anew must not put documents that
were kept for validation among those for training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, ORIGIN, ORIGIN_TYPE, SPLIT
from gristmill.shards.token_rows import LENGTHS, ORIGINS, id_type_of, rows_schema
from gristmill.steps.read.batches import build_batch
from gristmill.steps.read.read import Read

if TYPE_CHECKING:
    from gristmill.core.records import BadRecord, SourceFile

_OF_TEXTS = ("text", "columns", "max_record_bytes")


def refuse_text_keys(read: Read) -> None:
    """Refuse keys of a source that mean nothing where there is no text."""
    untouched = Read(read=read.read)
    for key in _OF_TEXTS:
        if getattr(read, key) != getattr(untouched, key):
            raise UsageError(
                f"{key}: a dataset of tokens has token ids and splits, and neither text nor other columns",
                help=f"leave {key} out, or read the documents that the tokens were made of",
            )


def holds_token_rows(stored: pa.Schema) -> bool:
    """Whether a shard of ours with these columns holds rows of tokens."""
    return {INPUT_IDS, LENGTHS, ORIGINS} <= set(stored.names)


def documents_schema(stored: pa.Schema, path: str) -> pa.Schema:
    """The columns of the documents in a shard of rows."""
    if not stored.equals(rows_schema(id_type_of(stored), None)):
        raise UsageError(
            f"{path} holds {', '.join(f'{field.name} {field.type}' for field in stored)}: only rows of one document "
            "each, with nothing but its ids, can be read again",
            help="read the documents that the tokens were made of",
        )
    return pa.schema([(ORIGIN, ORIGIN_TYPE), (SPLIT, pa.string()), (INPUT_IDS, stored.field(INPUT_IDS).type)])


class TokenRowMapper:
    """Turns rows of one shard into batches of the planned schema; the counterpart of `ColumnMapper`."""

    def __init__(self, file: SourceFile, stored: pa.Schema, planned: pa.Schema) -> None:
        self._file = file
        self._planned = planned
        found, expected = documents_schema(stored, file.path).field(INPUT_IDS).type, planned.field(INPUT_IDS).type
        if found != expected:
            raise UsageError(
                f"{file.path} holds ids as {found}, but other shards as {expected}",
                help="read datasets of one tokenizer only",
            )
        self.top_level = [INPUT_IDS]

    def batch(self, rows: pa.RecordBatch, first_row: int) -> tuple[pa.RecordBatch, list[BadRecord]]:
        columns = {INPUT_IDS: rows.column(INPUT_IDS), SPLIT: pa.repeat(pa.scalar(self._file.split), len(rows))}
        positions = np.arange(first_row, first_row + len(rows))
        return build_batch(self._planned, self._file.id, positions, columns), []
