"""New values for columns of a batch, also in the JSON records that it carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import RECORD, TEXT_TYPE, QuarantinedRecord
from gristmill.steps.records.columns import has_text_beside, path_in_record
from gristmill.steps.records.json_records import with_values
from gristmill.steps.records.record_functions import quarantine_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gristmill.core.step import LocalStep


def with_fields(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema with these fields; a field replaces one of the same name in its place."""
    for field in fields:
        index = schema.get_field_index(field.name)
        schema = schema.append(field) if index < 0 else schema.set(index, field)
    return schema


def put_columns(
    step: LocalStep, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]
) -> tuple[pa.RecordBatch, list[QuarantinedRecord]]:
    """Return the batch with these columns in the step's schema, and the records whose JSON could not be changed.

    A JSON record that has the same values already keeps its bytes, and so does a chat that is kept as it is.
    """
    schema = step.output_schema(batch.schema)
    values = {name: columns[name] if name in columns else batch.column(name) for name in schema.names}
    quarantined: list[QuarantinedRecord] = []
    if RECORD in schema.names and not has_text_beside(schema):
        records, quarantined, rows = _update_records(batch, schema, columns)
        values[RECORD] = pa.array(records, schema.field(RECORD).type)
        if quarantined:
            indices = pa.array(rows, pa.int64())
            values = {name: array if name == RECORD else array.take(indices) for name, array in values.items()}
    return pa.RecordBatch.from_arrays(list(values.values()), schema=schema), quarantined


def _update_records(
    batch: pa.RecordBatch, schema: pa.Schema, columns: Mapping[str, pa.Array]
) -> tuple[list[bytes], list[QuarantinedRecord], list[int]]:
    paths = {name: path_in_record(schema.field(name)) for name in columns}
    new = {name: values.to_pylist() for name, values in columns.items()}
    is_changed = {
        name: _find_changed(batch.column(name), values)
        for name, values in columns.items()
        if name in batch.schema.names
    }
    records, quarantined, rows = [], [], []
    for row, line in enumerate(batch.column(RECORD).to_pylist()):
        changes = [
            (paths[name], values[row])
            for name, values in new.items()
            if name not in is_changed or is_changed[name][row]
        ]
        try:
            records.append(with_values(line, changes) if changes else line)
            rows.append(row)
        except ValueError as error:  # msgspec's errors too: in a part of the record that the reader did not parse
            quarantined.append(quarantine_row(batch, row, "invalid_json", str(error)))
    return records, quarantined, rows


def _find_changed(old: pa.Array, new: pa.Array) -> list[bool]:
    """For each row whether its value is another one."""
    if old.type == new.type == TEXT_TYPE and not (old.null_count or new.null_count):
        changed: list[bool] = pc.not_equal(old, new).to_pylist()  # no Python string for each page
        return changed
    return [before != after for before, after in zip(old.to_pylist(), new.to_pylist(), strict=True)]
