"""How long this process has waited for stores, and how much it has read: for the summary of a run."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


INTERMEDIATE_DATA = ".gristmill/stored"
"""The folder of what one stage leaves for the next; reads of it are counted apart too."""


class StoreUse(NamedTuple):
    """The use that tasks made of stores: reads, and the time that they waited."""

    wait_ms: int
    """How long they waited for bytes, or for room to send more."""
    reads: int
    read_bytes: int
    task_ms: int
    """How long the tasks took that used a store."""
    intermediate_reads: int
    """How many of the reads were of intermediate data."""
    intermediate_bytes: int

    @property
    def mean_read_bytes(self) -> int:
        """The mean size of a read."""
        return self.read_bytes // max(self.reads, 1)

    @property
    def mean_intermediate_bytes(self) -> int:
        """The mean size of a read of intermediate data."""
        return self.intermediate_bytes // max(self.intermediate_reads, 1)

    @property
    def wait_share(self) -> float:
        """The share of their time that tasks waited."""
        return self.wait_ms / max(self.task_ms, 1)


class WaitClock:
    """Counts of this process, from its start."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._num_reads = self._num_bytes = 0
        self._num_intermediate_reads = self._num_intermediate_bytes = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time until the end of the block as waiting."""
        started = perf_counter()
        try:
            yield
        finally:
            self._seconds += perf_counter() - started

    def count_read(self, key: str, num_bytes: int) -> None:
        """Count one read of this many bytes of an object."""
        self._num_reads += 1
        self._num_bytes += num_bytes
        if f"{INTERMEDIATE_DATA}/" in key:
            self._num_intermediate_reads += 1
            self._num_intermediate_bytes += num_bytes

    def show(self, task_seconds: float) -> StoreUse:
        """Give what was counted, with a time that tasks took."""
        return StoreUse(
            round(1000 * self._seconds),
            self._num_reads,
            self._num_bytes,
            round(1000 * task_seconds),
            self._num_intermediate_reads,
            self._num_intermediate_bytes,
        )


wait_clock = WaitClock()
