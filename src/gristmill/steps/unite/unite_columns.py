"""`columns`: the step that gives all sources the columns of one table. The plan puts it in where it is needed."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from gristmill.core.json_text import (
    JSON_TYPE,
    NAN_AS_NULL,
    count_not_finite,
    is_json,
    to_json_text,
    to_json_values,
)
from gristmill.core.records import ORIGIN, OTHER_FIELDS, RECORD, RECORD_TYPE, SPLIT, StepResult
from gristmill.core.step import LocalStep
from gristmill.shards.record_columns import RecordColumns, is_decodable
from gristmill.steps.records.columns import path_in_record, value_columns


class UniteColumns(LocalStep, tag="columns", frozen=True, kw_only=True):
    """Give records the columns of `schema`: those that they lack are null, others are widened or become JSON text.

    Where records are JSON (column `record`) and the schema has none, its columns are made of them. `measures` counts
    `other_fields`, the records with a value that fits no column, and `nan_as_null`, the numbers that JSON has not.
    """

    preserves_text: ClassVar[bool] = True
    is_added_by_plan: ClassVar[bool] = True
    not_fingerprinted: ClassVar[tuple[str, ...]] = ("serialized",)

    serialized: bytes
    """The schema, as Arrow has it in a file."""
    described: tuple[str, ...]
    """The schema in words: part of every fingerprint."""
    opens_record: bool = True
    """Columns are made of JSON records; else these are only left out."""
    drops: tuple[str, ...] = ()
    """Columns that are left out first: they stand beside the record."""
    ignores: tuple[str, ...] = ()
    """Keys of JSON records that become no columns."""
    writes_json: bool = False
    """What comes out is written as JSON."""

    @classmethod
    def to(cls, schema: pa.Schema, **options: Any) -> UniteColumns:
        """The step that makes this schema."""
        described = tuple(f"{field.name} {'json' if is_json(field) else field.type}" for field in schema)
        return cls(serialized=schema.serialize().to_pybytes(), described=described, **options)

    @property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.serialized))

    def output_schema(self, schema: pa.Schema) -> pa.Schema:  # noqa: ARG002
        return self.schema

    def columns_added(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    def load(self) -> _UniteColumnsKernel:
        return _UniteColumnsKernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        """For a try: a run calls `load` once a worker."""
        return self.load().apply(batch, seed)


class _UniteColumnsKernel:
    """The step with its decoder, which is made when the first batch shows what columns there are already."""

    def __init__(self, step: UniteColumns) -> None:
        self._step = step
        self._planned = step.schema
        self._decoder: RecordColumns | None = None

    def begin_task(self) -> None:
        """Nothing is kept from record to record."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        measures: Counter[str] = Counter()
        planned = self._planned
        batch = batch.drop_columns([name for name in self._step.drops if name in batch.schema.names])
        found = {field.name: _Column(field, column) for field, column in zip(batch.schema, batch.columns, strict=True)}
        if RECORD in found and RECORD not in planned.names:
            records = found.pop(RECORD).values
            if self._step.opens_record:
                found |= self._record_columns(records, found, measures)
        if RECORD in planned.names and RECORD not in found:
            found[RECORD] = _Column(planned.field(RECORD), _encode_records(batch, measures))
        arrays = [_build_array(field, found.get(field.name), batch.num_rows, measures) for field in planned]
        united = pa.RecordBatch.from_arrays(arrays, schema=planned)
        if self._step.writes_json:
            measures[NAN_AS_NULL] += sum(
                count_not_finite(united.column(field.name)) for field in value_columns(planned)
            )
        return StepResult(united, counters={name: count for name, count in measures.items() if count})

    def _record_columns(
        self, records: pa.Array, found: dict[str, _Column], measures: Counter[str]
    ) -> dict[str, _Column]:
        """The columns that are in the JSON records alone."""
        missing = [field for field in self._planned if field.name not in (*found, ORIGIN, SPLIT, OTHER_FIELDS)]
        fields = [field for field in missing if is_decodable(field.type)]
        if self._decoder is None:
            types = {field.name: JSON_TYPE if is_json(field) else field.type for field in fields}
            paths = [path_in_record(column.field) for name, column in found.items() if name not in (ORIGIN, SPLIT)]
            known = [path[0] for path in paths if len(path) == 1]
            self._decoder = RecordColumns(types, [*known, *self._step.ignores])
        arrays = self._decoder.decode(records.to_pylist())
        columns = {field.name: _Column(field, arrays[field.name]) for field in fields}
        other = arrays[OTHER_FIELDS]
        if OTHER_FIELDS in self._planned.names:
            measures[OTHER_FIELDS] += len(other) - other.null_count
            columns[OTHER_FIELDS] = _Column(self._planned.field(OTHER_FIELDS), other)
        elif other.null_count < len(other):
            shown = other.drop_null()[0].as_py()
            raise ValueError(f"a record holds {shown:.200}, which the plan has no column for")
        return columns


class _Column(msgspec.Struct, frozen=True):
    field: Any
    values: Any


_TRAIN = "train"
"""A source without splits is for training."""


def _build_array(field: pa.Field, found: _Column | None, count: int, measures: Counter[str]) -> pa.Array:
    if found is None:
        return pa.repeat(pa.scalar(_TRAIN, field.type), count) if field.name == SPLIT else pa.nulls(count, field.type)
    values: pa.Array = found.values
    if is_json(field) and not is_json(found.field):
        measures[NAN_AS_NULL] += count_not_finite(values)
        return to_json_text(to_json_values(values))
    return values if values.type.equals(field.type) else values.cast(field.type)


def _encode_records(batch: pa.RecordBatch, measures: Counter[str]) -> pa.Array:
    """The rows of a batch as JSON records."""
    fields = value_columns(batch.schema)
    measures[NAN_AS_NULL] += sum(count_not_finite(batch.column(field.name)) for field in fields)
    columns = [to_json_values(batch.column(field.name), holds_json=is_json(field)) for field in fields]
    names = [field.name for field in fields]
    rows = zip(*columns, strict=True) if names else ([] for _ in range(batch.num_rows))
    return pa.array([msgspec.json.encode(dict(zip(names, row, strict=True))) for row in rows], RECORD_TYPE)
