"""Blocks of rows for a search: Arrow batches, columns of Parquet, JSON lines, or records that are read one by one.

The functions of a block run in threads. JSON lines are searched before they are decoded: only lines that may have the
text become records, so that a gigabyte takes the time of a search, not of a parser.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.core.records import TEXT
from gristmill.report.plain_json import show_record
from gristmill.report.view.rows import RowBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_ROWS_AT_ONCE = 256
_ESCAPED = r"\\u(?:00[0-7]|212|017)"
"""The codes that JSON may write for letters of ASCII, and for those outside of it that are capitals of k and s."""
_CAPITALS = {"k": "\u212a", "s": "\u017f"}


def make_record_blocks(records: Iterable[Mapping[str, Any]], first: int = 0) -> Iterator[RowBlock]:
    """Make blocks of records that are read one after another."""
    remaining = iter(records)
    while group := list(islice(remaining, _ROWS_AT_ONCE)):
        yield RowBlock(first, len(group), partial(_show_group, group))
        first += len(group)


def _show_group(records: list[Mapping[str, Any]], _: str | None) -> pa.Array:
    return pa.array([show_for_search(record) for record in records], pa.large_string())


def show_for_search(record: Mapping[str, Any]) -> str:
    """Show a record as the text that a search sees."""
    try:
        return show_record(record).encode(errors="replace").decode()
    except RecursionError:  # nested too deeply to be shown
        return ""


def make_line_blocks(
    chunks: Iterable[bytes], decode: Callable[[bytes], Mapping[str, Any]], first: int = 0
) -> Iterator[RowBlock]:
    """Make blocks of JSON lines; each chunk ends with a line, without its line break."""
    for chunk in chunks:
        num_rows = chunk.count(b"\n") + 1
        yield RowBlock(first, num_rows, partial(_show_lines, chunk, num_rows, decode))
        first += num_rows


def _show_lines(
    chunk: bytes, num_rows: int, decode: Callable[[bytes], Mapping[str, Any]], literal: str | None
) -> pa.Array:
    """Show the lines that may have the literal; the others are null."""
    if literal is None:
        return _show_group([decode(line) for line in chunk.split(b"\n")], None)
    if not _may_have([chunk], literal)[0]:  # most chunks end here, without being cut into lines
        return pa.nulls(num_rows, pa.large_string())
    lines = chunk.split(b"\n")
    pairs = zip(lines, _may_have(lines, literal), strict=True)
    return pa.array([show_for_search(decode(line)) if may else None for line, may in pairs], pa.large_string())


def _may_have(contents: list[bytes], literal: str) -> list[bool]:
    """Tell which JSON texts may have a literal, however they write its letters."""
    import pyarrow.compute as pc  # noqa: PLC0415  (a first page needs none of it)

    expressions = [f"(?i){re.escape(literal)}", _ESCAPED]
    expressions += [capital for letter, capital in _CAPITALS.items() if letter in literal.lower()]
    array = pa.array(contents, pa.large_binary())
    # One after another: each is found by its first byte, which an alternative of all would not be.
    answers = [pc.match_substring_regex(array, expression).to_pylist() for expression in expressions]
    return [any(answer) for answer in zip(*answers, strict=True)]


def make_batch_block(batch: pa.RecordBatch, first: int, *, has_text: bool) -> RowBlock:
    """Make a block of an Arrow batch that was not checked yet."""
    return RowBlock(first, batch.num_rows, partial(_load_text if has_text else _show_records, batch))


def _load_text(batch: pa.RecordBatch, _: str | None) -> pa.Array:
    text = batch.column(TEXT)
    text.validate(full=True)
    return text


def _show_records(batch: pa.RecordBatch, _: str | None) -> pa.Array:
    batch.validate(full=True)
    return _show_group(batch.to_pylist(), None)


def make_parquet_blocks(path: Path, first: int) -> Iterator[RowBlock]:
    """Make blocks of the texts of a Parquet file, one for each row group."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    metadata = pq.read_metadata(str(path))
    for number in range(metadata.num_row_groups):
        num_rows = metadata.row_group(number).num_rows
        yield RowBlock(first, num_rows, partial(_read_texts, path, number))
        first += num_rows


def _read_texts(path: Path, number: int, _: str | None) -> pa.Array:
    import pyarrow.parquet as pq  # noqa: PLC0415

    column = pq.ParquetFile(str(path)).read_row_group(number, columns=[TEXT], use_threads=False).column(TEXT)
    return column.cast(pa.large_string()).combine_chunks()
