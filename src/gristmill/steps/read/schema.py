"""The schema of a source, fixed before the run, so that every task of it makes batches of the same columns."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.core.records import CARRIES_ALL, ORIGIN, ORIGIN_TYPE, PATH, RECORD, RECORD_TYPE, SPLIT, TEXT, TEXT_TYPE
from gristmill.steps.read.arrow import arrow_schema
from gristmill.steps.read.cells import CELL_BYTES
from gristmill.steps.read.columns import (
    carried_columns,
    check_text_column,
    find_type,
    joined_schema,
    no_such_column,
)
from gristmill.steps.read.formats import JSON_FORMATS, file_format
from gristmill.steps.read.json_elements import ElementScanner
from gristmill.steps.read.json_layout import find_elements
from gristmill.steps.read.json_types import column_types, no_such_field, values_at
from gristmill.steps.read.members import KEY, Sample, SampleWalk, member_path
from gristmill.steps.read.parquet import check_ends, parquet_schema
from gristmill.steps.read.separated import BYTE_ORDER_MARK, unpacked_chunks
from gristmill.steps.read.tar import TarStream
from gristmill.steps.read.token_rows import documents_schema, holds_token_rows
from gristmill.storage.remote_files import protocol_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.cells import ElementRange
    from gristmill.steps.read.read import Read

_MAX_SAMPLED = 16
_MAX_LOCAL_FOOTERS = 256
_SAMPLE_BYTES = 256 << 10
_MAX_SAMPLES = 200
_RESERVED = (ORIGIN, TEXT, RECORD, SPLIT)


def plan_schema(read: Read, files: Sequence[SourceFile], *, keeps_record: bool, has_text: bool = True) -> pa.Schema:
    """The columns of a source: those of its files (see `_file_columns`), and where some are held out its split."""
    schema = _file_columns(read, files, keeps_record=keeps_record, has_text=has_text)
    return schema.append(pa.field(SPLIT, pa.string())) if any(file.is_held_out for file in files) else schema


def _file_columns(read: Read, files: Sequence[SourceFile], *, keeps_record: bool, has_text: bool) -> pa.Schema:
    """The columns of a source: `origin`, `text`, what `columns` names, and with `keeps_record` all that was read.

    For JSON lines that is the line itself, as `record`; for Parquet and Arrow all columns. Types come from the files'
    metadata (of up to 256 local files or 16 remote ones, spread evenly), or from a sample of the records of 16 files
    (see `json_types`). A file that turns out different stops the run by name. Rows of tokens have no text (see
    `token_rows`), and records that are to be rendered need none: without `has_text` they are taken as they are.
    """
    kind = source_format(read, files)
    is_stored, is_local = kind in ("parquet", "arrow"), protocol_of(files[0].path) is None
    if kind == "arrow" and read.format == "gristmill" and holds_token_rows(stored := arrow_schema(files[0].path)):
        return documents_schema(stored, files[0].path)
    if kind == "parquet" and is_local:
        check_ends(files)
    if not has_text and kind not in ("jsonl", "parquet", "arrow"):
        raise UsageError(
            f"{files[0].path}: chats are read from JSON lines, Parquet or Arrow, not from {kind}",
            help="leave out the render step if these are documents",
        )
    sampled = _spread(files, _MAX_LOCAL_FOOTERS if is_stored and is_local else _MAX_SAMPLED)
    columns: dict[str, pa.DataType]
    if kind == "jsonl":
        columns = _json_columns(read, sampled, has_text=has_text)
        if keeps_record:
            columns[RECORD] = RECORD_TYPE
    elif kind == "text":
        if read.columns:
            raise UsageError("columns: plain text has none", help="leave `columns` out")
        columns = {}
    elif kind == "webdataset":
        columns = _member_columns(read, sampled)
        if keeps_record and read.format == "gristmill":
            columns[RECORD] = RECORD_TYPE
    else:
        columns = _stored_columns(read, sampled, kind, carries_all=keeps_record, has_text=has_text)
    text = pa.field(TEXT, TEXT_TYPE)
    if RECORD in columns and read.text != TEXT:
        text = text.with_metadata({PATH: read.text})
    first = [pa.field(ORIGIN, ORIGIN_TYPE), text] if has_text else [pa.field(ORIGIN, ORIGIN_TYPE)]
    schema = pa.schema([*first, *(pa.field(*column) for column in columns.items())])
    return schema.with_metadata({CARRIES_ALL: b""}) if is_stored and keeps_record else schema


def source_format(read: Read, files: Sequence[SourceFile]) -> str:
    """The one format of all files of a source; a saved Hugging Face dataset is Arrow files by now."""
    if not files:
        raise UsageError("read: there are no files", help="check the paths")
    first, kind = files[0], ""
    for file in files:
        found = file_format(file.path, read.format)
        if kind and found != kind and not {found, kind} <= set(JSON_FORMATS):
            raise UsageError(
                f"one source holds files of two formats: {first.path} ({kind}) and {file.path} ({found})",
                help="make them two sources, or name the files more exactly",
            )
        kind = found
    if read.field is not None and kind != "json":
        raise UsageError(f"field: names the array of records in a JSON file, but {first.path} is {kind}")
    if read.separator is not None and kind != "text":
        raise UsageError(f"separator: only text is cut at a separator, but {first.path} is {kind}")
    return {"hugging_face": "arrow", "json": "jsonl"}.get(kind, kind)


def _spread(files: Sequence[SourceFile], most: int) -> list[SourceFile]:
    """Up to so many of the files, the first and the last among them."""
    count = min(len(files), most)
    return [files[index * (len(files) - 1) // max(1, count - 1)] for index in range(count)]


def _stored_columns(
    read: Read, files: Sequence[SourceFile], kind: str, *, carries_all: bool, has_text: bool
) -> dict[str, pa.DataType]:
    """The columns of Parquet or Arrow files. One that some of them lack is null there; one that all lack is refused."""
    found = []
    schema = pa.schema([])
    for file in files:
        schema = parquet_schema(file.path) if kind == "parquet" else arrow_schema(file.path)
        if has_text:
            check_text_column(schema, read.text, file.path)
        names = list(read.columns)
        if carries_all:
            names += [name for name in carried_columns(schema, read) if name not in names]
        for name in names:
            if name in _RESERVED:
                raise UsageError(
                    f"{file.path}: column {name!r} has a name that every source has already",
                    help="name the columns you want in `columns`, or rename it in the files",
                )
        types = {name: find_type(schema, name) for name in names}
        found.append((file.path, {name: each for name, each in types.items() if each is not None}))
    joined = joined_schema(found)
    for name in read.columns:
        if name not in joined:
            raise no_such_column(schema, name, files[-1].path)
    return {name: joined[name] for name in (*read.columns, *(name for name in joined if name not in read.columns))}


def _json_columns(read: Read, files: Sequence[SourceFile], *, has_text: bool) -> dict[str, pa.DataType]:
    records = [record for file in files for record in _sampled_objects(read, file)]
    if has_text and records and not values_at(read.text, records):
        raise no_such_field("text", read.text, records)
    return column_types(read.columns, records)


def _sampled_objects(read: Read, file: SourceFile) -> Iterator[dict[str, Any]]:
    """The valid objects in the first 256 KiB of a file, or the first one if it is no longer than a cell."""
    elements = find_elements(read, file.path) if file_format(file.path, read.format) == "json" else None
    for record in _sampled_lines(file) if elements is None else _sampled_elements(file, elements):
        try:
            value = msgspec.json.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _sampled_lines(file: SourceFile) -> list[bytes]:
    data = _head(file, 0, b"\n")
    end = data.find(b"\n", _SAMPLE_BYTES)
    return data[: end if end >= 0 else len(data)].removeprefix(BYTE_ORDER_MARK).split(b"\n")


def _sampled_elements(file: SourceFile, elements: ElementRange) -> Iterator[bytes]:
    data = _head(file, elements.start, b"")
    found = ElementScanner(is_open=not elements.is_array).split(data)
    for start, stop in zip(found.starts.tolist(), found.stops.tolist(), strict=True):
        yield data[start:stop]
        if stop >= _SAMPLE_BYTES:
            return
    if found.unfinished is not None:
        yield data[found.unfinished :]


def _head(file: SourceFile, start: int, separator: bytes) -> bytes:
    """The bytes from a place on: those that the sample needs, at most a cell; with separators from 256 KiB on."""
    data = bytearray()
    with closing(unpacked_chunks(file.path)) as chunks:
        try:
            for chunk in chunks:
                data += chunk[start:]
                start = max(0, start - len(chunk))
                if len(data) >= CELL_BYTES or (len(data) >= _SAMPLE_BYTES and separator and separator in data):
                    break
        except CorruptStreamError:
            pass  # what was readable is the sample; the run reports the damage
    return bytes(data)


def _member_columns(read: Read, files: Sequence[SourceFile]) -> dict[str, pa.DataType]:
    text, paths = member_path(read, read.text), {name: member_path(read, name) for name in read.columns}
    needed = frozenset(path.member for path in (text, *paths.values()))
    samples = [sample for file in files for sample in _sampled_members(file, read, needed)]
    if samples and not any(text.member in (*sample.members, *sample.too_large) for sample in samples):
        raise UsageError(
            f"text: no sample of {files[0].path} has a member {text.member!r}",
            help="name a member by its extension, as `text: txt`, or a field of a JSON member, as `text: json.content`",
        )
    types = {}
    for name, path in paths.items():
        if path.member != KEY and not any(path.member in sample.members for sample in samples):
            raise UsageError(f"columns: no sample of {files[0].path} has a member {path.member!r}")
        if path.field is None:
            types[name] = TEXT_TYPE
        else:
            contents = (sample.members[path.member] for sample in samples if path.member in sample.members)
            types[name] = column_types([path.field], _decoded(contents))[path.field]
    return types


def _sampled_members(file: SourceFile, read: Read, needed: frozenset[str]) -> list[Sample]:
    with closing(unpacked_chunks(file.path)) as chunks:
        walk = SampleWalk(TarStream(chunks), file.id, needed, read.max_record_bytes, cell_bytes=1 << 62)
        return [found for found in itertools.islice(walk.walk(), _MAX_SAMPLES) if isinstance(found, Sample)]


def _decoded(contents: Iterator[bytes]) -> Iterator[Any]:
    for content in contents:
        try:
            yield msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
