"""The schema of a source, fixed before the run, so that all its tasks make batches with the same columns.

Records that are JSON objects and tables are planned here, from a sample or from what the files say of their columns;
what only one format has, by its module (`formats`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_values import make_field
from gristmill.core.media import FEATURE, MEMBER, find_labels
from gristmill.core.records import (
    CARRIES_ALL,
    ORIGIN,
    ORIGIN_TYPE,
    OTHER_FIELDS,
    PATH,
    RECORD,
    RECORD_TYPE,
    SPLIT,
    TEXT,
    TEXT_TYPE,
)
from gristmill.readers.field_types import (
    REST,
    FieldType,
    PlannedColumns,
    WantedColumns,
    choose_spread,
    infer_field_types,
)
from gristmill.readers.formats import FORMATS, file_format, find_format
from gristmill.readers.tables import column_mapper
from gristmill.readers.tables.gristmill_dataset import documents_schema, holds_token_rows
from gristmill.readers.texts.json_fields import (
    decode_sample,
    find_values,
    infer_column_types,
    make_missing_field_error,
)
from gristmill.runtime.plugins import READER, refuse_shadowed
from gristmill.storage.codecs import find_codec
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.readers.formats import Format
    from gristmill.readers.read import Read

_MAX_LOCAL_FOOTERS = 256
_SAMPLE_BYTES = 256 << 10
_ALL_SAMPLES_BYTES = 4 << 20


def plan_schema(
    read: Read,
    files: Sequence[SourceFile],
    *,
    keeps_record: bool,
    has_text: bool = True,
    carries_members: bool = False,
    is_text_optional: bool = False,
) -> pa.Schema:
    """Return the columns of a source: those of its files, and a column of splits if some files are held out."""
    wanted = WantedColumns(keeps_record, has_text, carries_members, is_text_optional)
    schema = _plan_file_schema(read, files, wanted)
    return schema.append(pa.field(SPLIT, pa.string())) if any(file.is_held_out for file in files) else schema


def _plan_file_schema(read: Read, files: Sequence[SourceFile], wanted: WantedColumns) -> pa.Schema:
    """Return the columns of a source: `origin`, `text`, those that `columns` names, and with `keeps_record` all.

    "All" is for JSON lines the line itself, as `record`; for Parquet and Arrow all columns; for tars all members, with
    `carries_members`. Types come from the files' metadata (of up to 256 local files or 16 remote ones, spread evenly),
    or from a sample of the records of 16 files (see `json_types`). A file in which a named column has another type
    stops the run, which names the file. Rows of tokens have no text (see `token_rows`), and records that will be
    rendered need none: without `has_text` they are read as they are. Samples need none either: with `is_text_optional`
    a source that has columns of bytes and no column `text` is one of samples.
    """
    name = check_source_format(read, files)
    kind = find_format(name)
    if not wanted.has_text and kind.content == "own" and name != "files" and read.format != "samples":
        raise UsageError(
            f"{files[0].path}: chats and token ids are read from JSON lines, Parquet or Arrow, not from {name}",
            help="leave out the render step, or ids, if these are documents",
        )
    if kind.content == "objects":
        planned = _plan_json_columns(read, choose_spread(files), wanted)
    elif kind.content == "table":
        planned = _plan_table(read, files, kind, wanted)
    else:
        planned = kind.load().plan_columns(read, files, wanted)
    if isinstance(planned, pa.Schema):
        return planned
    text = pa.field(TEXT, TEXT_TYPE)
    if RECORD in planned.columns and read.text != TEXT:
        text = text.with_metadata({PATH: read.text})
    first = [pa.field(ORIGIN, ORIGIN_TYPE), text] if planned.has_text else [pa.field(ORIGIN, ORIGIN_TYPE)]
    fields = [*first, *(make_field(name, *field_type) for name, field_type in planned.columns.items())]
    schema = pa.schema([_add_notes(field, planned.members, planned.labels) for field in fields])
    carries_all = (kind.content == "table" and wanted.keeps_record) or OTHER_FIELDS in planned.columns
    return schema.with_metadata({CARRIES_ALL: b""}) if carries_all else schema


def _plan_json_columns(read: Read, sampled: Sequence[SourceFile], wanted: WantedColumns) -> PlannedColumns:
    records = [record for file in sampled for record in _sample_objects(read, file)]
    if wanted.has_text and records and not find_values(read.text, records):
        raise make_missing_field_error("text", read.text, records)
    columns = {name: FieldType(kind) for name, kind in infer_column_types(read.columns, records).items()}
    if read.weights in columns and columns[read.weights].type == pa.large_list(pa.int64()):
        columns[read.weights] = FieldType(pa.large_list(pa.float64()))  # 1 in the sample, and 0.5 after it
    if wanted.keeps_record:
        columns[RECORD] = FieldType(RECORD_TYPE)
    return PlannedColumns(columns, has_text=wanted.has_text)


def _plan_table(
    read: Read, files: Sequence[SourceFile], kind: Format, wanted: WantedColumns
) -> PlannedColumns | pa.Schema:
    is_local = find_protocol(files[0].path) is None
    sampled = choose_spread(files, _MAX_LOCAL_FOOTERS) if is_local else choose_spread(files)
    schemas: list[pa.Schema] = kind.load().read_schemas(files, sampled)
    if read.format == "gristmill" and holds_token_rows(schemas[0]):
        return documents_schema(schemas[0], files[0].path)
    has_text = wanted.has_text
    if has_text and wanted.is_text_optional and read.text == TEXT:
        has_text = any(TEXT in each.names for each in schemas) or not any(map(column_mapper.holds_bytes, schemas))
    members = {name: member for each in schemas for name, member in column_mapper.find_media_members(each).items()}
    sees_all = len(sampled) == len(files)
    columns = _plan_stored_columns(
        read, sampled, schemas, carries_all=wanted.keeps_record, has_text=has_text, sees_all=sees_all
    )
    return PlannedColumns(columns, members, _find_common_labels(schemas), has_text=has_text)


def _add_notes(field: pa.Field, members: Mapping[str, str], labels: Mapping[str, bytes]) -> pa.Field:
    """Note the member of its sample that a column is, and the names of its labels."""
    notes = dict(field.metadata or {})
    if field.name in members:
        notes[MEMBER] = members[field.name].encode()
    if field.name in labels:
        notes[FEATURE] = labels[field.name]
    return field.with_metadata(notes or None)


def _find_common_labels(schemas: Sequence[pa.Schema]) -> dict[str, bytes]:
    """Find the features with names of labels in which all files agree that have the column."""
    labels = [find_labels(schema) for schema in schemas]
    common: dict[str, bytes] = {}
    for name in {name for each in labels for name in each}:
        features = {each.get(name) for each, schema in zip(labels, schemas, strict=True) if name in schema.names}
        if len(features) == 1 and (feature := features.pop()) is not None:
            common[name] = feature
    return common


def check_source_format(read: Read, files: Sequence[SourceFile]) -> str:
    """Return the one format of all files of a source."""
    if not files:
        raise UsageError("read: there are no files", help="check the paths")
    first, kind = files[0], ""
    for file in files:
        this_kind = file_format(file.path, read.format)
        if kind and this_kind != kind and not {this_kind, kind} <= {"jsonl", "json"}:
            raise UsageError(
                f"one source holds files of two formats: {first.path} ({kind}) and {file.path} ({this_kind})",
                help="make them two sources, or name the files more exactly",
            )
        kind = this_kind
    if read.field is not None and kind != "json":
        raise UsageError(f"field names the array of records in a JSON file, but {first.path} is {kind}")
    for name in ("delimiter", "encoding", "types"):
        if getattr(read, name) is not None and kind != "csv":
            raise UsageError(f"{name} is only for CSV, but {first.path} is {kind}")
    if read.separator is not None and kind != "text":
        raise UsageError(f"separator: only text is cut at a separator, but {first.path} is {kind}")
    if kind in FORMATS:
        refuse_shadowed(READER, kind)
    return kind


def _plan_stored_columns(
    read: Read,
    files: Sequence[SourceFile],
    schemas: Sequence[pa.Schema],
    *,
    carries_all: bool,
    has_text: bool,
    sees_all: bool,
) -> dict[str, FieldType]:
    """Return the columns of Parquet or Arrow files. In a file that lacks a column it is null; all must not lack it."""
    named, loose = [], []
    needs_rest = not sees_all
    for file, schema in zip(files, schemas, strict=True):
        if has_text:
            column_mapper.check_text_column(schema, read.text, file.path)
        types = {name: column_mapper.find_type(schema, name) for name in read.columns}
        named.append((file.path, {name: each for name, each in types.items() if each is not None}))
        if carries_all:
            unnamed_columns = column_mapper.find_unnamed_columns(schema, read, has_text=has_text)
            loose.append({name: each for name, each in unnamed_columns.items() if each is not None})
            needs_rest = needs_rest or None in unnamed_columns.values()
            needs_rest = needs_rest or any(map(column_mapper.is_own_other_fields, schema))
    joined = column_mapper.join_file_columns(named)
    for name in read.columns:
        if name not in joined:
            raise column_mapper.make_missing_column_error(schemas[-1], name, files[-1].path)
    columns = {name: FieldType(joined[name]) for name in read.columns} | column_mapper.unite_file_columns(loose)
    return columns | {OTHER_FIELDS: REST} if carries_all and needs_rest else columns


def sample_record_types(
    read: Read, files: Sequence[SourceFile], *, has_text: bool = True
) -> tuple[dict[str, FieldType], bool]:
    """Return the types of the keys of JSON records, and whether the sample has all records of the source.

    The sample is the first 4 MiB altogether of up to 16 files spread over the source.
    """
    sampled = choose_spread(files)
    most = max(_SAMPLE_BYTES, _ALL_SAMPLES_BYTES // len(sampled))
    sees_all = len(sampled) == len(files) and find_format(check_source_format(read, files)).content == "objects"
    sees_all = sees_all and all(file.num_bytes <= most and find_codec(file.path) is None for file in files)
    records: list[dict[str, Any]] = []
    for file in sampled:
        num_bytes = 0
        for content in _sample_records(read, file, most):
            num_bytes += len(content)
            record = decode_sample(content)
            if isinstance(record, dict):
                records.append(record)
            elif content.strip():
                sees_all = False
        # A plugin's reader may make more of a file than its size tells.
        is_cut = num_bytes >= most and file_format(file.path, read.format) not in FORMATS
        sees_all = sees_all and not is_cut
    types = infer_field_types(records)
    record_keys = {key for record in records for key in record}
    return types, sees_all and record_keys <= {*types, *([read.text] if has_text else [])}


def _sample_objects(read: Read, file: SourceFile) -> Iterator[dict[str, Any]]:
    """Yield the valid objects in the first 256 KiB of a file, or a longer first object of up to a cell."""
    for record in _sample_records(read, file, _SAMPLE_BYTES):
        value = decode_sample(record)
        if isinstance(value, dict):
            yield value


def _sample_records(read: Read, file: SourceFile, most: int) -> Iterable[bytes]:
    records: Iterable[bytes] = find_format(file_format(file.path, read.format)).load().sample_records(read, file, most)
    return records
