"""The schema of a source, fixed before the run, so that all its tasks make batches with the same columns.

What only one format needs is imported where that format is planned: it takes longer than planning a small source.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.errors import CorruptStreamError, UsageError
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
from gristmill.readers.cells import CELL_BYTES
from gristmill.readers.field_types import REST, FieldType, infer_field_types
from gristmill.readers.formats import JSON_FORMATS, file_format
from gristmill.readers.read import FORMATS
from gristmill.readers.tables.column_mapper import find_media_members, holds_bytes
from gristmill.readers.texts.delimited_file import BYTE_ORDER_MARK, read_unpacked_chunks
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
    from gristmill.readers.cells import ElementRange
    from gristmill.readers.read import Read

_MAX_SAMPLED = 16
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
    schema = _plan_file_schema(
        read,
        files,
        keeps_record=keeps_record,
        has_text=has_text,
        carries_members=carries_members,
        is_text_optional=is_text_optional,
    )
    return schema.append(pa.field(SPLIT, pa.string())) if any(file.is_held_out for file in files) else schema


def _plan_file_schema(
    read: Read,
    files: Sequence[SourceFile],
    *,
    keeps_record: bool,
    has_text: bool,
    carries_members: bool,
    is_text_optional: bool,
) -> pa.Schema:
    """Return the columns of a source: `origin`, `text`, those that `columns` names, and with `keeps_record` all.

    "All" is for JSON lines the line itself, as `record`; for Parquet and Arrow all columns; for tars all members, with
    `carries_members`. Types come from the files' metadata (of up to 256 local files or 16 remote ones, spread evenly),
    or from a sample of the records of 16 files (see `json_types`). A file in which a named column has another type
    stops the run, which names the file. Rows of tokens have no text (see `token_rows`), and records that will be
    rendered need none: without `has_text` they are read as they are. Samples need none either: with `is_text_optional`
    a source that has columns of bytes and no column `text` is one of samples.
    """
    kind = check_source_format(read, files)
    if kind == "files":
        from gristmill.readers.sample_folder import plan_folder_schema  # noqa: PLC0415

        return plan_folder_schema(read, files)
    if read.format == "samples":
        from gristmill.readers.tar_columns import plan_own_samples  # noqa: PLC0415

        return plan_own_samples(read, files)
    is_stored, is_local = kind in ("parquet", "arrow"), find_protocol(files[0].path) is None
    if kind == "arrow" and read.format == "gristmill":
        from gristmill.readers.tables.arrow import read_arrow_schema  # noqa: PLC0415
        from gristmill.readers.tables.gristmill_dataset import documents_schema, holds_token_rows  # noqa: PLC0415

        if holds_token_rows(stored_schema := read_arrow_schema(files[0].path)):
            return documents_schema(stored_schema, files[0].path)
    if kind == "parquet" and is_local:
        from gristmill.readers.tables.parquet import check_footers  # noqa: PLC0415

        check_footers(files)
    if not has_text and kind not in ("jsonl", "parquet", "arrow"):
        raise UsageError(
            f"{files[0].path}: chats are read from JSON lines, Parquet or Arrow, not from {kind}",
            help="leave out the render step if these are documents",
        )
    sampled = _choose_spread(files, _MAX_LOCAL_FOOTERS if is_stored and is_local else _MAX_SAMPLED)
    columns: dict[str, FieldType]
    members: dict[str, str] = {}
    labels: dict[str, bytes] = {}
    if kind == "jsonl":
        columns = _list_json_columns(read, sampled, has_text=has_text)
        if keeps_record:
            columns[RECORD] = FieldType(RECORD_TYPE)
    elif kind == "text":
        if read.columns:
            raise UsageError("columns: plain text has none", help="leave `columns` out")
        columns = {}
    elif kind == "warc":
        columns = _list_page_columns(read, carries_all=keeps_record)
    elif kind == "webdataset":
        from gristmill.readers.tar_columns import plan_member_columns  # noqa: PLC0415

        carries_all = carries_members and read.format != "gristmill"
        columns, members, has_text = plan_member_columns(
            read, sampled, carries_all=carries_all, is_text_optional=is_text_optional and read.format != "gristmill"
        )
        if keeps_record and read.format == "gristmill":
            columns[RECORD] = FieldType(RECORD_TYPE)
    else:
        sees_all = len(sampled) == len(files)
        schemas = _read_stored_schemas(sampled, kind)
        if has_text and is_text_optional and read.text == TEXT:
            has_text = any(TEXT in each.names for each in schemas) or not any(map(holds_bytes, schemas))
        members = {name: member for each in schemas for name, member in find_media_members(each).items()}
        labels = _find_common_labels(schemas)
        columns = _plan_stored_columns(
            read, sampled, schemas, carries_all=keeps_record, has_text=has_text, sees_all=sees_all
        )
    text = pa.field(TEXT, TEXT_TYPE)
    if RECORD in columns and read.text != TEXT:
        text = text.with_metadata({PATH: read.text})
    first = [pa.field(ORIGIN, ORIGIN_TYPE), text] if has_text else [pa.field(ORIGIN, ORIGIN_TYPE)]
    fields = [*first, *(make_field(name, *field_type) for name, field_type in columns.items())]
    schema = pa.schema([_add_notes(field, members, labels) for field in fields])
    carries_all = (is_stored and keeps_record) or OTHER_FIELDS in columns
    return schema.with_metadata({CARRIES_ALL: b""}) if carries_all else schema


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


def _list_page_columns(read: Read, *, carries_all: bool) -> dict[str, FieldType]:
    """Return the columns of pages in web archives, which are always the same."""
    from gristmill.readers.web_archives import COLUMNS  # noqa: PLC0415

    for name in read.columns:
        if name not in COLUMNS:
            raise UsageError(
                f'columns: pages of web archives have no column "{name}"', help=f"there are {', '.join(COLUMNS)}"
            )
    return {name: FieldType(kind) for name, kind in COLUMNS.items() if carries_all or name in read.columns}


def check_source_format(read: Read, files: Sequence[SourceFile]) -> str:
    """Return the one format of all files of a source; a saved Hugging Face dataset is a list of Arrow files here."""
    if not files:
        raise UsageError("read: there are no files", help="check the paths")
    first, kind = files[0], ""
    for file in files:
        this_kind = file_format(file.path, read.format)
        if kind and this_kind != kind and not {this_kind, kind} <= set(JSON_FORMATS):
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
    if kind not in FORMATS:
        return "jsonl"  # the records of a plugin's reader become JSON objects
    refuse_shadowed(READER, kind)
    return {"hugging_face": "arrow", "json": "jsonl", "csv": "jsonl"}.get(kind, kind)


def _choose_spread(files: Sequence[SourceFile], most: int) -> list[SourceFile]:
    """Choose up to `most` of the files, evenly spread, including the first and the last."""
    count = min(len(files), most)
    return [files[index * (len(files) - 1) // max(1, count - 1)] for index in range(count)]


def _read_stored_schemas(files: Sequence[SourceFile], kind: str) -> list[pa.Schema]:
    from gristmill.readers.tables.arrow import read_arrow_schema  # noqa: PLC0415
    from gristmill.readers.tables.parquet import read_parquet_schema  # noqa: PLC0415

    read_schema = read_parquet_schema if kind == "parquet" else read_arrow_schema
    return [read_schema(file.path) for file in files]


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
    from gristmill.readers.tables import column_mapper  # noqa: PLC0415

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


def _list_json_columns(read: Read, files: Sequence[SourceFile], *, has_text: bool) -> dict[str, FieldType]:
    records = [record for file in files for record in _sample_objects(read, file)]
    if has_text and records and not find_values(read.text, records):
        raise make_missing_field_error("text", read.text, records)
    return {name: FieldType(kind) for name, kind in infer_column_types(read.columns, records).items()}


def sample_record_types(
    read: Read, files: Sequence[SourceFile], *, has_text: bool = True
) -> tuple[dict[str, FieldType], bool]:
    """Return the types of the keys of JSON records, and whether the sample has all records of the source.

    The sample is the first 4 MiB altogether of up to 16 files spread over the source.
    """
    sampled = _choose_spread(files, _MAX_SAMPLED)
    most = max(_SAMPLE_BYTES, _ALL_SAMPLES_BYTES // len(sampled))
    sees_all = len(sampled) == len(files) and check_source_format(read, files) in JSON_FORMATS
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


def _sample_records(read: Read, file: SourceFile, most: int) -> Iterator[bytes]:
    if file_format(file.path, read.format) != "webdataset":
        yield from _sample_json(read, file, most)
    else:
        from gristmill.readers.tar_columns import sample_members  # noqa: PLC0415
        from gristmill.readers.tar_samples import JSON, add_members_to_json  # noqa: PLC0415

        for sample in sample_members(file, read, None):
            add_members_to_json(sample)
            yield sample.members.get(JSON, b"{}")


def _sample_objects(read: Read, file: SourceFile) -> Iterator[dict[str, Any]]:
    """Yield the valid objects in the first 256 KiB of a file, or a longer first object of up to a cell."""
    for record in _sample_json(read, file, _SAMPLE_BYTES):
        value = decode_sample(record)
        if isinstance(value, dict):
            yield value


def _sample_json(read: Read, file: SourceFile, most: int) -> Iterable[bytes]:
    """Return the records in the first bytes of a file: lines, elements, rows of CSV, or what a plugin reads."""
    kind = file_format(file.path, read.format)
    if kind not in FORMATS:
        return _sample_plugin_records(file, kind, most)
    if kind == "csv":
        from gristmill.readers.texts.csv_file import (  # noqa: PLC0415
            RowDecoder,
            find_csv_layout,
            read_csv_head,
        )

        layout = find_csv_layout(read, file.path)
        return RowDecoder(read, layout).sample(read_csv_head(read, file.path, layout, most))
    if kind == "json":
        from gristmill.readers.texts.json_array import find_elements  # noqa: PLC0415

        elements = find_elements(read, file.path)
        if elements is not None:
            return _sample_elements(file, elements, most)
    data = _read_head(file, 0, b"\n", most)
    end = data.find(b"\n", most)
    return data[: end if end >= 0 else len(data)].removeprefix(BYTE_ORDER_MARK).split(b"\n")


def _sample_plugin_records(file: SourceFile, format: str, most: int) -> Iterator[bytes]:
    from gristmill.readers.formats import read_plugin_records  # noqa: PLC0415
    from gristmill.readers.texts.json_fields import REFUSED_LINE  # noqa: PLC0415

    num_bytes = 0
    with closing(read_plugin_records(file.path, format)) as records, suppress(CorruptStreamError):
        for line in records:
            if not line.startswith(REFUSED_LINE):
                yield line
            num_bytes += len(line)
            if num_bytes >= most:
                return


def _sample_elements(file: SourceFile, elements: ElementRange, most: int) -> Iterator[bytes]:
    from gristmill.readers.texts.json_elements import ElementScanner  # noqa: PLC0415

    data = _read_head(file, elements.start, b"", most)
    split = ElementScanner(is_open=not elements.is_array).split(data)
    for start, stop in zip(split.starts.tolist(), split.stops.tolist(), strict=True):
        yield data[start:stop]
        if stop >= most:
            return
    if split.unfinished is not None:
        yield data[split.unfinished :]


def _read_head(file: SourceFile, start: int, separator: bytes, most: int) -> bytes:
    """Read the bytes from `start` on that the sample needs: `most` and the rest of a record, but at most a cell."""
    data = bytearray()
    with closing(read_unpacked_chunks(file.path)) as chunks:
        try:
            for chunk in chunks:
                data += chunk[start:]
                start = max(0, start - len(chunk))
                if len(data) >= CELL_BYTES or (len(data) >= most and separator and separator in data):
                    break
        except CorruptStreamError:
            pass  # the readable part is the sample; the run reports the damage
    return bytes(data)
