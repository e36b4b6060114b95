"""A search in the rows of a collection: text, regular expressions or token ids, with results as they come.

Blocks of rows are searched in two threads. Their bytes are looked through for a literal that every match has, if there
is one; what may have it is searched by RE2, without regard to case. It needs no more time for any expression than in
proportion to the text, so that an expression from an address cannot keep the server busy for ever.
"""

from __future__ import annotations

import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import DamagedDatasetError, GristmillError, UsageError
from gristmill.report.view.literals import find_literal, find_regex_literal, remove_groups
from gristmill.shards.formats.base import READ_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from concurrent.futures import Future

    from gristmill.report.view.rows import RowBlock, Rows, Selection

SearchKind = Literal["text", "regex", "token"]
SEARCH_KINDS = get_args(SearchKind)
NUM_THREADS = 2
_SNIPPET = 60
_MAX_MATCH = 200
_MAX_BLOCK_HITS = 200
"""Hits of one block that are described; a search shows no more in all."""

Hit = dict[str, Any]


def search_rows(rows: Rows, selection: Selection, query: str, kind: SearchKind, start: int = 0) -> Iterator[Hit | int]:
    """Yield the hits from a row on, each with the text around it; a number says up to which row all was searched.

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
    blocks: Iterator[RowBlock], find: Callable[[RowBlock, Selection, int], list[Hit]], selection: Selection, start: int
) -> Iterator[Hit | int]:
    waiting: deque[tuple[RowBlock, Future[list[Hit]]]] = deque()
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


def _collect_hits(block: RowBlock, future: Future[list[Hit]]) -> Generator[Hit | int, None, int]:
    yield from future.result()
    end = block.first_row + block.num_rows
    yield end
    return end


def _make_finder(query: str, kind: SearchKind) -> Callable[[RowBlock, Selection, int], list[Hit]]:
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


def _find_text(block: RowBlock, selection: Selection, start: int, expression: str, literal: bytes | None) -> list[Hit]:
    texts = block.load_texts(literal)
    matching = pc.match_substring_regex(texts, expression).fill_null(False).to_numpy(zero_copy_only=False)
    indices = _choose_hits(matching, block, selection, start)
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
    return hits


def _find_token(block: RowBlock, selection: Selection, start: int, token: int) -> list[Hit]:
    if block.find_token is None:
        raise UsageError("these rows are no tokens", help="search for text")
    indices = _choose_hits(block.find_token(token), block, selection, start)
    return [
        {"number": block.first_row + index, "before": "", "match": f"id {token}", "after": ""}
        for index in indices.tolist()
    ]


def _choose_hits(matching: Any, block: RowBlock, selection: Selection, start: int) -> Any:
    """Choose the matching rows that the filters choose, too."""
    indices = np.flatnonzero(matching)
    if len(indices):
        indices = indices[
            selection.mask(block.first_row, block.num_rows)[indices] & (indices >= start - block.first_row)
        ]
    return indices[:_MAX_BLOCK_HITS]
