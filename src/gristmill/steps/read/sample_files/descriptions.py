"""What describes a file that is a sample: its row in the table of its folder, the files beside it, its class.

All of it becomes one JSON object for each sample, so that types are inferred and checked as those of JSON records are.
A table is read once by each process: about 200 bytes of memory a row.
"""

from __future__ import annotations

import csv
import io
import posixpath
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.media import LABEL
from gristmill.core.records import KEY, TEXT, QuarantinedRecord
from gristmill.steps.read.sample_files.folder import TABLE, find_class, make_key
from gristmill.storage.files import check_unchanged, open_input

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.core.records import SideFile, SourceFile

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
            described[side.extension] = _parse_json(content) if side.extension == "json" else text
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
        except msgspec.DecodeError:
            return None
    return value if isinstance(value, str) else None


def _parse_json(content: bytes) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.format(bytes(msgspec.json.decode(content, type=msgspec.Raw)), indent=-1))


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
