"""`sample`: keep a random share of the records. The choice depends on each record's origin alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, is_for_training
from gristmill.core.seeds import hash_bound, hash_origins
from gristmill.core.step import FilterStep

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


class Sample(FilterStep, tag="sample", frozen=True, kw_only=True):
    """Keep each training record with the probability `fraction`, by a hash of the seed and its origin.

    Adding or removing files changes no choice, and a smaller fraction keeps a subset of what a larger one keeps. So
    two samples in one recipe are not independent (0.5 and then 0.1 keep 0.1) unless their `salt` differs. Records of
    other splits than `train` are all kept.

    >>> from gristmill.core.sample_batches import documents
    >>> applied = Sample(fraction=0.25).apply(documents(["text"] * 1000), seed=7)
    >>> applied.batch.num_rows, applied.dropped
    (251, {'not_sampled': 749})
    """

    version: ClassVar[int] = 2

    fraction: float
    salt: str = ""
    """Any text: another salt makes another choice."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise UsageError(f"fraction must be from 0 to 1, not {self.fraction}")

    def drop_reasons(self, batch: pa.RecordBatch, seed: int) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
        hashes = hash_origins(seed, f"sample/{self.salt}", batch.column(ORIGIN))
        is_dropped = (hashes >= hash_bound(self.fraction)) & is_for_training(batch)
        return is_dropped.astype(np.uint8), ("not_sampled",)
