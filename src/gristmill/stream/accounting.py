"""What was streamed so far, against plan: rows, tokens and epochs of each source, padding, speed, time spent waiting.

Counts and shares are of this process (one rank); planned shares and epochs are of all ranks together, since they follow
from the number of the row alone. A rank's share need not be the planned one: the mixture holds over the global batches.
Batches are noted as they are handed out and added up 64 at a time: about 1 µs a batch. Those that the workers of a
DataLoader make are counted there, when they are made (`worker_counts`); how long was waited for them is not known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.stream.worker_counts import WorkerCounts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.stream.collate import Batch
    from gristmill.stream.row_order import RowOrder
    from gristmill.stream.sources import Lane

_BATCHES_AT_A_TIME = 64


@dataclass(frozen=True, slots=True)
class SourceReport:
    """Of one source."""

    source: str
    rows: int
    tokens: int
    share: float
    """Of the rows."""
    planned_share: float
    """Of the rows up to here, by the mixture; without one, by the number of rows."""
    epochs: float
    """How often it was read so far, by all ranks and since row 0."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """See the module."""

    row: int
    """The next one of the whole run."""
    rows: int
    tokens: int
    padding_share: float
    seconds: float
    wait_seconds: float | None
    """None: batches came through a DataLoader, which does not tell."""
    sources: list[SourceReport]
    left_out: dict[str, str]
    """Sources that the dataset's mixture leaves out, and why."""

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class Accounting:
    """Add batches as they are used; ask at any time."""

    def __init__(self, lanes: list[Lane], order: RowOrder, sources: list[str], left_out: dict[str, str]) -> None:
        self._lanes = lanes
        self._order = order
        self._sources = sources
        self._left_out = left_out
        self.workers: WorkerCounts | None = None
        """Shared with worker processes; None: there are none."""
        self.restart(0)

    def restart(self, row: int) -> None:
        """Count from here."""
        if self.workers is not None:
            self.workers.clear()
        self._first_row = self._row = row
        self._rows = np.zeros(len(self._sources) + 1, dtype=np.int64)
        self._tokens = np.zeros(len(self._sources) + 1, dtype=np.int64)
        self._places = 0
        self._wait_seconds: float | None = 0.0
        self._started: float | None = None
        self._noted: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def share(self) -> None:
        """From now on what workers make is counted, too."""
        if self.workers is None:
            self.workers = WorkerCounts(len(self._sources))

    def add_rows(self, batch: Batch) -> None:
        """Rows in an order that is not the stream's: they count as if they were the first ones."""
        self.add(batch, None, self._row + len(batch.sources))

    def add(self, batch: Batch, wait_seconds: float | None = 0.0, next_row: int | None = None) -> None:
        """A batch that was handed out, after a wait for it (None: not known)."""
        if self._started is None:
            self._started = time.perf_counter() - (wait_seconds or 0.0)
        self._row = batch.next_row if next_row is None else next_row
        if self._wait_seconds is not None:
            self._wait_seconds = None if wait_seconds is None else self._wait_seconds + wait_seconds
        self._places += batch.num_positions
        self._noted.append((batch.sources, batch.tokens))
        if len(self._noted) >= _BATCHES_AT_A_TIME:
            self._add_up()

    def report(self) -> StreamReport:
        """All so far."""
        self._add_up()
        rows, tokens, places, row, started = self._rows, self._tokens, self._places, self._row, self._started
        wait_seconds = self._wait_seconds
        if self.workers is not None and (made := self.workers.totals()).started is not None:
            rows, tokens, places = rows + made.rows, tokens + made.tokens, places + made.places
            row, started, wait_seconds = max(row, made.row), min(started or made.started, made.started), None
        rows, tokens = rows[:-1], tokens[:-1]
        total = max(int(rows.sum()), 1)
        return StreamReport(
            row=row,
            rows=int(rows.sum()),
            tokens=int(tokens.sum()),
            padding_share=1 - int(tokens.sum()) / places if places else 0.0,
            seconds=time.perf_counter() - started if started is not None else 0.0,
            wait_seconds=wait_seconds,
            sources=[
                SourceReport(source, int(rows[number]), int(tokens[number]), rows[number] / total, share, epochs)
                for number, (source, (share, epochs)) in enumerate(self._planned(row).items())
            ],
            left_out=self._left_out,
        )

    def as_dict(self, prefix: str = "data/") -> dict[str, float]:
        """One flat dict, for TensorBoard, Weights & Biases and the like."""
        report = self.report()
        values = {
            "row": report.row,
            "rows": report.rows,
            "tokens": report.tokens,
            "padding_share": report.padding_share,
            "wait_seconds": report.wait_seconds,
            "rows_per_second": report.rows_per_second,
            "tokens_per_second": report.tokens_per_second,
        }
        for entry in report.sources:
            for name in ("rows", "tokens", "share", "planned_share", "epochs"):
                values[f"{entry.source}/{name}"] = getattr(entry, name)
        return {prefix + name: float(value) for name, value in values.items() if value is not None}

    def log_line(self) -> str:
        """One line for a log."""
        report = self.report()
        sources = ", ".join(
            f"{entry.source} {entry.share:.1%} (plan {entry.planned_share:.1%}, epoch {entry.epochs:.2f})"
            for entry in report.sources
        )
        sources += "".join(f", {source} left out ({why})" for source, why in report.left_out.items())
        waited = ""
        if report.wait_seconds is not None:
            waited = f"waited {report.wait_seconds / report.seconds if report.seconds else 0.0:.1%}, "
        return (
            f"row {report.row:,}: {sources}; padding {report.padding_share:.1%}, {waited}"
            f"{report.rows_per_second:,.0f} rows/s, {report.tokens_per_second:,.0f} tokens/s"
        )

    def _add_up(self) -> None:
        if not self._noted:
            return
        # Rows that only fill up a batch are of source -1: counted at the end, and left out.
        sources = np.concatenate([sources for sources, _ in self._noted])
        tokens = np.concatenate([tokens for _, tokens in self._noted])
        np.add.at(self._rows, sources, 1)
        np.add.at(self._tokens, sources, tokens)
        self._noted.clear()

    def _planned(self, row: int) -> dict[str, tuple[float, float]]:
        """Source -> its share of the rows from the start to `row`, and its epochs."""
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
