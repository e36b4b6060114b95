"""New values for columns of a batch, also in the JSON records that are carried along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.records import RECORD, QuarantinedRecord
from gristmill.steps.records.columns import has_text_beside, path_in_record
from gristmill.steps.records.json_records import with_values
from gristmill.steps.records.record_functions import quarantine_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gristmill.core.step import LocalStep


def with_fields(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """The schema with these fields, in the places of those that have their names."""
    for field in fields:
        index = schema.get_field_index(field.name)
        schema = schema.append(field) if index < 0 else schema.set(index, field)
    return schema


def put_columns(
    step: LocalStep, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]
) -> tuple[pa.RecordBatch, list[QuarantinedRecord]]:
    """The batch with these columns in the step's schema, and the records whose JSON could not take them.

    A JSON record that already says the same keeps its bytes, and so does a chat that is kept as it is.
    """
    schema = step.output_schema(batch.schema)
    values = {name: columns[name] if name in columns else batch.column(name) for name in schema.names}
    bad: list[QuarantinedRecord] = []
    if RECORD in schema.names and not has_text_beside(schema):
        records, bad, kept = _update_records(batch, schema, columns)
        values[RECORD] = pa.array(records, schema.field(RECORD).type)
        if bad:
            rows = pa.array(kept, pa.int64())
            values = {name: array if name == RECORD else array.take(rows) for name, array in values.items()}
    return pa.RecordBatch.from_arrays(list(values.values()), schema=schema), bad


def _update_records(
    batch: pa.RecordBatch, schema: pa.Schema, columns: Mapping[str, pa.Array]
) -> tuple[list[bytes], list[QuarantinedRecord], list[int]]:
    paths = {name: path_in_record(schema.field(name)) for name in columns}
    new = {name: values.to_pylist() for name, values in columns.items()}
    old: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in new if name in batch.schema.names}
    records, bad, kept = [], [], []
    for row, line in enumerate(batch.column(RECORD).to_pylist()):
        changes = [
            (paths[name], values[row])
            for name, values in new.items()
            if name not in old or old[name][row] != values[row]
        ]
        try:
            records.append(with_values(line, changes) if changes else line)
            kept.append(row)
        except ValueError as error:  # also what msgspec raises: a part that the reader had no need to look at
            bad.append(quarantine_row(batch, row, "invalid_json", str(error)))
    return records, bad, kept
