"""A folder of samples: which files are samples, which describe them, and which split each is in.

The conventions are those of Hugging Face's ImageFolder. `metadata.jsonl` or `metadata.csv` has a row for each file,
found by its `file_name`, which is relative to the table. The first folder names the split, if the first folders of all
files do. A file `0001.txt`, `0001.caption`, `0001.cls` or `0001.json` next to `0001.jpg` describes it.

Its columns are the content, `__key__`, `label`, and what describes the files. Images of all formats are one column,
`image`. Other files are a column for each extension, as in a WebDataset tar.

The row of a file in the table of its folder, the files next to it and its class become one JSON object for each sample,
so that types are inferred and checked as those of JSON records are. A table is read once by each process: about 200
bytes of memory a row.

A file is one sample; it is a cell by itself, or shares one with other small files.
"""

from __future__ import annotations

import csv
import io
import posixpath
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.json_values import JSON_TYPE, is_json, make_field
from gristmill.core.media import (
    ANY_IMAGE,
    FILE_EXTENSIONS,
    IMAGE,
    IMAGE_EXTENSIONS,
    LABEL,
    LABEL_MEMBER,
    MEMBER,
    find_member,
    get_extension,
    is_bytes,
    make_key,
    make_member_field,
)
from gristmill.core.records import (
    CARRIES_ALL,
    KEY,
    ORIGIN,
    ORIGIN_TYPE,
    OTHER_FIELDS,
    TEXT,
    TEXT_TYPE,
    QuarantinedRecord,
    SideFile,
)
from gristmill.core.splits import FOLDER_SPLITS, split_by_folder
from gristmill.readers.cells import CellBatch, build_batch
from gristmill.readers.field_types import REST, infer_field_types, without_nulls
from gristmill.readers.formats import FolderFiles
from gristmill.shards.record_columns import RecordColumns
from gristmill.storage.files import check_unchanged, open_input

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.core.records import SourceFile
    from gristmill.readers.cells import FilePart
    from gristmill.readers.field_types import WantedColumns
    from gristmill.readers.read import Read
    from gristmill.storage.paths import ListedFile


TABLE = "*table"
"""The extension of the table of a folder among the side files of a sample."""
SIDE_EXTENSIONS = ("txt", "caption", "cls", "json")
_OTHER_DATA = ("jsonl", "ndjson", "csv", "tsv", "parquet", "pq", "arrow", "feather", "ipc", "tar", "gz", "zst")
_TABLES = ("metadata.jsonl", "metadata.csv")


def find_folder_format(files: Sequence[ListedFile]) -> str | None:
    """Return `files` if images, sounds or other files of bytes are among the files, and no other data next to them."""
    others = [file for file in files if posixpath.basename(file.relative) not in _TABLES]
    is_data = any(get_extension(file.relative) in _OTHER_DATA for file in others)
    return "files" if _has_bytes(others) and not is_data else None


def _has_bytes(files: Iterable[ListedFile]) -> bool:
    return any(get_extension(file.relative) in FILE_EXTENSIONS for file in files)


def arrange_folder(files: Sequence[ListedFile], where: str) -> FolderFiles:
    """Find the samples among the files of a folder, and what describes each of them."""
    tables = _list_tables(files)
    others = [file for file in files if posixpath.basename(file.relative) not in _TABLES]
    is_media = _has_bytes(others)
    stems: dict[str, list[ListedFile]] = {}
    samples, rest = [], []
    for file in others:
        extension = get_extension(file.relative)
        if extension in SIDE_EXTENSIONS:
            stems.setdefault(_cut_extension(file.relative), []).append(file)
        elif not is_media or extension in FILE_EXTENSIONS:
            samples.append(file)
        else:
            rest.append(file)
    if not samples:  # files that could describe others are the samples themselves
        samples, stems = [file for group in stems.values() for file in group], {}
    if not samples:
        raise UsageError(f"{where}: there is no sample among the files", help="name the files in read")
    side_files = {}
    for file in samples if stems or tables else []:
        described = [
            _make_side_file(side, get_extension(side.relative)) for side in stems.get(_cut_extension(file.relative), [])
        ]
        table = _find_table(tables, file.relative)
        if table is not None:
            described.append(_make_side_file(table, TABLE))
        if described:
            side_files[file.relative] = tuple(described)
    used = {_cut_extension(file.relative) for file in samples} if stems else set()
    rest += [file for stem, group in stems.items() if stem not in used for file in group]
    notes = []
    if rest:
        names = rest[0].relative if len(rest) == 1 else f"{rest[0].relative}, …"
        notes.append(f"files that describe no sample and are not read: {len(rest):,} ({names})")
    return FolderFiles(_split_by_folder(samples), notes, side_files)


def find_class(file: SourceFile) -> str | None:
    """Find the class of a file: the name of its folder, unless that is the folder of its split."""
    parts = file.relative.split("/")[:-1]
    if file.split and parts and parts[0].lower() in FOLDER_SPLITS:
        parts = parts[1:]
    return parts[-1] if parts else None


def _list_tables(files: Iterable[ListedFile]) -> dict[str, ListedFile]:
    """List the tables, by the folder that each describes."""
    tables: dict[str, ListedFile] = {}
    for file in files:
        folder, _, name = file.relative.rpartition("/")
        if name in _TABLES and folder in tables:
            raise UsageError(
                f"{tables[folder].path} and {file.path} describe the files of one folder", help="remove one of them"
            )
        if name in _TABLES:
            tables[folder] = file
    return tables


def _find_table(tables: dict[str, ListedFile], relative: str) -> ListedFile | None:
    """Find the table in the folder of a file, or in the nearest one above it."""
    if not tables:
        return None
    folder = posixpath.dirname(relative)
    while folder not in tables:
        if not folder:
            return None
        folder = posixpath.dirname(folder)
    return tables[folder]


def _make_side_file(file: ListedFile, extension: str) -> SideFile:
    return SideFile(extension, file.path, file.num_bytes, file.version)


def _split_by_folder(samples: list[ListedFile]) -> dict[str, list[ListedFile]]:
    """Group files by the split that their first folder names, if those of all files name one, and one is `train`."""
    splits: dict[str, list[ListedFile]] = {}
    for file, name in zip(samples, split_by_folder([file.relative for file in samples]), strict=True):
        splits.setdefault(name, []).append(file)
    return splits


def _cut_extension(relative: str) -> str:
    extension = get_extension(relative)
    return relative[: len(relative) - len(extension) - 1] if extension else relative


_MAX_SAMPLED = 256


def name_content(extension: str) -> str:
    """Return the column of the content of files with an extension.

    >>> name_content("jpg"), name_content("wav"), name_content("")
    ('image', 'wav', 'file')
    """
    return IMAGE if extension in IMAGE_EXTENSIONS else extension or "file"


def open_file(part: FilePart, schema: pa.Schema) -> SampleReader:
    """Open a file for reading."""
    return SampleReader(part.read, part.file, schema)


def plan_columns(read: Read, files: Sequence[SourceFile], wanted: WantedColumns) -> pa.Schema:  # noqa: ARG001
    """Plan the columns of a folder of samples, from all names of files and a sample of their descriptions."""
    extensions = dict.fromkeys(get_extension(file.relative) for file in files)
    contents = {
        name_content(extension): ANY_IMAGE if name_content(extension) == IMAGE else extension
        for extension in extensions
    }
    has_label = _have_classes(files)
    refuse_strange_tables(files)
    records = [_decode(describe_file(file, has_label=has_label)) for file in _choose_spread(files)]
    types = infer_field_types([{key: value for key, value in record.items() if key != read.text} for record in records])
    has_text = any(isinstance(record.get(read.text), str) for record in records)
    if not has_text and read.text != TEXT:
        names = list(dict.fromkeys(key for record in records for key in record if key != KEY))
        nearest = find_nearest(read.text, names)
        raise UsageError(
            f"text: nothing that describes the files is called {read.text!r}",
            help=f'did you mean "{nearest}"?' if nearest else f"there are {', '.join(names) or 'only the files'}",
        )
    fields = [pa.field(ORIGIN, ORIGIN_TYPE)]
    if has_text:
        fields.append(make_member_field(TEXT, TEXT_TYPE, read.text if read.text in SIDE_EXTENSIONS else "txt"))
    fields.append(pa.field(KEY, TEXT_TYPE))
    fields += [make_member_field(name, pa.large_binary(), extension) for name, extension in contents.items()]
    for name, (kind, why) in types.items():
        if name != KEY and name not in contents:
            field = make_field(name, without_nulls(kind), why)
            member = LABEL_MEMBER if name == LABEL and has_label else name if name in SIDE_EXTENSIONS else None
            fields.append(field if member is None else field.with_metadata({**(field.metadata or {}), MEMBER: member}))
    fields.append(make_field(OTHER_FIELDS, *REST))
    return _choose_columns(pa.schema(fields, {CARRIES_ALL: b""}), read, contents)


def _choose_columns(schema: pa.Schema, read: Read, contents: dict[str, str]) -> pa.Schema:
    """Leave only the columns that the recipe names, if it names any, and the content."""
    if not read.columns:
        return schema
    for name in read.columns:
        if name not in schema.names:
            raise UsageError(f"columns: the files have no {name!r}", help=f"there are {', '.join(schema.names[1:])}")
    names = {ORIGIN, TEXT, *contents, *read.columns}
    return pa.schema([field for field in schema if field.name in names])


def _have_classes(files: Sequence[SourceFile]) -> bool:
    """Whether the folders of files are classes: no table describes the files, and there are at least two folders."""
    if any(side.extension == TABLE for file in files for side in file.side_files):
        return False
    classes = {find_class(file) for file in files}
    return len(classes) > 1 and None not in classes


def _choose_spread(files: Sequence[SourceFile]) -> list[SourceFile]:
    count = min(len(files), _MAX_SAMPLED)
    return [files[number * len(files) // count] for number in range(count)]


def _decode(described: dict[str, Any] | QuarantinedRecord) -> dict[str, Any]:
    if isinstance(described, QuarantinedRecord):
        return {}
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(described))
    return decoded


_FILE_NAME = "file_name"
_decode_row = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def describe_file(file: SourceFile, *, has_label: bool) -> dict[str, Any] | QuarantinedRecord:
    """Return what is known of a file, as values that can be encoded as JSON; or the reason why it cannot be used."""
    described: dict[str, Any] = {KEY: make_key(file.relative)}
    if has_label:
        described[LABEL] = find_class(file)
    for side in file.side_files:
        if side.extension == TABLE:
            described |= _find_row(side, file.path)
            continue
        content = _read_unchanged(side.path, side.num_bytes, side.version)
        try:
            text = content.decode()
            described[side.extension] = (
                msgspec.Raw(msgspec.json.format(bytes(msgspec.json.decode(content, type=msgspec.Raw)), indent=-1))
                if side.extension == "json"
                else text
            )
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
            reason = "invalid_utf8" if isinstance(error, UnicodeDecodeError) else "invalid_json"
            message = f"{posixpath.basename(side.path)}: {error}"
            return QuarantinedRecord(file.id, 0, 0, reason, message, content[:1024], len(content))
    return described


def get_text(described: dict[str, Any], name: str) -> str | None:
    """Return the text that describes a file; None if it has none."""
    value: Any = described.get(name)
    if isinstance(value, msgspec.Raw):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return None
    return value if isinstance(value, str) else None


def refuse_strange_tables(files: Iterable[SourceFile]) -> None:
    """Raise `UsageError` if tables describe no file at all: their captions would be lost without a word."""
    table = None
    for file in files:
        for side in file.side_files:
            if side.extension == TABLE:
                if _find_line(side, file.path) is not None:
                    return
                table = table or side
    rows = {} if table is None else _load_table(table.path, table.num_bytes, table.version)
    if table is not None and rows:
        raise UsageError(
            f"{table.path}: no row describes one of the files; the first is for {next(iter(rows))!r}",
            help=f"{_FILE_NAME} is the path of a file, from the folder of the table",
        )


def _find_line(table: SideFile, path: str) -> bytes | None:
    rows = _load_table(table.path, table.num_bytes, table.version)
    folder = posixpath.dirname(table.path)
    return rows.get(path[len(folder) + 1 :] if folder else path)


def _find_row(table: SideFile, path: str) -> dict[str, msgspec.Raw]:
    line = _find_line(table, path)
    if line is None:
        return {}
    row = _decode_row(line)
    row.pop(_FILE_NAME)
    return row


def _read_unchanged(path: str, num_bytes: int, version: str) -> bytes:
    """Read a file that describes others; raises `SourceChangedError` if it is not the one of the plan."""
    check_unchanged(path, num_bytes, version)
    with open_input(path) as stream:
        return stream.read()


@lru_cache(maxsize=16)
def _load_table(path: str, num_bytes: int, version: str) -> dict[str, bytes]:
    """Load a table: each row as a JSON object, by the name of its file."""
    content = _read_unchanged(path, num_bytes, version)
    rows: dict[str, bytes] = {}
    for number, line in enumerate(_split_rows(path, content), 1):
        if not line.strip():
            continue
        try:
            name = posixpath.normpath(msgspec.json.decode(_decode_row(line)[_FILE_NAME], type=str))
        except (msgspec.DecodeError, LookupError, RecursionError) as error:
            raise UsageError(
                f"{path}: row {number} cannot be used: {error!s:.200}",
                help=f'each row is an object such as {{"{_FILE_NAME}": "0001.jpg", "{TEXT}": "a cat"}}',
            ) from error
        if name in rows:
            raise UsageError(f"{path}: row {number} describes {name!r}, as a row before it does", help="keep one row")
        rows[name] = line
    return rows


def _split_rows(path: str, content: bytes) -> list[bytes]:
    if path.endswith(".jsonl"):
        return content.split(b"\n")
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        return [msgspec.json.encode({key: value for key, value in row.items() if key is not None}) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: the table cannot be read: {error}", help="write it as metadata.jsonl") from error


class SampleBuilder:
    """Collects files, and makes a batch of them."""

    def __init__(self, read: Read, schema: pa.Schema) -> None:
        self._schema = schema
        self._text = read.text
        self._max_record_bytes = read.max_record_bytes
        self._contents = [field.name for field in schema if is_bytes(field.type)]
        self._has_label = LABEL in schema.names and find_member(schema.field(LABEL)) == LABEL_MEMBER
        kinds = {
            field.name: JSON_TYPE if is_json(field) else field.type
            for field in schema
            if field.name not in (ORIGIN, TEXT, OTHER_FIELDS, *self._contents)
        }
        self._decoder = RecordColumns(kinds, skipped={self._text} if TEXT in schema.names else ())
        self._clear()

    def add(self, file: SourceFile, content: bytes) -> bool:
        """Add a file with its content; it always fits."""
        self.num_bytes += len(content) + 1
        problem = self._find_problem(file, content)
        if problem is not None:
            self._quarantined.append(problem)
        return True

    def _find_problem(self, file: SourceFile, content: bytes) -> QuarantinedRecord | None:
        """Add a file, or return it as a quarantined record with the reason."""
        if not content:
            return QuarantinedRecord(file.id, 0, 0, "empty_file", "the file has no bytes")
        if len(content) > self._max_record_bytes:
            message = f"{len(content)} bytes, more than max_record_bytes ({self._max_record_bytes})"
            return QuarantinedRecord(file.id, 0, 0, "too_large", message, None, len(content))
        described = describe_file(file, has_label=self._has_label)
        if isinstance(described, QuarantinedRecord):
            return described
        if TEXT in self._schema.names:
            text = get_text(described, self._text)
            if text is None:
                message = f"nothing that describes the file is called {self._text!r}"
                return QuarantinedRecord(file.id, 0, 0, "missing_text", message, None, len(content))
            self._texts.append(text)
        self._files.append(file.id)
        self._lines.append(msgspec.json.encode(described))
        self._bytes.append((name_content(get_extension(file.relative)), content))
        return None

    def take(self) -> CellBatch:
        """Return the samples that were added since the last call."""
        arrays: dict[str, pa.Array] = self._decoder.decode(self._lines)
        if TEXT in self._schema.names:
            arrays[TEXT] = pa.array(self._texts, TEXT_TYPE)
        for name in self._contents:
            values = [content if column == name else None for column, content in self._bytes]
            arrays[name] = pa.array(values, self._schema.field(name).type)
        counters: dict[str, Any] = {}
        if OTHER_FIELDS in self._schema.names:
            counters = {OTHER_FIELDS: len(self._files) - arrays[OTHER_FIELDS].null_count}
        files, positions = pa.array(self._files, pa.uint64()), np.zeros(len(self._files), np.int64)
        cell = CellBatch(0, build_batch(self._schema, files, positions, arrays), 0, self._quarantined)
        cell.counters.update({name: count for name, count in counters.items() if count})
        self._clear()
        return cell

    def _clear(self) -> None:
        self.num_bytes = 0
        self._files: list[int] = []
        self._lines: list[bytes] = []
        self._texts: list[str] = []
        self._bytes: list[tuple[str, bytes]] = []
        self._quarantined: list[QuarantinedRecord] = []


class SampleReader:
    """Reads a file as one sample: one cell of any size."""

    can_cut = True

    def __init__(self, read: Read, file: SourceFile, schema: pa.Schema) -> None:
        self._read = read
        self._file = file
        self._schema = schema

    def cell_sizes(self) -> list[int]:
        return [self._file.num_bytes]

    def read_cells(self, first: int = 0, stop: int | None = None) -> Iterator[CellBatch]:
        if first > 0 or stop == 0:
            return
        builder = SampleBuilder(self._read, self._schema)
        with open_input(self._file.path) as stream:
            # One byte more tells that a file is too large, without reading all of it.
            builder.add(self._file, stream.read(self._read.max_record_bytes + 1))
        yield builder.take()
