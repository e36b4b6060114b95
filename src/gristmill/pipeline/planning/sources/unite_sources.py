"""How the sources of a recipe that writes documents become one table: where, and with which columns.

Sources are united where a step joins their records (`mix`), else at the end. JSON records stay as they are until then.
A column that a source lacks is null there; where the types of two sources disagree, the column is JSON text. A source
whose records do not have the columns of the table yet gets a `UniteColumns` step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.json_text import JSON_TYPE, has_floats, is_json, make_field, reason_for_json
from gristmill.core.media import MEMBER, find_member
from gristmill.core.records import ORIGIN, OTHER_FIELDS, RECORD, RECORD_TYPE, SPLIT, TEXT
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.steps.records.columns import has_text_beside, list_value_columns
from gristmill.steps.records.source_column import SOURCE
from gristmill.steps.unite.field_types import REST, FieldType, unite_types, without_nulls
from gristmill.steps.unite.unite_columns import UniteColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.step import Step
    from gristmill.steps.write import Write


@dataclass(frozen=True, slots=True)
class SourceBranch:
    """One source on its way through the steps, up to where it is united with the others."""

    name: str
    schema: pa.Schema
    """The columns that are read."""
    steps: tuple[Step, ...]
    num_own_steps: int
    """How many of the steps are for this source alone; the others are common."""
    text: str
    """The field of the files that holds the text; empty where there is none."""
    record_types: dict[str, FieldType] = field(default_factory=dict)
    """The types of the keys of JSON records, from a sample."""
    has_all_keys: bool = False
    """Whether the sample holds all records, so that no other key can follow."""
    has_named_columns: bool = False
    """Whether the recipe names the columns; then other fields of the records are ignored."""

    def find_schema_before(self, index: int) -> pa.Schema:
        """Find the columns of the records before the step at an index."""
        schema = self.schema
        for step in self.steps[:index]:
            if isinstance(step, (LocalStep, GlobalStep)):
                schema = step.output_schema(schema)
        return schema

    def with_step(self, index: int, step: Step) -> SourceBranch:
        """Return the branch with one more step at an index."""
        return replace(self, steps=(*self.steps[:index], step, *self.steps[index:]))


def unite_sources(branches: Sequence[SourceBranch], write: Write) -> list[SourceBranch]:
    """Add the steps that make one table of the sources, where they are needed."""
    branches = [_open_consumed_records(branch) for branch in branches]
    if all(branch.has_named_columns for branch in branches) and not write.keeps_record:
        return branches
    common = branches[0].steps[branches[0].num_own_steps :]
    joins = (isinstance(step, GlobalStep) and step.joins_sources for step in common)
    join_index = next((index for index, is_join in enumerate(joins) if is_join), None)
    if join_index is not None and len(branches) > 1:
        indexes = [branch.num_own_steps + join_index for branch in branches]
        branches = _unite_at(indexes, branches, write, is_last=False)
    return _unite_at([len(branch.steps) for branch in branches], branches, write, is_last=True)


def _unite_at(
    indexes: Sequence[int], branches: Sequence[SourceBranch], write: Write, *, is_last: bool
) -> list[SourceBranch]:
    """Unite the branches, each before the step at its index; `is_last`: at the end, where the table is written."""
    schemas = [branch.find_schema_before(index) for branch, index in zip(branches, indexes, strict=True)]
    # Columns beside a record are for the steps; the record is written as it was read, without them.
    beside = [_find_columns_beside(branch) if is_last else () for branch in branches]
    schemas = [_remove_fields(schema, names) for schema, names in zip(schemas, beside, strict=True)]
    num_json = sum(RECORD in schema.names for schema in schemas)
    if num_json and (write.keeps_record or (num_json == len(schemas) and not is_last)):
        target = (
            _find_shared_fields(schemas) if write.keeps_record else _unite_fields(branches, schemas, opens_record=False)
        )
        target.append(pa.field(RECORD, RECORD_TYPE))
    else:
        target = _unite_fields(branches, schemas)
    writes_json = is_last and write.keeps_record
    # JSON has no NaN. Where columns may hold some, the step counts what becomes null, though it changes no column.
    may_hold_nan = writes_json and any(has_floats(column.type) for column in target)
    may_hold_nan = may_hold_nan and (not num_json or any(map(_declares_columns, branches)))
    has_splits = any(SPLIT in schema.names for schema in schemas)
    united = []
    for branch, index, schema, dropped_columns in zip(branches, indexes, schemas, beside, strict=True):
        first = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
        if has_splits and not is_last and SPLIT not in schema.names:
            first.append(pa.field(SPLIT, pa.string()))
        planned = pa.schema([*first, *target])
        if may_hold_nan or dropped_columns or not _has_same_columns(planned, schema, in_order=len(branches) > 1):
            step = UniteColumns.to(
                planned, opens_record=not branch.has_named_columns, drops=dropped_columns, writes_json=writes_json
            )
            united.append(branch.with_step(index, step))
        else:
            united.append(branch)
    return united


def _open_consumed_records(branch: SourceBranch) -> SourceBranch:
    """Keep what a step leaves of JSON records as columns.

    `render` makes a text of the chat in a record; the record's other keys become columns behind it.
    """
    consuming = (index for index, step in enumerate(branch.steps) if step.keys_consumed())
    index = next(consuming, None)
    if index is None:
        return branch
    schema = branch.find_schema_before(index + 1)
    if RECORD not in schema.names:
        return branch
    consumed = branch.steps[index].keys_consumed()
    other_types = {name: kind for name, kind in branch.record_types.items() if name not in consumed}
    fields = _unite_fields([replace(branch, record_types=other_types)], [schema])
    first = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
    step = UniteColumns.to(pa.schema([*first, *fields]), opens_record=not branch.has_named_columns, ignores=consumed)
    return branch.with_step(index + 1, step)


def _find_columns_beside(branch: SourceBranch) -> tuple[str, ...]:
    """Find the columns that stand beside records: those that a step with `keeps_record_beside` and later steps add."""
    adding = (index for index, step in enumerate(branch.steps) if step.keeps_record_beside)
    index = next(adding, None)
    if index is None:
        return ()
    before = branch.find_schema_before(index).names
    after = branch.find_schema_before(len(branch.steps)).names
    return tuple(name for name in after if name not in (*before, SPLIT, SOURCE))


def _remove_fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([column for column in schema if column.name not in names], schema.metadata)


def _has_same_columns(planned: pa.Schema, actual: pa.Schema, *, in_order: bool) -> bool:
    schemas = (planned, actual)
    columns = [[(each.name, each.type, is_json(each)) for each in list_value_columns(schema)] for schema in schemas]
    reserved = [{*schema.names} & {SPLIT, RECORD} for schema in schemas]
    if not in_order:
        columns = [sorted(each, key=lambda column: column[0]) for each in columns]
    return columns[0] == columns[1] and reserved[0] == reserved[1]


def _find_shared_fields(schemas: Sequence[pa.Schema]) -> list[pa.Field]:
    """Find the columns that all sources have. Where JSON records are written, only steps need columns."""
    first, *others = schemas
    fields = []
    for column in list_value_columns(first):
        types = [schema.field(column.name).type for schema in others if column.name in schema.names]
        if len(types) == len(others):
            united = column.type
            for other in types:
                united = unite_types(united, other) or JSON_TYPE
            fields.append(column if united == column.type else make_field(column.name, united))
    return fields


def _unite_fields(
    branches: Sequence[SourceBranch], schemas: Sequence[pa.Schema], *, opens_record: bool = True
) -> list[pa.Field]:
    """Unite the columns of all sources, with the keys of JSON records; the column for other fields comes last."""
    united: dict[str, tuple[FieldType, bool, str]] = {}
    needs_rest = False
    for branch, schema in zip(branches, schemas, strict=True):
        columns = {column.name: (_find_field_type(column), False) for column in list_value_columns(schema)}
        if RECORD in schema.names and opens_record and not branch.has_named_columns:
            named_columns = {*columns, branch.text, *_list_removed_columns(branch)}
            columns |= {name: (kind, True) for name, kind in branch.record_types.items() if name not in named_columns}
            # A key that the sample has not shown needs a place to go.
            needs_rest = needs_rest or not branch.has_all_keys or _may_add_keys(branch)
        needs_rest = needs_rest or OTHER_FIELDS in columns
        for name, (kind, is_sampled) in columns.items():
            if name not in united:
                united[name] = kind, is_sampled, branch.name
            elif name != OTHER_FIELDS:
                united[name] = _unite_types(united[name], kind, branch.name, is_sampled=is_sampled)
    united.pop(OTHER_FIELDS, None)
    fields = [
        make_field(name, without_nulls(kind) if is_sampled else kind, why)
        for name, ((kind, why), is_sampled, _) in united.items()
    ]
    if len(branches) > 1:
        fields.sort(key=lambda column: column.name != TEXT)  # the text first, whatever source has it
    fields = _keep_members(fields, schemas)
    if all(map(has_text_beside, schemas)):
        fields = [schemas[0].field(TEXT) if column.name == TEXT else column for column in fields]
    return [*fields, *([make_field(OTHER_FIELDS, *REST)] if needs_rest else [])]


def _keep_members(fields: list[pa.Field], schemas: Sequence[pa.Schema]) -> list[pa.Field]:
    """Keep the extensions of members where all sources are samples, and those that have a column agree on its own."""
    members = [{column.name: find_member(column) for column in schema} for schema in schemas]
    if not all(any(each.values()) for each in members):
        return fields
    united = []
    for column in fields:
        extensions = {each[column.name] for each in members if column.name in each}
        member = extensions.pop() if len(extensions) == 1 else None
        has_member = {**(column.metadata or {}), MEMBER: member.encode()} if member is not None else column.metadata
        united.append(column.with_metadata(has_member))
    return united


def _unite_types(
    earlier: tuple[FieldType, bool, str], kind: FieldType, source: str, *, is_sampled: bool
) -> tuple[FieldType, bool, str]:
    """Unite the type of a column in one more source with that in the sources before it.

    `earlier` holds the type, whether it is only known from a sample of JSON records, and the first source that has it.
    """
    (first, why), was_sampled, first_source = earlier
    if first.equals(JSON_TYPE) and why:
        return earlier
    both = unite_types(first, kind.type)
    if both is None and _is_json_number(first, kind.type, was_sampled, is_sampled):
        both = pa.float64()
    if both is None or both.equals(JSON_TYPE):
        reason = kind.why or f"{_describe_type(first)} in {first_source}, {_describe_type(kind.type)} in {source}"
        return FieldType(JSON_TYPE, reason), False, first_source
    return FieldType(both), was_sampled or is_sampled, first_source


def _is_json_number(first: pa.DataType, second: pa.DataType, *sampled: bool) -> bool:
    """Tell whether one type is of floats, and the other of whole numbers in JSON, where 1 and 1.0 are one type."""
    whole = [is_sampled for kind, is_sampled in zip((first, second), sampled, strict=True) if kind == pa.int64()]
    return {first, second} == {pa.int64(), pa.float64()} and all(whole)


def _describe_type(kind: pa.DataType) -> str:
    return "JSON" if kind.equals(JSON_TYPE) else str(kind)


def _find_field_type(column: pa.Field) -> FieldType:
    return FieldType(JSON_TYPE, reason_for_json(column)) if is_json(column) else FieldType(column.type)


def _list_removed_columns(branch: SourceBranch) -> set[str]:
    return {name for step in branch.steps for name in step.columns_removed()}


def _declares_columns(branch: SourceBranch) -> bool:
    """Tell whether functions make columns, which can hold numbers that JSON records cannot."""
    return any(step.may_add_keys and step.columns_added() for step in branch.steps)


def _may_add_keys(branch: SourceBranch) -> bool:
    return any(step.may_add_keys for step in branch.steps)
