"""Blocks of rows for a search: Arrow batches, columns of Parquet, JSON lines, or records that are read one by one.

The functions of a block run in threads. Bytes are looked through for a literal first (`literals.py`): only JSON lines
that may have it become records, so that a gigabyte takes the time of a search, not of a parser.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.records import TEXT
from gristmill.report.plain_json import replace_surrogates, show_record
from gristmill.report.view.literals import find_bytes, find_escapes
from gristmill.report.view.rows import RowBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_ROWS_AT_ONCE = 256
_LINE_END = ord("\n")


def make_record_blocks(records: Iterable[Mapping[str, Any]], first: int = 0) -> Iterator[RowBlock]:
    """Make blocks of records that are read one after another."""
    remaining = iter(records)
    while group := list(islice(remaining, _ROWS_AT_ONCE)):
        yield RowBlock(first, len(group), partial(_show_group, group))
        first += len(group)


def _show_group(records: list[Mapping[str, Any]], _: bytes | None) -> pa.Array:
    return pa.array([show_for_search(record) for record in records], pa.large_string())


def show_for_search(record: Mapping[str, Any]) -> str:
    """Show a record as the text that a search sees."""
    try:
        text = show_record(record)
        return text if text.isascii() else replace_surrogates(text)
    except RecursionError:  # nested too deeply to be shown
        return ""


def make_line_blocks(
    chunks: Iterable[bytes], decode: Callable[[bytes], Mapping[str, Any]], first: int = 0
) -> Iterator[RowBlock]:
    """Make blocks of JSON lines; each chunk ends with a line, without its line break."""
    for chunk in chunks:
        num_rows = int(np.count_nonzero(np.frombuffer(chunk, np.uint8) == _LINE_END)) + 1
        yield RowBlock(first, num_rows, partial(_show_lines, chunk, num_rows, decode))
        first += num_rows


def _show_lines(
    chunk: bytes, num_rows: int, decode: Callable[[bytes], Mapping[str, Any]], literal: bytes | None
) -> pa.Array:
    """Show the lines that may have the literal; the others are null."""
    if literal is None:
        return _show_group([decode(line) for line in chunk.split(b"\n")], None)
    data = np.frombuffer(chunk, np.uint8)
    positions = np.concatenate([find_bytes(data, literal), find_escapes(chunk, literal)])
    if not len(positions):  # most chunks end here, without being cut into lines
        return pa.nulls(num_rows, pa.large_string())
    ends = np.append(np.flatnonzero(data == _LINE_END), len(data))
    texts: list[str | None] = [None] * num_rows
    for number in np.unique(np.searchsorted(ends, positions)).tolist():
        start = int(ends[number - 1]) + 1 if number else 0
        texts[number] = show_for_search(decode(chunk[start : int(ends[number])]))
    return pa.array(texts, pa.large_string())


def make_batch_block(batch: pa.RecordBatch, first: int, *, has_text: bool) -> RowBlock:
    """Make a block of an Arrow batch that was not checked yet."""
    return RowBlock(first, batch.num_rows, partial(_load_text if has_text else _show_records, batch))


def _load_text(batch: pa.RecordBatch, literal: bytes | None) -> pa.Array:
    text = batch.column(TEXT)
    if literal is not None and not _may_have(text, literal):
        return pa.nulls(len(text), text.type)
    text.validate(full=True)
    return text


def _may_have(texts: pa.Array, literal: bytes) -> bool:
    """Whether a text may have a literal. The bytes are looked through as one, whatever the offsets say."""
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        return True
    data = texts.buffers()[2]
    return data is not None and len(find_bytes(np.frombuffer(data, np.uint8), literal)) > 0


def _show_records(batch: pa.RecordBatch, _: bytes | None) -> pa.Array:
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


def _read_texts(path: Path, number: int, literal: bytes | None) -> pa.Array:
    import pyarrow.parquet as pq  # noqa: PLC0415

    column = pq.ParquetFile(str(path)).read_row_group(number, columns=[TEXT], use_threads=False).column(TEXT)
    if literal is not None and not any(_may_have(chunk, literal) for chunk in column.chunks):
        return pa.nulls(len(column), column.type)
    return column.cast(pa.large_string()).combine_chunks()
