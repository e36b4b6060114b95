"""Benchmark files as records: JSON, JSON lines, CSV and Parquet. They are small, and read whole by the plan."""

from __future__ import annotations

import codecs
import csv
import io
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.core.errors import CorruptStreamError, UsageError
from gristmill.storage.codecs.compression import decompress, find_codec, strip_codec
from gristmill.storage.files import open_input

if TYPE_CHECKING:
    from gristmill.storage.codecs.compression import Codec
    from gristmill.storage.listing.paths import ListedFile

MAX_BYTES = 1 << 30
"""The largest benchmark that is read. Larger files are no benchmark: someone has named a corpus."""


def read_benchmark_file(file: ListedFile) -> tuple[bytes, list[dict[str, Any]]]:
    """Read a file: its content as it is stored, and its records.

    Raises:
        UsageError: It is too large, damaged, or of a format that is not known.
    """
    try:
        with open_input(file.path) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"decontaminate: cannot read {file.path}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"decontaminate: {file.path} is larger than {MAX_BYTES >> 20} MiB, which no benchmark is",
            help="to remove copies of whole documents, use deduplicate: {against: …}",
        )
    try:
        records = _parse_records(file.path, content)
    except (ValueError, RecursionError, csv.Error, pa.ArrowException, CorruptStreamError) as error:
        raise UsageError(f"decontaminate: {file.path} cannot be read: {error}") from error
    return content, records


def _parse_records(path: str, content: bytes) -> list[dict[str, Any]]:
    if path.endswith(".parquet"):
        records: list[dict[str, Any]] = pq.read_table(pa.BufferReader(content)).to_pylist()
        return records
    codec = find_codec(path)
    plain = content if codec is None else _decompress(content, codec)
    plain = plain.removeprefix(codecs.BOM_UTF8)
    name = strip_codec(path).lower()
    if name.endswith(".csv"):
        return _parse_csv(plain.decode())
    if plain.lstrip()[:1] == b"[":
        return msgspec.json.decode(plain, type=list[dict[str, Any]])
    if name.endswith(".json") and (listed := _find_list(plain)):
        return listed
    decoder = msgspec.json.Decoder(dict[str, Any])
    parsed = []
    for number, line in enumerate(plain.split(b"\n"), start=1):
        if line.strip():
            try:
                parsed.append(decoder.decode(line))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    return parsed


def _parse_csv(text: str) -> list[dict[str, Any]]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    usual = csv.field_size_limit(MAX_BYTES)  # contexts of benchmarks may be books
    try:
        records: list[dict[str, Any]] = []
        for row in rows:
            if None in row:
                raise ValueError(f"line {rows.line_num} has more values than the header has names")
            records.append(dict(row))
    finally:
        csv.field_size_limit(usual)
    return records


def _find_list(plain: bytes) -> list[dict[str, Any]]:
    """Find the records of a JSON object that holds one list of them, such as `examples`; empty if there is none."""
    try:
        whole = msgspec.json.decode(plain, type=dict[str, Any])
    except ValueError:
        return []
    lists = [value for value in whole.values() if isinstance(value, list) and all(isinstance(x, dict) for x in value)]
    return lists[0] if len(lists) == 1 else []


def _decompress(content: bytes, codec: Codec) -> bytes:
    """Decompress a file, and stop where it would become larger than a benchmark can be."""
    chunks, num_bytes = [], 0
    for chunk in decompress(io.BytesIO(content), codec):
        num_bytes += len(chunk)
        if num_bytes > MAX_BYTES:
            raise ValueError(f"it expands to more than {MAX_BYTES >> 20} MiB")
        chunks.append(chunk)
    return b"".join(chunks)
