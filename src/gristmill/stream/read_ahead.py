"""Rows of batches to come, asked for while the present one is made: many reads from a disk at a time in place of one.

The order of rows is known beforehand. But asking costs a system call a row, more than copying a row that is in memory.
So it is done only while rows do come from a disk, which the thread's count of major page faults tells.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from gristmill.stream.kernels import A_ID_BYTES, A_IDS, A_SHARD, A_STORED
from gristmill.stream.mapping import request_pages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gristmill.stream.row_table import RowTable

_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
_ROWS_IN_FLIGHT = 64
_BATCHES_UNTIL_WARM = 256
"""Rows that were asked for in time cause no faults. So after this many batches without one, one is made unasked."""


class ReadAhead:
    """Decides when to ask for rows to come, and asks. Threads may share it: at worst a batch is asked for twice."""

    def __init__(self) -> None:
        self._batches_left = 0
        """While rows come from a disk."""

    @staticmethod
    def num_faults() -> int:
        """Of this thread so far, that had to wait for a disk."""
        return resource.getrusage(_WHOSE).ru_majflt

    def note(self, num_faults: int) -> bool:
        """After a batch, with the faults before it: whether rows have just begun to come from a disk."""
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
        """How far ahead batches of so many rows are asked for."""
        return max(1, _ROWS_IN_FLIGHT // max(num_rows, 1))

    @staticmethod
    def request(table: RowTable, indices: NDArray[np.int64]) -> None:
        """Begin to read the rows at these indices."""
        addresses = table.row_addresses(indices)
        addresses = addresses[addresses[:, A_SHARD] >= 0]
        sizes = addresses[:, A_STORED] * addresses[:, A_ID_BYTES]
        for address, num_bytes in zip(addresses[:, A_IDS].tolist(), sizes.tolist(), strict=True):
            request_pages(address, num_bytes)
