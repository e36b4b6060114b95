"""How long this process has waited for stores, and how much it has read: for the summary of a run."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class StoreUse(NamedTuple):
    """The use that tasks made of stores: reads, and the time that they waited."""

    wait_ms: int
    """How long they waited for bytes, or for room to send more."""
    reads: int
    read_bytes: int
    task_ms: int
    """How long the tasks took that used a store."""

    @property
    def mean_read_bytes(self) -> int:
        """The mean size of a read."""
        return self.read_bytes // max(self.reads, 1)

    @property
    def wait_share(self) -> float:
        """The share of their time that tasks waited."""
        return self.wait_ms / max(self.task_ms, 1)


class WaitClock:
    """Counts of this process, from its start."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_bytes = 0
        self.num_reads = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time until the end of the block as waiting."""
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - started

    def count_read(self, num_bytes: int) -> None:
        """Count one read of this many bytes."""
        self.num_bytes += num_bytes
        self.num_reads += 1

    def read_since(self, seconds: float, num_reads: int, num_bytes: int, task_seconds: float) -> dict[str, int]:
        """Return what was counted since the clock showed these numbers, as the fields of `StoreUse`; {}: nothing."""
        if (self.seconds, self.num_reads) == (seconds, num_reads):
            return {}
        waited_ms = round(1000 * (self.seconds - seconds))
        use = StoreUse(waited_ms, self.num_reads - num_reads, self.num_bytes - num_bytes, round(1000 * task_seconds))
        return use._asdict()


wait_clock = WaitClock()
