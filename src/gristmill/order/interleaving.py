"""Several sequences interleaved into one, evenly from the beginning: an exact schedule of all their records.

The rule is that of a mixture (`mixture.schedule`), with the numbers of records as weights: in the first n of N records
each source is less than one record away from n times its share, and its records keep their order. Cost: about 1 ns for
each record and source; memory: 8 bytes for each source and border.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.order.mixture import schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_RECORDS = 3_000_000_000
"""The largest number of records: its square must be less than 2^63."""


class Interleaving:
    """The positions of the records of several sequences in the interleaved one.

    >>> order = Interleaving([4, 2])
    >>> order.borders(3).tolist()
    [[0, 0], [2, 1], [4, 2]]
    >>> order.sources(3, [2, 1], 3).tolist()
    [0, 0, 1]
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self.num_records = int(self.counts.sum())
        if self.num_records > MAX_RECORDS:
            raise UsageError(
                f"{self.num_records:,} records cannot be interleaved, at most {MAX_RECORDS:,}",
                help="set interleave: false; streams mix the sources while they read",
            )

    def borders(self, step: int) -> NDArray[np.int64]:
        """Count the records of each source that come before record 0, `step`, 2 `step`, …, and before the end."""
        drawn = np.zeros(len(self.counts), dtype=np.int64)
        borders = [drawn.copy()]
        for first in range(0, self.num_records, step):
            self._advance(first, drawn, min(step, self.num_records - first))
            borders.append(drawn.copy())
        return np.array(borders)

    def sources(self, first: int, drawn: Sequence[int] | NDArray[np.int64], num_records: int) -> NDArray[np.int32]:
        """Return the source number of each record from `first` on; `drawn` of each source come before it."""
        return self._advance(first, np.array(drawn, dtype=np.int64), num_records)

    def _advance(self, first: int, drawn: NDArray[np.int64], num_records: int) -> NDArray[np.int32]:
        sources, draws = np.empty(num_records, dtype=np.int32), np.empty(num_records, dtype=np.int64)
        schedule(self.counts, first, drawn, sources, draws)
        return sources
