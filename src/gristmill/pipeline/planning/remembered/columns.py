"""The columns of a source, sampled or recalled."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.records import RECORD, TEXT
from gristmill.pipeline.planning.sample import explain_no_records
from gristmill.steps.unite.field_types import FieldType
from gristmill.storage.user_cache.plan_cache import recall, remember

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.core.errors import UsageError
    from gristmill.core.records import SourceFile
    from gristmill.steps.read import Read

_KIND = "columns"
_WHY = b"why"


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """The wishes of a recipe for the columns of its files."""

    keeps_record: bool
    """Whether whole records are needed."""
    has_text: bool
    is_text_optional: bool
    """Whether no step needs a text: then records with columns of bytes may have none."""
    carries_members: bool
    opens_record: bool
    """Whether the keys of JSON records become columns, where there are such records."""


@dataclass(frozen=True, slots=True)
class SampledColumns:
    """The columns of a source, and what is known of the keys of its records."""

    schema: pa.Schema
    types: dict[str, FieldType]
    has_all_keys: bool
    no_records: UsageError | None = None
    """The error for a source without any record."""


class _StoredColumns(msgspec.Struct):
    schema: str
    types: str
    has_all_keys: bool


def sample_columns(
    read: Read, files: Sequence[SourceFile], request: ColumnRequest, files_hash: str | None
) -> SampledColumns:
    """Fix the columns of a source by a sample of its files, or recall them. `files_hash` is from `hash_files`."""
    key: Any = [files_hash, request]
    stored = recall(_KIND, key, _StoredColumns) if files_hash is not None else None
    recalled = _unpack(stored) if stored is not None else None
    if recalled is not None:
        return recalled
    columns = _look_at_files(read, files, request)
    if files_hash is not None and columns.no_records is None:
        stored = _pack(columns)
        unpacked = _unpack(stored)
        if unpacked is not None and _are_equal(unpacked, columns):
            remember(_KIND, key, stored)
    return columns


def _look_at_files(read: Read, files: Sequence[SourceFile], request: ColumnRequest) -> SampledColumns:
    # A recalled plan needs none of the modules that infer types.
    from gristmill.steps.read import plan_schema, sample_record_types  # noqa: PLC0415

    schema = plan_schema(
        read,
        files,
        keeps_record=request.keeps_record,
        has_text=request.has_text,
        carries_members=request.carries_members,
        is_text_optional=request.is_text_optional,
    )
    opens_record = request.opens_record and RECORD in schema.names
    types: dict[str, FieldType] = {}
    has_all_keys = False
    no_records = explain_no_records(read, files, schema)
    if opens_record:
        types, has_all_keys = sample_record_types(read, files, has_text=TEXT in schema.names)
    return SampledColumns(schema, types, has_all_keys, no_records)


def _pack(columns: SampledColumns) -> _StoredColumns:
    types = pa.schema(pa.field(name, kind, metadata={_WHY: why}) for name, (kind, why) in columns.types.items())
    return _StoredColumns(pack_schema(columns.schema), pack_schema(types), columns.has_all_keys)


def _unpack(stored: _StoredColumns) -> SampledColumns | None:
    """Read stored columns; None if they are nothing that `_pack` makes."""
    try:
        fields = unpack_schema(stored.types)
        types = {field.name: FieldType(field.type, (field.metadata or {})[_WHY].decode()) for field in fields}
        return SampledColumns(unpack_schema(stored.schema), types, stored.has_all_keys)
    except (ValueError, KeyError, pa.ArrowException):
        return None


def _are_equal(one: SampledColumns, other: SampledColumns) -> bool:
    has_same_types = list(one.types.items()) == list(other.types.items()) and one.has_all_keys == other.has_all_keys
    return has_same_types and one.schema.equals(other.schema, check_metadata=True)


def pack_schema(schema: pa.Schema) -> str:
    """Write a schema as text, with all its metadata."""
    return base64.b64encode(schema.serialize()).decode()


def unpack_schema(text: str) -> pa.Schema:
    """Read a schema that `pack_schema` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
