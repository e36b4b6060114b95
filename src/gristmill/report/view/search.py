"""A search in the rows of a collection: text, regular expressions or token ids, with results as they come.

Blocks of rows (Arrow batches, columns of Parquet, JSON lines, or records that are read one by one) are searched in two
threads. Their bytes are searched for a literal that every match has, if there is one: two bytes of it are compared by
NumPy in pieces that fit a core's cache, 2 GB/s a core, and the rest only where both fit. A literal holds only
characters that are written the same way in a column of text, in a line of JSON and in a record that is shown as JSON:
words, spaces and some marks between them. So bytes without it are without a match, and only JSON lines that may match
are parsed.

What may have it is searched by RE2, without regard to case. Its time is in proportion to the text for any expression,
so that one from an address cannot keep the server busy forever.
"""

from __future__ import annotations

import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import DamagedDatasetError, GristmillError, UsageError
from gristmill.core.records import TEXT
from gristmill.report.markup import replace_surrogates, show_record
from gristmill.report.view.rows import RowBlock
from gristmill.shards.formats.base import READ_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from gristmill.report.view.rows import Rows, Selection


SearchKind = Literal["text", "regex", "token"]
SEARCH_KINDS = get_args(SearchKind)
NUM_THREADS = 2
_SNIPPET = 60
_MAX_MATCH = 200
_MAX_BLOCK_HITS = 200
"""Hits of one block that are described; a page shows no more in all. The others are counted."""

Hit = dict[str, Any]


class SearchProgress(NamedTuple):
    """The progress of a search: up to which row, and how many rows were found since the last of these."""

    row: int
    num_found: int


_WINDOW = 1 << 17
_CASE = 0x20
"""The bit that capitals of ASCII do not have. Bytes are compared with it set, so some others seem equal, too."""
_RUN = re.compile(r"\w(?:[\w .,;'()-]*\w)?")
"""Marks between values of shown JSON are never within a run: spaces follow a colon or a space, commas end a line."""
_FOLDED_OUTSIDE = re.compile(r"[KkSs\u212a\u017f]+")
"""The letters of ASCII that have a third form outside of it, and those forms."""
_NUMBER = re.compile(r"[0-9.eE-]*")
_COMMON_FIRST = b" etaoinsrhldcumfpgwybvkxjqz"
_CLASS = r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"
_TOKEN = re.compile(rf"\\Q|\\.|{_CLASS}|\{{[^}}]*\}}|.", re.DOTALL)
_KNOWN_ESCAPES = frozenset("dDsSwWbBAznrtfv")
_GROUP = re.compile(rf"\\.|{_CLASS}|\((?:\?P?<[^>=!]*>|(?!\?))", re.DOTALL)
_ROWS_AT_ONCE = 256
_LINE_END = ord("\n")


def search_rows(
    rows: Rows, selection: Selection, query: str, kind: SearchKind, start: int = 0
) -> Iterator[Hit | SearchProgress]:
    """Yield the hits from a row on, each with the text around it, and how far the search is.

    Raises:
        UsageError: The query is no regular expression or no token id.
    """
    find = _make_finder(query, kind)
    return _search_blocks(_list_blocks(rows, selection, start), find, selection, start)


def _list_blocks(rows: Rows, selection: Selection, start: int) -> Iterator[RowBlock]:
    last = -1
    for first, stop in selection.spans(start):
        for block in rows.read_blocks(first, stop):
            if block.first_row > last:  # a block may reach into the next range
                last = block.first_row
                yield block


def _search_blocks(
    blocks: Iterator[RowBlock],
    find: Callable[[RowBlock, Selection, int], tuple[list[Hit], int]],
    selection: Selection,
    start: int,
) -> Iterator[Hit | SearchProgress]:
    waiting: deque[tuple[RowBlock, Future[tuple[list[Hit], int]]]] = deque()
    pool = ThreadPoolExecutor(NUM_THREADS)
    searched = start
    try:
        for block in blocks:
            waiting.append((block, pool.submit(find, block, selection, start)))
            if len(waiting) > 2 * NUM_THREADS:
                searched = yield from _collect_hits(*waiting.popleft())
        while waiting:
            searched = yield from _collect_hits(*waiting.popleft())
    except GristmillError:
        raise
    except READ_ERRORS as error:
        raise DamagedDatasetError(f"what follows row {searched:,} cannot be read: {error}") from error
    finally:  # the browser may have gone elsewhere
        pool.shutdown(wait=False, cancel_futures=True)


def _collect_hits(block: RowBlock, future: Future[tuple[list[Hit], int]]) -> Generator[Hit | SearchProgress, None, int]:
    hits, num_found = future.result()
    yield from hits
    end = block.first_row + block.num_rows
    yield SearchProgress(end, num_found)
    return end


def _make_finder(query: str, kind: SearchKind) -> Callable[[RowBlock, Selection, int], tuple[list[Hit], int]]:
    if kind == "token":
        if not query.isdecimal():
            raise UsageError(f"{query!r} is no token id", help="search for text instead, or give a number")
        return lambda block, selection, start: _find_token(block, selection, start, int(query))
    expression = f"(?i){remove_groups(query) if kind == 'regex' else re.escape(query)}"
    try:
        pc.match_substring_regex(pa.array([""]), expression)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"{query!r} is no regular expression: {error}", help="expressions are those of RE2, without look-around"
        ) from None
    literal = find_regex_literal(query) if kind == "regex" else find_literal(query)
    return lambda block, selection, start: _find_text(block, selection, start, expression, literal)


def _find_text(
    block: RowBlock, selection: Selection, start: int, expression: str, literal: bytes | None
) -> tuple[list[Hit], int]:
    texts = block.load_texts(literal)
    matching = pc.match_substring_regex(texts, expression).fill_null(False).to_numpy(zero_copy_only=False)
    indices, num_found = _choose_hits(matching, block, selection, start)
    chosen = texts.take(pa.array(indices))
    offsets = pc.find_substring_regex(chosen, expression).to_pylist()
    matches = pc.extract_regex(chosen, f"(?P<match>{expression})").field("match").to_pylist()
    hits = []
    for index, text, offset, match in zip(indices.tolist(), chosen.to_pylist(), offsets, matches, strict=True):
        begin = len(text.encode()[:offset].decode(errors="replace"))
        end = begin + len(match)
        hits.append(
            {
                "number": block.first_row + index,
                "before": text[max(0, begin - _SNIPPET) : begin],
                "match": match[:_MAX_MATCH],
                "after": text[end : end + _SNIPPET],
            }
        )
    return hits, num_found


def _find_token(block: RowBlock, selection: Selection, start: int, token: int) -> tuple[list[Hit], int]:
    if block.find_token is None:
        raise UsageError("these rows are no tokens", help="search for text")
    indices, num_found = _choose_hits(block.find_token(token), block, selection, start)
    snippet = {"before": "", "match": f"id {token}", "after": ""}
    return [{"number": block.first_row + index, **snippet} for index in indices.tolist()], num_found


def _choose_hits(matching: Any, block: RowBlock, selection: Selection, start: int) -> tuple[Any, int]:
    """Choose the matching rows that the filters choose, too: the first of them, and how many there are."""
    indices = np.flatnonzero(matching)
    if len(indices):
        indices = indices[
            selection.mask(block.first_row, block.num_rows)[indices] & (indices >= start - block.first_row)
        ]
    return indices[:_MAX_BLOCK_HITS], len(indices)


def find_literal(text: str) -> bytes | None:
    r"""Find the longest literal that every text with `text` has, in any case; None: there is none.

    >>> find_literal("warning, tea"), find_literal('say "no more"'), find_literal("1.5e3")
    (b'warning, tea', b'no more', None)
    >>> find_literal("a risky step")
    b'a ri'
    """
    parts = (
        part
        for piece in _FOLDED_OUTSIDE.split(re.sub(r"  +", "\n", text))
        for part in _RUN.findall("".join(char if _has_one_form(char) else "\n" for char in piece))
    )
    usable = (part.encode() for part in parts if not _NUMBER.fullmatch(part))
    longest = max(usable, key=len, default=b"")
    return longest if len(longest) > 1 else None


def find_regex_literal(expression: str) -> bytes | None:
    r"""Find the longest literal that every match of an expression has; None: none is known.

    >>> find_regex_literal(r"colou?r\s+of (?:the|a) house[s]?"), find_regex_literal("this|that")
    (b'colo', None)
    >>> find_regex_literal(r"\bhttps?://(www\.)?wiki[pm]edia\.org")
    b'edia.org'
    """
    run = ""
    depth = 0
    for token in _TOKEN.findall(expression):
        if token in "()":
            depth += 1 if token == "(" else -1
            run += "\n"
        elif token == r"\Q" or (token == "|" and not depth):
            return None
        elif token[0] == "\\" and token[1].isalnum() and token[1] not in _KNOWN_ESCAPES:
            return None  # a code, or something else that has further characters
        elif depth:
            continue
        elif token[0] in "*?{":
            run = run[:-1] + "\n"
        elif token[0] in "+.^$[" or (token[0] == "\\" and token[1].isalnum()):
            run += "\n"
        else:
            run += token[-1]
    return find_literal(run)


def remove_groups(expression: str) -> str:
    r"""Make all groups of an expression plain: only the whole match is shown, and groups would have to be named.

    >>> remove_groups(r"(a|[(]b)\((?P<name>c)(?i:d)")
    '(?:a|[(]b)\\((?:c)(?i:d)'
    """
    return _GROUP.sub(lambda match: "(?:" if match[0].startswith("(") else match[0], expression)


def find_bytes(data: NDArray[np.uint8], literal: bytes) -> NDArray[np.int64]:
    """Find where some bytes may begin with a literal of two bytes or more, in any case.

    >>> find_bytes(np.frombuffer(b"Warning, tea. WARNING.", np.uint8), b"warning").tolist()
    [0, 14]
    """
    folded = [byte | _CASE for byte in literal]
    first, second = sorted(sorted(range(len(folded)), key=lambda place: _rate_rarity(folded[place]))[-2:])
    positions = []
    for begin, window in _list_windows(data, len(literal)):
        low = np.bitwise_or(window, _CASE)
        count = len(window) - len(literal) + 1
        may_begin = low[first : first + count] == folded[first]
        may_begin &= low[second : second + count] == folded[second]
        if may_begin.any():
            places = np.flatnonzero(may_begin)
            for offset, byte in enumerate(folded):
                places = places[low[places + offset] == byte]
            positions.append(places + begin)
    return np.concatenate(positions) if positions else np.empty(0, np.int64)


def find_escapes(data: bytes, literal: bytes) -> NDArray[np.int64]:
    r"""Find where lines of JSON may write characters of a literal as codes: `\u0041` for a letter of ASCII.

    >>> find_escapes(rb"\n \u2019 \u0041", b"text").tolist()
    [10]
    """
    borders = np.array([0, len(data)], np.int64)
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(borders), pa.py_buffer(data)])
    has_codes = pc.match_substring_regex(whole, r"\\u00[0-7]" if literal.isascii() else r"\\u")[0].as_py()
    if not has_codes:
        return np.empty(0, np.int64)
    return find_bytes(np.frombuffer(data, np.uint8), rb"\u00" if literal.isascii() else rb"\u")


def _list_windows(data: NDArray[np.uint8], overlap: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """List pieces of some bytes, each with its position; what is as long as the overlap lies in one of them."""
    for begin in range(0, len(data) - overlap + 1, _WINDOW):
        yield begin, data[begin : begin + _WINDOW + overlap - 1]


def _has_one_form(char: str) -> bool:
    """Whether a character has one form, or two of ASCII, and JSON writes it as it is or as one code."""
    return char.isascii() or (char.upper() == char.lower() == char.casefold() == char and ord(char) < 0x10000)


def _rate_rarity(byte: int) -> int:
    place = _COMMON_FIRST.find(byte)
    return place if place >= 0 else len(_COMMON_FIRST)


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
    """Whether a text may have a literal. The bytes are searched as one, regardless of the offsets."""
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
