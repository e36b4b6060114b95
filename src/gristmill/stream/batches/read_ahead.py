"""Requests for the rows of later batches while a batch is made: many reads from the disk at a time instead of one.

The order of rows is known in advance. But a request costs a system call for each row, more than the copy of a row that
is in memory. So rows are requested only while they come from the disk, which the thread's count of major page faults
shows.
"""

from __future__ import annotations

import resource

_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
_ROWS_IN_FLIGHT = 64
_BATCHES_UNTIL_WARM = 256
"""Rows that were requested in time cause no faults. So after this many batches without a fault, one is made without a
request, to see whether rows still come from the disk."""


class ReadAhead:
    """Decides when to request later rows. Threads may share it: at worst a batch is requested twice."""

    def __init__(self) -> None:
        self._batches_left = 0
        """The number of batches for which rows are still requested."""

    @staticmethod
    def num_faults() -> int:
        """Count the page faults of this thread so far that had to wait for the disk."""
        return resource.getrusage(_WHOSE).ru_majflt

    def note(self, num_faults: int) -> bool:
        """Note a batch, with the faults before it; return whether rows have just begun to come from the disk."""
        if self.num_faults() == num_faults:
            self._batches_left -= self._batches_left > 0
            return False
        was_warm = self._batches_left == 0
        self._batches_left = _BATCHES_UNTIL_WARM
        return was_warm

    @property
    def is_cold(self) -> bool:
        return self._batches_left > 0

    @staticmethod
    def batches_ahead(num_rows: int) -> int:
        """Return how many batches of this many rows are requested ahead."""
        return max(1, _ROWS_IN_FLIGHT // max(num_rows, 1))
