"""What the viewer's page can ask for, as plain data. No word of a request is ever a path of the disk."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, cast

import msgspec

from gristmill.core.checks import check_choice
from gristmill.core.errors import GristmillError, UsageError
from gristmill.report.view.column_queries import MISSING, can_query
from gristmill.report.view.describe import shorten_row
from gristmill.report.view.rows import Filters, ScoreRange, Selection, count_rows, read_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.report.view.rows import Rows
    from gristmill.report.view.search import SearchKind, SearchProgress


_MAX_ROWS = 100
_MAX_STEPS = 10_000_000
MAX_HITS = 200
"""Hits that are shown at once; all are counted."""
_SPAN = re.compile(r"([0-9]+)(?:-([0-9]+))?")

Words = dict[str, list[str]]
"""The words of a request, as `parse_qs` makes them."""


class Requests:
    """Answers about some collections of rows."""

    def __init__(self, collections: Mapping[str, Rows]) -> None:
        self.collections = collections
        self._lock = threading.Lock()  # readers keep state, and two browsers may ask at once

    def describe(self) -> list[dict[str, Any]]:
        """Describe all collections for the page."""
        return [
            {
                "name": name,
                "title": rows.title,
                "kind": rows.kind,
                "rows": None if rows.is_slow else count_rows(rows),
                "has_tokens": rows.has_tokens,
                "has_steps": rows.steps is not None,
                "scores": rows.score_names,
                "columns": {} if rows.queries is None or not can_query() else rows.queries.kinds,
                "missing": MISSING if rows.queries is not None and not can_query() else "",
            }
            for name, rows in self.collections.items()
        ]

    def read_rows(self, words: Words) -> dict[str, Any]:
        """Describe a page of rows that filters choose, or the rows of a training step, each in a few lines."""
        rows = self._get(words)
        count = min(max(1, get_number(words, "count", 50)), _MAX_ROWS)
        first = get_number(words, "at", 0)
        with self._lock:
            if "step" in words:
                return self._read_step(rows, words, first, count)
            row = get_number(words, "row", 0) if "row" in words else None
            filters = read_filters(words)
            return read_page(rows, filters, first, row, count, lambda number: self._shorten(rows, number))

    def _shorten(self, rows: Rows, number: int) -> dict[str, Any]:
        return shorten_row(describe_safely(rows, number))

    def read_record(self, words: Words) -> dict[str, Any]:
        """Describe one row with all that it holds."""
        rows, number = self._get(words), get_number(words, "row", 0)
        with self._lock:
            if number >= count_rows(rows):
                last = f"the last is {count_rows(rows) - 1:,}" if count_rows(rows) else "there are none"
                raise UsageError(f"there is no row {number:,}: they are counted from 0, and {last}")
            return describe_safely(rows, number)

    def describe_column(self, words: Words) -> dict[str, Any]:
        """Describe how the values of a column are spread."""
        queries = self._get(words).queries
        if queries is None:
            raise UsageError("these rows have no columns")
        return queries.describe_column(get_word(words, "column"))

    def _read_step(self, rows: Rows, words: Words, first: int, count: int) -> dict[str, Any]:
        """Describe rows of a step. Here pages are counted by their place in the step."""
        if rows.steps is None:
            raise UsageError("there is no order of training here", help="open a dataset")
        places = rows.steps.find_rows(
            get_number(words, "step", 0), get_number(words, "batch", 8, 1), get_number(words, "world", 1, 1)
        )
        first = max(0, min(first, (len(places) - 1) // count * count))
        shown = places[first : first + count]
        return {
            "rows": [{**self._shorten(rows, place.number), "step": msgspec.to_builtins(place)} for place in shown],
            "position": first,
            "total": len(places),
            "facets": {"split": [], "source": [], "reason": [], "scores": []},
            "note": rows.note,
        }

    def describe_mixture(self, words: Words) -> dict[str, Any]:
        """Describe the mixture over training steps."""
        rows = self._get(words)
        if rows.steps is None:
            raise UsageError("there is no order of training here", help="open a dataset")
        steps = min(get_number(words, "steps", 1000, 1), _MAX_STEPS)
        with self._lock:
            return rows.steps.describe_mixture(
                steps, get_number(words, "batch", 8, 1), get_number(words, "world", 1, 1)
            )

    def find_document(self, words: Words) -> dict[str, Any]:
        """Find the row of a document."""
        with self._lock:
            return {"row": self._get(words).find_document(get_word(words, "place"))}

    def read_picture(self, words: Words) -> bytes:
        """Return a picture of a row."""
        rows, number, index = self._get(words), get_number(words, "row", 0), get_number(words, "index", 0)
        if number >= count_rows(rows):
            raise IndexError(f"there is no row {number}")
        with self._lock:
            return rows.read_pictures(number)[index]

    def search(self, words: Words) -> Iterator[dict[str, Any]]:
        """Search, and yield hits and how far the search is.

        Raises:
            UsageError: The query is wrong. It is raised here, not at the first hit.
        """
        from gristmill.report.view.search import SEARCH_KINDS, search_rows  # noqa: PLC0415  (a first page needs none)

        rows = self._get(words)
        kind = cast("SearchKind", get_word(words, "kind", "text"))
        check_choice("kind", kind, SEARCH_KINDS)
        query = get_word(words, "query")
        if not query:
            raise UsageError("there is nothing to search for")
        selection = Selection(rows, read_filters(words))
        return _limit_hits(search_rows(rows, selection, query, kind, get_number(words, "start", 0)))

    def list_chosen(self, words: Words) -> tuple[Rows, list[int]]:
        """List rows that were chosen to be saved: `3,7-9`."""
        rows = self._get(words)
        return rows, parse_numbers(get_word(words, "rows"), count_rows(rows))

    def _get(self, words: Words) -> Rows:
        name = get_word(words, "name", next(iter(self.collections)))
        check_choice("name", name, self.collections)
        return self.collections[name]


def _limit_hits(hits: Iterator[dict[str, Any] | SearchProgress]) -> Iterator[dict[str, Any]]:
    """Yield the first hits, and up to the end of the search how many there are."""
    num_shown = num_found = 0
    for hit in hits:
        if not isinstance(hit, dict):
            num_found += hit.num_found
            yield {"searched": hit.row, "found": num_found}
        elif num_shown < MAX_HITS:
            num_shown += 1
            yield hit


def describe_safely(rows: Rows, number: int) -> dict[str, Any]:
    """Describe a row; one that cannot be read says why, and the rows around it are still shown."""
    try:
        return rows.describe_row(number)
    except GristmillError as error:
        return {"number": number, "bad": error.message}


def read_filters(words: Words) -> Filters:
    """Read the filters of a request."""
    return Filters(
        split=get_word(words, "split", ""),
        source=get_word(words, "source", ""),
        reason=get_word(words, "reason", ""),
        scores=tuple(map(ScoreRange.parse, words.get("score", []))),
        where=tuple(filter(None, words.get("where", []))),
        sort=get_word(words, "sort", ""),
    )


def get_word(words: Words, name: str, default: str | None = None) -> str:
    """Return the last word of a name."""
    if name in words:
        return words[name][-1]
    if default is None:
        raise UsageError(f"the request has no {name!r}")
    return default


def get_number(words: Words, name: str, default: int, least: int = 0) -> int:
    """Return a whole number of a request."""
    text = get_word(words, name, str(default)).replace(",", "")
    if not (text.isdecimal() and len(text) < 19 and int(text) >= least):
        raise UsageError(f"{name} is a whole number from {least} on, not {text!r}")
    return int(text)


def parse_numbers(text: str, num_rows: int) -> list[int]:
    """Parse numbers of rows.

    >>> parse_numbers("3, 7-9", 100)
    [3, 7, 8, 9]
    """
    numbers: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _SPAN.fullmatch(part)
        first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if last < first or last >= num_rows:
            raise UsageError(
                f"{part!r} names no rows: there are {num_rows:,}, counted from 0", help="for example --rows 0-9,15"
            )
        if last - first + len(numbers) >= 10_000:
            raise UsageError("more than 10,000 rows cannot be chosen at once", help="save fewer, or export the dataset")
        numbers += range(first, last + 1)
    return numbers
