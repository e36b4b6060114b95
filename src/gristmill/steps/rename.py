"""`rename`: rename columns, and the keys of JSON records."""

from __future__ import annotations

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, PATH, RECORD, SPLIT, QuarantinedRecord, StepResult
from gristmill.core.step import LocalStep
from gristmill.steps.records.columns import path_in_record, require_column
from gristmill.steps.records.json_records import with_names
from gristmill.steps.records.record_functions import quarantine_row

_RESERVED = (ORIGIN, RECORD, SPLIT)


class Rename(LocalStep, tag="rename", frozen=True, kw_only=True):
    """Rename columns, `{old: new}`. Everything else in a record stays as it is, byte for byte.

    >>> from gristmill.core.sample_batches import documents
    >>> Rename(columns={"url": "link"}).apply(documents(["hi"], url=["a.org"]), seed=0).batch.column_names
    ['origin', 'text', 'link']
    """

    columns: dict[str, str]

    def __post_init__(self) -> None:
        if not self.columns:
            raise UsageError("rename needs at least one column", help="write rename: {columns: {old: new}}")
        for name in (*self.columns, *self.columns.values()):
            if name in _RESERVED or not name:
                raise UsageError(f'rename: "{name}" is reserved', help="choose another name")
        if len(set(self.columns.values())) < len(self.columns):
            raise UsageError(f"rename gives two columns one name: {self.columns}")

    def columns_needed(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def columns_added(self) -> tuple[str, ...]:
        return tuple(self.columns.values())

    def columns_removed(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        for old, new in self.columns.items():
            require_column(self.name, old, schema)
            if new in schema.names and new not in self.columns:
                raise UsageError(f'rename: there is already a column "{new}"', help="rename or remove that one first")
        return pa.schema([self._rename_field(field, schema) for field in schema], schema.metadata)

    def _rename_field(self, field: pa.Field, schema: pa.Schema) -> pa.Field:
        new = self.columns.get(field.name)
        if new is None:
            return field
        if RECORD in schema.names and len(path_in_record(field)) > 1:
            path = ".".join(path_in_record(field))
            raise UsageError(f"rename: {field.name} is inside another value, at {path}", help="use map for that")
        metadata = {key: value for key, value in (field.metadata or {}).items() if key != PATH}
        return field.with_name(new).with_metadata(metadata or None)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        schema = self.output_schema(batch.schema)
        columns = dict(zip(schema.names, batch.columns, strict=True))
        if RECORD not in columns:
            return StepResult(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
        names = {path_in_record(batch.schema.field(old))[0]: new for old, new in self.columns.items()}
        records: list[bytes] = []
        rows: list[int] = []
        quarantined: list[QuarantinedRecord] = []
        for row, line in enumerate(batch.column(RECORD).to_pylist()):
            try:
                records.append(with_names(line, names))
                rows.append(row)
            except ValueError as error:  # msgspec's errors are ValueErrors too
                quarantined.append(quarantine_row(batch, row, "name_taken", str(error)))
        if quarantined:
            columns = {name: column.take(pa.array(rows, pa.int64())) for name, column in columns.items()}
        columns[RECORD] = pa.array(records, schema.field(RECORD).type)
        return StepResult(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema), quarantined=quarantined)
