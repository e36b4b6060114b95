"""`select`: keep only some columns. They are written, not the record as it was read.

`rename`: rename columns, and the keys of JSON records.

`text`: the step that makes the text of several fields, where the key `text` of a source is a template.

`columns`: the step that gives all sources the columns of one table. The plan inserts it where it is needed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.json_values import (
    JSON_TYPE,
    NAN_AS_NULL,
    count_not_finite,
    is_json,
    to_json_text,
    to_json_values,
    with_names,
)
from gristmill.core.records import (
    ORIGIN,
    OTHER_FIELDS,
    PATH,
    RECORD,
    RECORD_TYPE,
    SPLIT,
    TEXT,
    TEXT_TYPE,
    QuarantinedRecord,
    StepResult,
)
from gristmill.core.step import LocalStep, StepKernel, StepTraits
from gristmill.readers.read import parse_text_template
from gristmill.shards.record_columns import RecordColumns, is_decodable
from gristmill.steps.column_names import list_value_columns, path_in_record, require_column
from gristmill.steps.edit_columns import put_columns
from gristmill.steps.record_functions import quarantine_row


class Select(LocalStep, tag="select", frozen=True, kw_only=True):
    """Keep these columns, in this order. The text is called `text`, even if it has another name in the files.

    The output then has only these columns, not the record as it was read.

    >>> from gristmill.core.records import documents
    >>> Select(columns=["url"]).apply(documents(["hi"], url=["a.org"]), seed=0).batch.column_names
    ['origin', 'url']
    """

    traits: ClassVar[StepTraits] = StepTraits(selects_columns=True)

    columns: list[str]
    """The columns to keep."""

    def __post_init__(self) -> None:
        if not self.columns:
            raise UsageError("select needs at least one column")
        if len(set(self.columns)) < len(self.columns):
            raise UsageError(f"select names a column twice: {', '.join(self.columns)}")
        if RECORD in self.columns:
            raise UsageError('select: "record" is the whole record as it was read, not a column')

    def columns_needed(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        for column in self.columns:
            require_column(self.name, column, schema)
        reserved = [name for name in (ORIGIN, SPLIT) if name in schema.names and name not in self.columns]
        fields = [schema.field(name) for name in [*reserved, *self.columns]]
        return pa.schema(fields, schema.metadata)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return StepResult(batch.select(self.output_schema(batch.schema).names))


_RESERVED = (ORIGIN, RECORD, SPLIT)


class Rename(LocalStep, tag="rename", frozen=True, kw_only=True):
    """Rename columns, `{old: new}`. Everything else in a record stays as it is, byte for byte.

    >>> from gristmill.core.records import documents
    >>> Rename(columns={"url": "link"}).apply(documents(["hi"], url=["a.org"]), seed=0).batch.column_names
    ['origin', 'text', 'link']
    """

    columns: dict[str, str]
    """Old and new names, of columns or of keys of JSON records."""

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


class ComposeText(LocalStep, tag="text", frozen=True, kw_only=True):
    r"""Make the text of records from fields. The plan inserts it where the key `text` of a source is a template.

    A record without one of the fields is quarantined.

    >>> from gristmill.core.records import documents, texts
    >>> texts(ComposeText(template="{url}: {text}").apply(documents(["hi"], url=["a.org"]), seed=0).batch)
    ['a.org: hi']
    """

    template: str

    @property
    def traits(self) -> StepTraits:  # type: ignore[override]  # a template may add to the text that a record has
        return StepTraits(makes_text=TEXT not in self.columns_needed(), is_added_by_plan=True)

    def columns_needed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, name in parse_text_template(self.template) if name))

    def columns_added(self) -> tuple[str, ...]:
        return (TEXT,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        for name in self.columns_needed():
            require_column("text", name, schema)
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_large_binary(kind) or is_json(schema.field(name)):
                raise UsageError(f"text: {name} is {kind}, not text", help="name fields of text or numbers")
        return schema if TEXT in schema.names else schema.insert(1, pa.field(TEXT, TEXT_TYPE))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        quarantined = []
        for name in self.columns_needed():
            is_null = batch.column(name).is_null()
            rows = np.flatnonzero(is_null.to_numpy(zero_copy_only=False)).tolist()
            quarantined += [quarantine_row(batch, row, "missing_text", f"no value in {name!r}") for row in rows]
            batch = batch.filter(pc.invert(is_null)) if rows else batch
        parts: list[pa.Array | pa.Scalar] = []
        for literal, name in parse_text_template(self.template):
            parts.append(pa.scalar(literal, TEXT_TYPE))
            if name:
                parts.append(batch.column(name).cast(TEXT_TYPE))
        text = pc.binary_join_element_wise(*parts, pa.scalar("", TEXT_TYPE))
        batch, refused = put_columns(self, batch, {TEXT: text})
        return StepResult(batch, quarantined=[*quarantined, *refused])


class UniteColumns(LocalStep, tag="columns", frozen=True, kw_only=True):
    """Give records the columns of `schema`: missing columns are null, others are widened or become JSON text.

    If records are JSON (column `record`) and the schema has no such column, its columns are made from them. The
    counters are `other_fields`, the records with a value that fits no column, and `nan_as_null`, the numbers that JSON
    does not have.
    """

    preserves_text: ClassVar[bool] = True
    traits: ClassVar[StepTraits] = StepTraits(is_added_by_plan=True)
    not_fingerprinted: ClassVar[tuple[str, ...]] = ("serialized",)

    serialized: bytes
    """The schema, serialized by Arrow."""
    described: tuple[str, ...]
    """The schema in words: part of every fingerprint."""
    opens_record: bool = True
    """Whether columns are made from JSON records; else the records are only left out."""
    drops: tuple[str, ...] = ()
    """Columns that are left out first: they are next to the record, not in it."""
    ignores: tuple[str, ...] = ()
    """Keys of JSON records that do not become columns."""
    writes_json: bool = False
    """Whether the result is written as JSON."""

    @classmethod
    def to(cls, schema: pa.Schema, **options: Any) -> UniteColumns:
        """Make the step that gives records this schema."""
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
        """Apply the step once, for tests and trials. A run calls `load` once a worker."""
        return self.load().apply(batch, seed)


class _UniteColumnsKernel(StepKernel):
    """The step with its decoder, which is made when the first batch shows which columns exist already."""

    def __init__(self, step: UniteColumns) -> None:
        self._step = step
        self._planned = step.schema
        self._decoder: RecordColumns | None = None

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        counters: Counter[str] = Counter()
        planned = self._planned
        batch = batch.drop_columns([name for name in self._step.drops if name in batch.schema.names])
        columns = {field.name: _Column(field, array) for field, array in zip(batch.schema, batch.columns, strict=True)}
        if RECORD in columns and RECORD not in planned.names:
            records = columns.pop(RECORD).values
            if self._step.opens_record:
                columns |= self._decode_records(records, columns, counters)
        if RECORD in planned.names and RECORD not in columns:
            columns[RECORD] = _Column(planned.field(RECORD), _encode_records(batch, counters))
        arrays = [_build_array(field, columns.get(field.name), batch.num_rows, counters) for field in planned]
        united = pa.RecordBatch.from_arrays(arrays, schema=planned)
        if self._step.writes_json:
            counters[NAN_AS_NULL] += sum(
                count_not_finite(united.column(field.name)) for field in list_value_columns(planned)
            )
        return StepResult(united, counters={name: count for name, count in counters.items() if count})

    def _decode_records(
        self, records: pa.Array, known_columns: dict[str, _Column], counters: Counter[str]
    ) -> dict[str, _Column]:
        """Decode the planned columns that are only in the JSON records."""
        missing = [field for field in self._planned if field.name not in (*known_columns, ORIGIN, SPLIT, OTHER_FIELDS)]
        fields = [field for field in missing if is_decodable(field.type)]
        if self._decoder is None:
            types = {field.name: JSON_TYPE if is_json(field) else field.type for field in fields}
            own = [column.field for name, column in known_columns.items() if name not in (ORIGIN, SPLIT)]
            keys = [path[0] for path in map(path_in_record, own) if len(path) == 1]
            self._decoder = RecordColumns(types, [*keys, *self._step.ignores])
        arrays = self._decoder.decode(records.to_pylist())
        columns = {field.name: _Column(field, arrays[field.name]) for field in fields}
        other = arrays[OTHER_FIELDS]
        if OTHER_FIELDS in self._planned.names:
            counters[OTHER_FIELDS] += len(other) - other.null_count
            columns[OTHER_FIELDS] = _Column(self._planned.field(OTHER_FIELDS), other)
        elif other.null_count < len(other):
            shown = other.drop_null()[0].as_py()
            raise ValueError(f"a record holds {shown:.200}, which the plan has no column for")
        return columns


class _Column(msgspec.Struct, frozen=True):
    """A column with its field, whose metadata says whether it is JSON."""

    field: Any
    values: Any


_TRAIN = "train"
"""The split of records of a source without splits."""


def _build_array(field: pa.Field, column: _Column | None, count: int, counters: Counter[str]) -> pa.Array:
    if column is None:
        return pa.repeat(pa.scalar(_TRAIN, field.type), count) if field.name == SPLIT else pa.nulls(count, field.type)
    values: pa.Array = column.values
    if is_json(field) and not is_json(column.field):
        counters[NAN_AS_NULL] += count_not_finite(values)
        return to_json_text(to_json_values(values))
    return values if values.type.equals(field.type) else values.cast(field.type)


def _encode_records(batch: pa.RecordBatch, counters: Counter[str]) -> pa.Array:
    """Encode the rows of a batch as JSON records."""
    fields = list_value_columns(batch.schema)
    counters[NAN_AS_NULL] += sum(count_not_finite(batch.column(field.name)) for field in fields)
    columns = [to_json_values(batch.column(field.name), holds_json=is_json(field)) for field in fields]
    names = [field.name for field in fields]
    rows = zip(*columns, strict=True) if names else ([] for _ in range(batch.num_rows))
    return pa.array([msgspec.json.encode(dict(zip(names, row, strict=True))) for row in rows], RECORD_TYPE)
