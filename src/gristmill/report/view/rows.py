"""Collections of rows that can be looked at: any row by its number, filters that narrow each other, blocks to search.

Rows lie in ranges: consecutive rows of one split, source and reason. A filter by any of these chooses ranges, so it
costs the same for ten rows and for 10^8. A filter by scores, and one by a source that is mixed with others, chooses
numbers of rows.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.report.view.column_queries import ColumnQueries

FACETS = ("split", "source", "reason")
_NUM_BINS = 24


class RowRange(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive rows of one split, source and reason. What a collection does not have is empty."""

    split: str = ""
    source: str = ""
    reason: str = ""
    start: int
    rows: int
    mixed: dict[str, int] = {}
    """Where several sources are interleaved: how many rows each of them has."""


class ScoreRange(msgspec.Struct, frozen=True):
    """A filter by a score: a row is chosen if one of its documents has a value from `low` to `high`."""

    name: str
    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def parse(cls, text: str) -> ScoreRange:
        """Parse a filter as it is in an address.

        >>> ScoreRange.parse("gopher_quality.words:50:")
        ScoreRange(name='gopher_quality.words', low=50.0, high=inf)
        """
        name, low, high = [*text.rsplit(":", 2), "", ""][:3]
        try:
            return cls(name, float(low or -math.inf), float(high or math.inf))
        except ValueError:
            raise UsageError(
                f"{text!r} is no filter by a score", help="write it as name:low:high, where low or high may be empty"
            ) from None


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of a collection of rows; empty values choose all."""

    split: str = ""
    source: str = ""
    reason: str = ""
    scores: tuple[ScoreRange, ...] = ()
    where: tuple[str, ...] = ()
    """Conditions in SQL, all of which hold."""
    sort: str = ""
    """The column by which rows are in order; downwards with a minus before it."""

    def matches(self, rows: RowRange) -> bool:
        """Whether rows of a range are chosen, regardless of their scores and columns.

        A reason `step: rule` is also chosen by its step or its rule alone.
        """
        if self.source and self.source != rows.source and self.source not in rows.mixed:
            return False
        return self.split in ("", rows.split) and self.reason in ("", rows.reason, *rows.reason.split(": ", 1))


class RowBlock(NamedTuple):
    """Consecutive rows for a search. Its functions run in threads, and may take long."""

    first_row: int
    num_rows: int
    load_texts: Callable[[bytes | None], pa.Array]
    """Returns the text of each row. Rows without the literal that it is given may be null."""
    find_token: Callable[[int], NDArray[np.bool_]] | None = None
    """Tells for each row whether it has a token; None: rows are no tokens."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that a training step reads."""

    number: int
    """Its number in the dataset."""
    stream_row: int
    rank: int
    epoch: int
    source: str


class StepOrder(Protocol):
    """The order of training of a dataset. The stream provides it."""

    def find_rows(self, step: int, batch_size: int, world_size: int) -> list[StepRow]:
        """Find the rows that a step reads."""

    def describe_mixture(self, steps: int, batch_size: int, world_size: int) -> dict[str, Any]:
        """Describe the share of each source in the first steps."""


class Rows:
    """Something with numbered rows that can be looked at. Subclasses say what is in a row."""

    title: str
    kind = "records"
    has_tokens = False
    note = ""
    """What people should know about the collection."""
    steps: StepOrder | None = None
    is_slow = False
    """Whether counting the rows takes long, so that it waits until they are asked for."""

    @property
    def ranges(self) -> list[RowRange]:
        raise NotImplementedError

    @property
    def score_names(self) -> list[str]:
        """The names of the scores that rows can be filtered by."""
        return []

    def describe_row(self, number: int) -> dict[str, Any]:
        """Describe a row as plain data for a page."""
        raise NotImplementedError

    def read_pictures(self, number: int) -> list[bytes]:
        """Return the pictures of a row."""
        raise IndexError(f"row {number} has no pictures")

    def read_blocks(self, start: int, end: int) -> Iterator[RowBlock]:
        """Yield all blocks with rows from `start` up to `end`, for a search. Nothing is shared with other readers."""
        raise NotImplementedError

    @property
    def queries(self) -> ColumnQueries | None:
        """The questions that SQL can answer about the columns of the rows; None: they are not in columns."""
        return None

    def read_scores(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the row of each document, in order, and its score, which is NaN where nothing was measured."""
        raise UsageError(f"there is no score {name!r}", help="the list of scores is empty here")

    def find_source_rows(self, source: str) -> NDArray[np.int64]:
        """Find the rows of a source, in order, also where it is mixed with others."""
        raise NotImplementedError

    def find_document(self, place: str) -> int:
        """Find the row of a document by its origin as it is shown: `source:file@position`."""
        raise UsageError(f"documents cannot be found by their origin here: {place!r}", help="open a dataset")


def count_rows(rows: Rows) -> int:
    """Count the rows of a collection."""
    return sum(part.rows for part in rows.ranges)


class Selection:
    """Rows of a collection that filters choose, in order."""

    def __init__(self, rows: Rows, filters: Filters) -> None:
        chosen = [part for part in rows.ranges if part.rows and filters.matches(part)]
        self._starts = np.array([part.start for part in chosen], np.int64)
        self._stops = self._starts + np.array([part.rows for part in chosen], np.int64)
        numbers = _find_numbers(rows, filters)
        self.numbers = None if numbers is None else numbers[self._is_in_range(numbers)]
        self._ends = np.cumsum(self._stops - self._starts)
        self._order: NDArray[np.int64] | None = None
        if filters.sort:
            order = _get_queries(rows).sort_rows(filters.sort)
            self._order = order[self.mask(0, len(order))[order]]

    def __len__(self) -> int:
        if self.numbers is not None:
            return len(self.numbers)
        return int(self._ends[-1]) if len(self._ends) else 0

    def row(self, position: int) -> int:
        """Return the number of the row at a position."""
        if self._order is not None:
            return int(self._order[position])
        if self.numbers is not None:
            return int(self.numbers[position])
        part = int(np.searchsorted(self._ends, position, side="right"))
        return int(self._stops[part] - (self._ends[part] - position))

    def find(self, row: int) -> int:
        """Find the position of the first chosen row from `row` on; of sorted rows, that of the row itself."""
        if self._order is not None:
            places = np.flatnonzero(self._order == row)
            return int(places[0]) if len(places) else 0
        if self.numbers is not None:
            return int(np.searchsorted(self.numbers, row))
        part = int(np.searchsorted(self._stops, row, side="right"))
        if part == len(self._stops):
            return len(self)
        before = int(self._ends[part - 1]) if part else 0
        return before + max(0, row - int(self._starts[part]))

    def spans(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield ranges that hold all chosen rows from `start` on; with filters by scores or columns also others."""
        for first, stop in zip(self._starts.tolist(), self._stops.tolist(), strict=True):
            if stop > start:
                yield max(first, start), stop

    def mask(self, first_row: int, num_rows: int) -> NDArray[np.bool_]:
        """Tell which of some consecutive rows are chosen."""
        if self.numbers is None:
            return self._is_in_range(np.arange(first_row, first_row + num_rows))
        low, high = np.searchsorted(self.numbers, [first_row, first_row + num_rows])
        mask = np.zeros(num_rows, np.bool_)
        mask[self.numbers[low:high] - first_row] = True
        return mask

    def _is_in_range(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not len(self._starts):
            return np.zeros(len(numbers), np.bool_)
        parts = np.searchsorted(self._stops, numbers, side="right")
        inside = np.minimum(parts, len(self._stops) - 1)
        mask: NDArray[np.bool_] = (parts < len(self._stops)) & (numbers >= self._starts[inside])
        return mask


def _find_numbers(rows: Rows, filters: Filters) -> NDArray[np.int64] | None:
    """Find the rows that filters choose which do not choose whole ranges, in order; None if there are none of these."""
    numbers: NDArray[np.int64] | None = None
    for score in filters.scores:
        document_rows, values = rows.read_scores(score.name)
        matching = np.unique(document_rows[(values >= score.low) & (values <= score.high)])
        numbers = matching if numbers is None else np.intersect1d(numbers, matching, assume_unique=True)
    if filters.where:
        matching = _get_queries(rows).find_rows(filters.where)
        numbers = matching if numbers is None else np.intersect1d(numbers, matching, assume_unique=True)
    if any(filters.source in part.mixed for part in rows.ranges):
        matching = rows.find_source_rows(filters.source)
        numbers = matching if numbers is None else np.intersect1d(numbers, matching, assume_unique=True)
    return numbers


def _get_queries(rows: Rows) -> ColumnQueries:
    if rows.queries is None:
        raise UsageError(
            "these rows have no columns to sort or to write conditions about",
            help="open documents in Arrow or Parquet; other rows are filtered by split, source, reason and score",
        )
    return rows.queries


def count_facets(rows: Rows, filters: Filters) -> dict[str, Any]:
    """Count the rows of each split, source and reason, and the values of scores, as the other filters leave them."""
    facets: dict[str, Any] = {}
    for facet in FACETS:
        others = msgspec.structs.replace(filters, **{facet: ""})
        numbers = _find_numbers(rows, others)
        totals: Counter[str] = Counter()
        for part in rows.ranges:
            counts = part.mixed if facet == "source" and part.mixed else {getattr(part, facet): part.rows}
            if not others.matches(part):
                counts = dict.fromkeys(counts, 0)
            elif numbers is not None:
                chosen = numbers[slice(*np.searchsorted(numbers, [part.start, part.start + part.rows]).tolist())]
                if counts is part.mixed:
                    counts = {name: int(np.isin(chosen, rows.find_source_rows(name)).sum()) for name in counts}
                else:
                    counts = dict.fromkeys(counts, len(chosen))
            totals.update(counts)
        facets[facet] = [] if set(totals) <= {""} else list(totals.items())
    facets["scores"] = [_describe_score(rows, filters, score) for score in filters.scores]
    return facets


def _describe_score(rows: Rows, filters: Filters, score: ScoreRange) -> dict[str, Any]:
    """Describe the values of a score in the rows that all other filters choose, as a histogram over all values."""
    document_rows, values = rows.read_scores(score.name)
    known = np.isfinite(values)
    others = Selection(
        rows, msgspec.structs.replace(filters, scores=tuple(other for other in filters.scores if other != score))
    )
    described: dict[str, Any] = {
        "name": score.name,
        "low": _finite(score.low),
        "high": _finite(score.high),
        "counts": [],
    }
    if not known.any():
        return described
    least, most = float(values[known].min()), float(values[known].max())
    known &= (
        np.isin(document_rows, others.numbers) if others.numbers is not None else others._is_in_range(document_rows)
    )
    counts, _ = np.histogram(values[known], _NUM_BINS, (least, most))
    return described | {"least": least, "most": most, "counts": counts.tolist()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_page(
    rows: Rows, filters: Filters, first: int, row: int | None, count: int, describe: Callable[[int], Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe some chosen rows from a position on; with a row, those of the page that shows it."""
    selection = Selection(rows, filters)
    total = len(selection)
    position = first if row is None else selection.find(row) // count * count
    position = max(0, min(position, (total - 1) // count * count))
    return {
        "rows": [describe(selection.row(place)) for place in range(position, min(position + count, total))],
        "position": position,
        "total": total,
        "facets": count_facets(rows, filters),
        "note": rows.note,
    }
