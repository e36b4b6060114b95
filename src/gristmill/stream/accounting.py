"""What was streamed so far, compared with the plan: rows, tokens and epochs of each source, padding, speed, waiting.

Counts and shares are those of this process, which is one rank. Planned shares and epochs are those of all ranks: they
follow from the row number alone. A rank's share may differ from the plan: the mixture holds over global batches.
Batches are collected and added up 64 at a time, which costs about 1 µs for each batch.

The workers of a DataLoader count their batches when they are made (`WorkerCounts`), each in a separate line of numbers
in anonymous shared memory, so no locks are needed. A DataLoader prefetches, so these counts may be up to `num_workers *
prefetch_factor` batches ahead of what was used, and the time spent waiting is not known.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass, field
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.core.token_kinds import TOKEN_KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.collate import Batch
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import Lane


_BATCHES_AT_A_TIME = 64
_NUM_LINES = 256
_STARTED, _ROW, _POSITIONS, _REPLACED, _SKIPPED, _COUNTS = range(6)
"""The columns of a worker's line: the start of its first batch (ns), the next row, tokens with padding, samples that
were replaced and skipped; then the rows of each source and those of none, the tokens of each, those of each kind."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The rows and tokens that were streamed of one source."""

    source: str
    rows: int
    tokens: int
    share: float
    """Its share of the rows."""
    planned_share: float
    """Its share of the rows so far by the mixture; without a mixture, by the number of rows."""
    epochs: float
    """How often its rows were read since row 0, by all ranks."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The account of what a stream has delivered so far."""

    row: int
    """The next row of the whole run."""
    rows: int
    tokens: int
    padding_share: float
    seconds: float
    wait_seconds: float | None
    """None: not known, because a DataLoader delivered the batches."""
    sources: list[SourceReport]
    left_out: dict[str, str]
    """Sources that the dataset's mixture leaves out, and why."""
    replaced: int = 0
    """The samples that could not be used and were replaced by others (`on_error="replace"`)."""
    skipped: int = 0
    """The samples that `transform` left out and that were replaced by others."""
    kinds: dict[str, int] = field(default_factory=dict)
    """The tokens of each kind; empty: no row is of a chat."""

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Accounting:
    """Counts batches as they are used, and reports at any time."""

    def __init__(self, lanes: list[Lane], order: RowOrder, sources: list[str], left_out: dict[str, str]) -> None:
        self._lanes = lanes
        self._order = order
        self._sources = sources
        self._left_out = left_out
        self.workers: WorkerCounts | None = None
        """The counts of worker processes; None: there are none."""
        self.restart(0)

    def restart(self, row: int) -> None:
        """Start counting at a row."""
        if self.workers is not None:
            self.workers.clear()
        self._first_row = self._row = row
        self._rows = np.zeros(len(self._sources) + 1, dtype=np.int64)
        self._tokens = np.zeros(len(self._sources) + 1, dtype=np.int64)
        self._kinds = np.zeros(len(TOKEN_KINDS), dtype=np.int64)
        self._positions = self._replaced = self._skipped = 0
        self._wait_seconds: float | None = 0.0
        self._started: float | None = None
        self._pending: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def share(self) -> None:
        """Count the batches of worker processes, too, from now on."""
        if self.workers is None:
            self.workers = WorkerCounts(len(self._sources))

    def add_rows(self, batch: Batch) -> None:
        """Add rows that were read in another order than the stream's. They count as if they were the next ones."""
        self.add(batch, None, self._row + len(batch.sources))

    def add(self, batch: Batch, wait_seconds: float | None = 0.0, next_row: int | None = None) -> None:
        """Add a batch that is used, and the time spent waiting for it (None: not known)."""
        if self._started is None:
            self._started = time.perf_counter() - (wait_seconds or 0.0)
        self._row = batch.next_row if next_row is None else next_row
        if self._wait_seconds is not None:
            self._wait_seconds = None if wait_seconds is None else self._wait_seconds + wait_seconds
        self._positions += batch.num_positions
        self._replaced += batch.num_replaced
        self._skipped += batch.num_skipped
        if batch.kinds is not None:
            self._kinds += batch.kinds
        self._pending.append((batch.sources, batch.tokens))
        if len(self._pending) >= _BATCHES_AT_A_TIME:
            self._add_pending()

    def report(self) -> StreamReport:
        """Return all counts so far."""
        self._add_pending()
        rows, tokens, positions, row, started = self._rows, self._tokens, self._positions, self._row, self._started
        wait_seconds, replaced, skipped, kinds = self._wait_seconds, self._replaced, self._skipped, self._kinds
        if self.workers is not None and (totals := self.workers.totals()).started is not None:
            rows, tokens, positions = rows + totals.rows, tokens + totals.tokens, positions + totals.positions
            replaced, skipped, kinds = replaced + totals.replaced, skipped + totals.skipped, kinds + totals.kinds
            row, started, wait_seconds = max(row, totals.row), min(started or totals.started, totals.started), None
        rows, tokens = rows[:-1], tokens[:-1]
        total = max(int(rows.sum()), 1)
        return StreamReport(
            row=row,
            rows=int(rows.sum()),
            tokens=int(tokens.sum()),
            padding_share=1 - int(tokens.sum()) / positions if positions else 0.0,
            seconds=time.perf_counter() - started if started is not None else 0.0,
            wait_seconds=wait_seconds,
            sources=[
                SourceReport(source, int(rows[number]), int(tokens[number]), rows[number] / total, share, epochs)
                for number, (source, (share, epochs)) in enumerate(self._plan_shares(row).items())
            ],
            left_out=self._left_out,
            replaced=replaced,
            skipped=skipped,
            kinds={name: count for name, count in zip(TOKEN_KINDS, kinds.tolist(), strict=True) if count},
        )

    def as_dict(self, prefix: str = "data/") -> dict[str, float]:
        """Return the counts as one flat dict, for TensorBoard, Weights & Biases and similar tools."""
        report = self.report()
        names = ("row", "rows", "tokens", "padding_share", "wait_seconds", "rows_per_second", "tokens_per_second")
        values = {name: getattr(report, name) for name in (*names, "replaced", "skipped")}
        for entry in report.sources:
            for name in ("rows", "tokens", "share", "planned_share", "epochs"):
                values[f"{entry.source}/{name}"] = getattr(entry, name)
        values |= {f"kinds/{name}": count for name, count in report.kinds.items()}
        return {prefix + name: float(value) for name, value in values.items() if value is not None}

    def log_line(self) -> str:
        """Format the counts as one line for a log."""
        report = self.report()
        sources = ", ".join(
            f"{entry.source} {entry.share:.1%} (plan {entry.planned_share:.1%}, epoch {entry.epochs:.2f})"
            for entry in report.sources
        )
        sources += "".join(f", {source} left out ({why})" for source, why in report.left_out.items())
        counts = {"replaced": report.replaced, "skipped": report.skipped}
        lost = "".join(f"{count:,} samples {what}, " for what, count in counts.items() if count)
        waited = ""
        if report.wait_seconds is not None:
            waited = f"waited {report.wait_seconds / report.seconds if report.seconds else 0.0:.1%}, "
        return (
            f"row {report.row:,}: {sources}; padding {report.padding_share:.1%}, {lost}{waited}"
            f"{report.rows_per_second:,.0f} rows/s, {report.tokens_per_second:,.0f} tokens/s"
        )

    def _add_pending(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []  # a thread of a DataLoader may be adding others
        # Rows that only fill up a batch have source -1, so they are counted in the last place, which is left out.
        sources = np.concatenate([sources for sources, _ in pending])
        tokens = np.concatenate([tokens for _, tokens in pending])
        np.add.at(self._rows, sources, 1)
        np.add.at(self._tokens, sources, tokens)

    def _plan_shares(self, row: int) -> dict[str, tuple[float, float]]:
        """Return for each source its share of the rows from the start to `row`, and its epochs."""
        before, now = self._order.draws_before(self._first_row), self._order.draws_before(row)
        total = max(row - self._first_row, 1)
        shares = dict.fromkeys(self._sources, 0.0)
        epochs = dict.fromkeys(self._sources, 0.0)
        for lane, first, last in zip(self._lanes, before, now, strict=True):
            for shard in lane.shards:
                for source, share in shard.shares.items():
                    shares[source] += (last - first) / total * shard.rows / lane.rows * share
                    epochs[source] = last / lane.rows
        return {source: (shares[source], epochs[source]) for source in self._sources}


class WorkerTotals(NamedTuple):
    """The counts of all workers together."""

    rows: NDArray[np.int64]
    """The rows of each source, and at the end those that only fill up a batch."""
    tokens: NDArray[np.int64]
    positions: int
    replaced: int
    skipped: int
    kinds: NDArray[np.int64]
    row: int
    started: float | None
    """By `time.perf_counter`, which all processes of a machine share."""


class WorkerCounts:
    """The counts of each worker of one DataLoader."""

    def __init__(self, num_sources: int, shared: Any = None, owner: int | None = None) -> None:
        self._num_sources = num_sources
        self._num_columns = _COUNTS + 2 * (num_sources + 1) + len(TOKEN_KINDS)
        self._shared = RawArray("q", _NUM_LINES * self._num_columns) if shared is None else shared
        self._owner = os.getpid() if owner is None else owner

    def add(self, batch: Batch, worker: int, next_row: int | None) -> None:
        """Count a batch of a worker. A process that is not a worker of the owner counts nothing.

        `next_row` is None for rows in another order than the stream's.
        """
        parent = multiprocessing.parent_process()
        if parent is None or parent.pid != self._owner:
            return
        line = self._view_lines()[worker % _NUM_LINES]
        line[_STARTED] = line[_STARTED] or time.perf_counter_ns()
        line[_ROW] = max(int(line[_ROW]), next_row or 0)
        line[_POSITIONS] += batch.num_positions
        line[_REPLACED] += batch.num_replaced
        line[_SKIPPED] += batch.num_skipped
        # Rows that only fill up a batch have source -1, so they are counted in the last place.
        np.add.at(line[_COUNTS : _COUNTS + self._num_sources + 1], batch.sources, 1)
        np.add.at(line[_COUNTS + self._num_sources + 1 : -len(TOKEN_KINDS)], batch.sources, batch.tokens)
        if batch.kinds is not None:
            line[-len(TOKEN_KINDS) :] += batch.kinds

    def totals(self) -> WorkerTotals:
        """Add up the counts of all workers."""
        lines = self._view_lines()
        totals = lines.sum(axis=0)
        started = lines[lines[:, _STARTED] > 0, _STARTED]
        return WorkerTotals(
            totals[_COUNTS : _COUNTS + self._num_sources + 1],
            totals[_COUNTS + self._num_sources + 1 : -len(TOKEN_KINDS)],
            int(totals[_POSITIONS]),
            int(totals[_REPLACED]),
            int(totals[_SKIPPED]),
            totals[-len(TOKEN_KINDS) :],
            int(lines[:, _ROW].max()) or int(totals[_COUNTS : _COUNTS + self._num_sources].sum()),
            int(started.min()) / 1e9 if len(started) else None,
        )

    def clear(self) -> None:
        """Set all counts to 0."""
        self._view_lines()[:] = 0

    def _view_lines(self) -> NDArray[np.int64]:
        return np.frombuffer(self._shared, dtype=np.int64).reshape(_NUM_LINES, self._num_columns)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return WorkerCounts, (self._num_sources, self._shared, self._owner)
        return WorkerCounts, (self._num_sources,)
