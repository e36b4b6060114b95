"""New values for columns of a batch, also in the JSON records that it carries."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import RECORD, TEXT_TYPE, QuarantinedRecord
from gristmill.steps.records.columns import has_text_beside, path_in_record
from gristmill.steps.records.json_records import with_values
from gristmill.steps.records.record_functions import quarantine_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from gristmill.core.step import LocalStep


def with_fields(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema with these fields; a field replaces one of the same name in its place."""
    for field in fields:
        index = schema.get_field_index(field.name)
        schema = schema.append(field) if index < 0 else schema.set(index, field)
    return schema


def put_columns(
    step: LocalStep,
    batch: pa.RecordBatch,
    columns: Mapping[str, pa.Array],
    is_changed: NDArray[np.bool_] | None = None,
) -> tuple[pa.RecordBatch, list[QuarantinedRecord]]:
    """Return the batch with these columns in the step's schema, and the records whose JSON could not be changed.

    A JSON record that has the same values already keeps its bytes, and so does a chat that is kept as it is. With
    `is_changed` the rows that have other values are known, and the batch's own columns are not compared.
    """
    schema = step.output_schema(batch.schema)
    values = {name: columns[name] if name in columns else batch.column(name) for name in schema.names}
    quarantined: list[QuarantinedRecord] = []
    if RECORD in schema.names and not has_text_beside(schema):
        records, quarantined, rows = _update_records(batch, schema, columns, is_changed)
        values[RECORD] = pa.array(records, schema.field(RECORD).type)
        if quarantined:
            indices = pa.array(rows, pa.int64())
            values = {name: array if name == RECORD else array.take(indices) for name, array in values.items()}
    return pa.RecordBatch.from_arrays(list(values.values()), schema=schema), quarantined


def _update_records(
    batch: pa.RecordBatch, schema: pa.Schema, columns: Mapping[str, pa.Array], is_changed: NDArray[np.bool_] | None
) -> tuple[list[bytes], list[QuarantinedRecord], list[int]]:
    paths = {name: path_in_record(schema.field(name)) for name in columns}
    new = {name: values.to_pylist() for name, values in columns.items()}
    changed = {
        name: _find_changed(batch.column(name), values) if is_changed is None else is_changed.tolist()
        for name, values in columns.items()
        if name in batch.schema.names
    }
    records, quarantined, rows = [], [], []
    for row, line in enumerate(_view_records(batch.column(RECORD))):
        changes = [
            (paths[name], values[row]) for name, values in new.items() if name not in changed or changed[name][row]
        ]
        try:
            records.append(with_values(line, changes) if changes else bytes(line))
            rows.append(row)
        except ValueError as error:  # msgspec's errors too: in a part of the record that the reader did not parse
            quarantined.append(quarantine_row(batch, row, "invalid_json", str(error)))
    return records, quarantined, rows


def _view_records(records: pa.LargeBinaryArray) -> Iterator[memoryview]:
    """Yield each record without copying it: a new line is made of it, or it is copied into one."""
    if not len(records):
        return
    _, offsets, data = records.buffers()
    ends = np.frombuffer(offsets, np.int64)[records.offset : records.offset + len(records) + 1].tolist()
    content = memoryview(data if data is not None else b"")
    for start, end in pairwise(ends):
        yield content[start:end]


def _find_changed(old: pa.Array, new: pa.Array) -> list[bool]:
    """For each row whether its value is another one."""
    if old.type == new.type == TEXT_TYPE and not (old.null_count or new.null_count):
        changed: list[bool] = pc.not_equal(old, new).to_pylist()  # no Python string for each page
        return changed
    return [before != after for before, after in zip(old.to_pylist(), new.to_pylist(), strict=True)]
