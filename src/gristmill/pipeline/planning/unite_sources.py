"""How the sources of a recipe that writes documents become one table: where, and with which columns.

Sources are united where a step puts their records together (`mix`), else at the end. JSON records stay as they are
until then. A column that a source lacks is null there; where the types of two sources disagree it is JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.json_text import JSON_TYPE, has_floats, is_json, make_field, reason_for_json
from gristmill.core.records import ORIGIN, OTHER_FIELDS, RECORD, RECORD_TYPE, SPLIT, TEXT
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.steps.map import Map
from gristmill.steps.map_batches import MapBatches
from gristmill.steps.read.schema import REST
from gristmill.steps.records.columns import has_text_beside, value_columns
from gristmill.steps.records.function_step import FunctionStep
from gristmill.steps.records.source_column import SOURCE
from gristmill.steps.rename import Rename
from gristmill.steps.render.resolved_render import CHAT_FIELDS, ResolvedRender
from gristmill.steps.unite.field_types import FieldType, unite_types, without_nulls
from gristmill.steps.unite.unite_columns import UniteColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.step import Step
    from gristmill.steps.write import Write


@dataclass(frozen=True, slots=True)
class SourceBranch:
    """One source on its way through the steps."""

    name: str
    schema: pa.Schema
    """Of what is read."""
    steps: tuple[Step, ...]
    num_own_steps: int
    """How many of the steps are for this source alone; the others are common."""
    text: str
    """The field of the files that holds the text; empty where there is none."""
    record_types: dict[str, FieldType] = field(default_factory=dict)
    """Of JSON records: the types of their keys."""
    has_all_keys: bool = False
    """They are of all records, so that no other key will come."""
    has_named_columns: bool = False
    """The recipe says which columns it has, and what else is in its records is not looked at."""

    def find_schema_before(self, place: int) -> pa.Schema:
        """The columns that its records have before the step at a place."""
        schema = self.schema
        for step in self.steps[:place]:
            if isinstance(step, (LocalStep, GlobalStep)):
                schema = step.output_schema(schema)
        return schema

    def with_step(self, place: int, step: Step) -> SourceBranch:
        return replace(self, steps=(*self.steps[:place], step, *self.steps[place:]))


def unite_sources(strands: Sequence[SourceBranch], write: Write) -> list[SourceBranch]:
    """The sources with the steps that make one table of them, where these are needed."""
    strands = [_open_chat_records(strand) for strand in strands]
    if all(strand.has_named_columns for strand in strands) and not write.keeps_record:
        return strands
    common = strands[0].steps[strands[0].num_own_steps :]
    joining = (isinstance(step, GlobalStep) and step.joins_sources for step in common)
    together = next((place for place, joins in enumerate(joining) if joins), None)
    if together is not None and len(strands) > 1:
        strands = _unite_at([strand.num_own_steps + together for strand in strands], strands, write, is_last=False)
    return _unite_at([len(strand.steps) for strand in strands], strands, write, is_last=True)


def _unite_at(
    places: Sequence[int], strands: Sequence[SourceBranch], write: Write, *, is_last: bool
) -> list[SourceBranch]:
    schemas = [strand.find_schema_before(place) for strand, place in zip(strands, places, strict=True)]
    beside = [_find_rendered_columns(strand) if is_last else () for strand in strands]
    schemas = [_remove_fields(schema, names) for schema, names in zip(schemas, beside, strict=True)]
    num_json = sum(RECORD in schema.names for schema in schemas)
    if num_json and (write.keeps_record or (num_json == len(schemas) and not is_last)):
        target = (
            _find_shared_fields(schemas) if write.keeps_record else _unite_fields(strands, schemas, opens_record=False)
        )
        target.append(pa.field(RECORD, RECORD_TYPE))
    else:
        target = _unite_fields(strands, schemas)
    writes_json = is_last and write.keeps_record
    may_hold_nan = writes_json and any(has_floats(each.type) for each in target)
    may_hold_nan = may_hold_nan and (not num_json or any(map(_declares_columns, strands)))
    has_splits = any(SPLIT in schema.names for schema in schemas)
    united = []
    for strand, place, schema, drops in zip(strands, places, schemas, beside, strict=True):
        first = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
        if has_splits and not is_last and SPLIT not in schema.names:
            first.append(pa.field(SPLIT, pa.string()))
        planned = pa.schema([*first, *target])
        if may_hold_nan or drops or not _has_same_columns(planned, schema, in_order=len(strands) > 1):
            opens = not strand.has_named_columns
            step = UniteColumns.to(planned, opens_record=opens, drops=drops, writes_json=writes_json)
            strand = strand.with_step(place, step)  # noqa: PLW2901
        united.append(strand)
    return united


def _open_chat_records(strand: SourceBranch) -> SourceBranch:
    """Chats that become texts: what else is in their JSON records becomes columns behind `render`."""
    place = next((place for place, step in enumerate(strand.steps) if isinstance(step, ResolvedRender)), None)
    if place is None or _find_kept_chats(strand) is not None:
        return strand
    schema = strand.find_schema_before(place + 1)
    if RECORD not in schema.names:
        return strand
    chat = tuple(sorted(CHAT_FIELDS))
    others = {name: kind for name, kind in strand.record_types.items() if name not in CHAT_FIELDS}
    fields = _unite_fields([replace(strand, record_types=others)], [schema])
    first = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
    step = UniteColumns.to(pa.schema([*first, *fields]), opens_record=not strand.has_named_columns, ignores=chat)
    return strand.with_step(place + 1, step)


def _find_kept_chats(strand: SourceBranch) -> int | None:
    """Where chats get a text beside them; None if they do not."""
    places = enumerate(strand.steps)
    return next((place for place, step in places if isinstance(step, ResolvedRender) and step.keeps_chat), None)


def _find_rendered_columns(strand: SourceBranch) -> tuple[str, ...]:
    """Of chats that are written as chats: the columns that `render` and the steps behind it have made."""
    place = _find_kept_chats(strand)
    if place is None:
        return ()
    before = strand.find_schema_before(place).names
    after = strand.find_schema_before(len(strand.steps)).names
    return tuple(name for name in after if name not in (*before, SPLIT, SOURCE))


def _remove_fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([each for each in schema if each.name not in names], schema.metadata)


def _has_same_columns(planned: pa.Schema, found: pa.Schema, *, in_order: bool) -> bool:
    columns = [[(each.name, each.type, is_json(each)) for each in value_columns(schema)] for schema in (planned, found)]
    reserved = [{*schema.names} & {SPLIT, RECORD} for schema in (planned, found)]
    if not in_order:
        columns = [sorted(each, key=lambda column: column[0]) for each in columns]
    return columns[0] == columns[1] and reserved[0] == reserved[1]


def _find_shared_fields(schemas: Sequence[pa.Schema]) -> list[pa.Field]:
    """Where JSON records are written, only steps need columns: those that all sources have."""
    first, *others = schemas
    fields = []
    for each in value_columns(first):
        kinds = [schema.field(each.name).type for schema in others if each.name in schema.names]
        if len(kinds) == len(others):
            kind = each.type
            for other in kinds:
                kind = unite_types(kind, other) or JSON_TYPE
            fields.append(each if kind == each.type else make_field(each.name, kind))
    return fields


def _unite_fields(
    strands: Sequence[SourceBranch], schemas: Sequence[pa.Schema], *, opens_record: bool = True
) -> list[pa.Field]:
    """The columns of all sources, those of JSON records included; what has no column comes last."""
    united: dict[str, tuple[FieldType, bool, str]] = {}
    needs_rest = False
    for strand, schema in zip(strands, schemas, strict=True):
        columns = {each.name: (_find_field_type(each), False) for each in value_columns(schema)}
        if RECORD in schema.names and opens_record and not strand.has_named_columns:
            gone = {*columns, strand.text, *_find_renamed_columns(strand)}
            columns |= {name: (kind, True) for name, kind in strand.record_types.items() if name not in gone}
            needs_rest = needs_rest or not strand.has_all_keys or _adds_keys(strand)
        needs_rest = needs_rest or OTHER_FIELDS in columns
        for name, (kind, is_sampled) in columns.items():
            if name not in united:
                united[name] = kind, is_sampled, strand.name
            elif name != OTHER_FIELDS:
                united[name] = _unite_types(united[name], kind, strand.name, is_sampled=is_sampled)
    united.pop(OTHER_FIELDS, None)
    fields = [
        make_field(name, without_nulls(kind) if is_sampled else kind, why)
        for name, ((kind, why), is_sampled, _) in united.items()
    ]
    if len(strands) > 1:
        fields.sort(key=lambda each: each.name != TEXT)  # the text first, whatever source has it
    if all(map(has_text_beside, schemas)):
        fields = [schemas[0].field(TEXT) if each.name == TEXT else each for each in fields]
    return [*fields, *([make_field(OTHER_FIELDS, *REST)] if needs_rest else [])]


def _unite_types(
    known: tuple[FieldType, bool, str], kind: FieldType, source: str, *, is_sampled: bool
) -> tuple[FieldType, bool, str]:
    (first, why), was_sampled, first_source = known
    if first.equals(JSON_TYPE) and why:
        return known
    both = unite_types(first, kind.type)
    if both is None and _is_json_number(first, kind.type, was_sampled, is_sampled):
        both = pa.float64()
    if both is None or both.equals(JSON_TYPE):
        reason = kind.why or f"{_describe_type(first)} in {first_source}, {_describe_type(kind.type)} in {source}"
        return FieldType(JSON_TYPE, reason), False, first_source
    return FieldType(both), was_sampled or is_sampled, first_source


def _is_json_number(first: pa.DataType, second: pa.DataType, *sampled: bool) -> bool:
    """Whether one is of whole numbers from JSON, which are read as floats where they are exact, and one of floats."""
    whole = [is_sampled for kind, is_sampled in zip((first, second), sampled, strict=True) if kind == pa.int64()]
    return {first, second} == {pa.int64(), pa.float64()} and all(whole)


def _describe_type(kind: pa.DataType) -> str:
    return "JSON" if kind.equals(JSON_TYPE) else str(kind)


def _find_field_type(each: pa.Field) -> FieldType:
    return FieldType(JSON_TYPE, reason_for_json(each)) if is_json(each) else FieldType(each.type)


def _find_renamed_columns(strand: SourceBranch) -> set[str]:
    return {name for step in strand.steps if isinstance(step, Rename) for name in step.columns}


def _declares_columns(strand: SourceBranch) -> bool:
    """Whether functions make columns, which hold numbers that their JSON records cannot."""
    return any(isinstance(step, (Map, MapBatches)) and step.columns for step in strand.steps)


def _adds_keys(strand: SourceBranch) -> bool:
    """Whether records may have keys that were not in the files."""
    return any(isinstance(step, FunctionStep) for step in strand.steps)
