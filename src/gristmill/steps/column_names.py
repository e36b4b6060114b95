"""Columns by name: checks that suggest the nearest name, types in words, and paths in JSON records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.records import BESIDE_RECORD, INPUT_IDS, ORIGIN, PATH, RECORD, SPLIT, TEXT

if TYPE_CHECKING:
    from collections.abc import Mapping


def require_column(step: str, column: str, schema: pa.Schema) -> None:
    """Raise `UsageError` if a column does not exist."""
    if column not in schema.names:
        names = [name for name in schema.names if name not in (ORIGIN, RECORD)]
        if column == TEXT and INPUT_IDS in names:
            hint = "these are token ids: put the step before tokenize, or read the documents; split can use by: origin"
        elif meant := find_nearest(column, names):
            hint = f'did you mean "{meant}"?'
        else:
            hint = f"there are {', '.join(names)}"
        raise UsageError(f'{step}: there is no column "{column}"', help=hint)


def path_in_record(field: pa.Field) -> tuple[str, ...]:
    """Return the keys that lead to the field's value in the JSON record.

    >>> path_in_record(pa.field("text", pa.large_string(), metadata={"path": "payload.body"}))
    ('payload', 'body')
    """
    path = (field.metadata or {}).get(PATH, field.name.encode())
    return tuple(path.decode().split("."))


def has_text_beside(schema: pa.Schema) -> bool:
    """Whether records are chats that are kept as they are: new columns are next to the record, not in it."""
    return TEXT in schema.names and BESIDE_RECORD in (schema.field(TEXT).metadata or {})


def list_value_columns(schema: pa.Schema) -> list[pa.Field]:
    """Return the fields that hold a record's values: all but its origin, its raw form and its split."""
    return [field for field in schema if field.name not in (ORIGIN, RECORD, SPLIT)]


def add_columns(step: str, schema: pa.Schema, types: Mapping[str, str]) -> pa.Schema:
    """Return the schema with these columns added, or with their types changed.

    >>> add_columns("map", pa.schema({"text": pa.large_string()}), {"score": "float64"}).names
    ['text', 'score']
    """
    for name, type_name in types.items():
        if name in (ORIGIN, TEXT, RECORD, SPLIT):
            raise UsageError(f'{step}: the type of "{name}" is fixed', help="leave it out")
        index = schema.get_field_index(name)
        metadata = schema.field(index).metadata if index >= 0 else None
        field = pa.field(name, parse_arrow_type(step, type_name), metadata=metadata)
        schema = schema.append(field) if index < 0 else schema.set(index, field)
    return schema


def parse_arrow_type(step: str, type_name: str) -> pa.DataType:
    """Parse a type in Arrow's words: `int64`, `float64`, `string`, `bool`, `list<string>`.

    >>> parse_arrow_type("map", "list<int32>")
    ListType(list<item: int32>)
    """
    if type_name.startswith("list<") and type_name.endswith(">"):
        return pa.list_(parse_arrow_type(step, type_name[len("list<") : -1]))
    try:
        return pa.type_for_alias(type_name)
    except ValueError:
        meant = find_nearest(type_name, _COMMON_TYPES)
        raise UsageError(
            f'{step}: there is no type "{type_name}"',
            help=f'did you mean "{meant}"?' if meant else f"use one of {', '.join(_COMMON_TYPES)}, list<…>",
        ) from None


_COMMON_TYPES = ("bool", "int32", "int64", "float32", "float64", "string", "binary", "date32", "timestamp[us]")
