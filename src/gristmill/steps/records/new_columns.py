"""Columns that a barrier adds to records, also as keys of the JSON records that a batch carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import RECORD
from gristmill.steps.records.columns import has_text_beside
from gristmill.steps.records.json_records import with_new_value

if TYPE_CHECKING:
    from collections.abc import Mapping


def put_new_columns(step: str, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return the batch with these columns behind the others, which JSON records get as keys.

    Raises:
        UsageError: A record has such a key already. Its meaning is not known here, so it is not overwritten.
    """
    if RECORD in batch.schema.names and not has_text_beside(batch.schema):
        index = batch.schema.get_field_index(RECORD)
        lines = batch.column(index).to_pylist()
        for name, values in columns.items():
            try:
                lines = [
                    with_new_value(line, name, value) for line, value in zip(lines, values.to_pylist(), strict=True)
                ]
            except ValueError as error:
                raise UsageError(f"{step}: {error}", help="rename or remove this key before this step") from error
        batch = batch.set_column(index, batch.schema.field(index), pa.array(lines, batch.schema.field(index).type))
    for name, values in columns.items():
        batch = batch.append_column(pa.field(name, values.type), values)
    return batch
