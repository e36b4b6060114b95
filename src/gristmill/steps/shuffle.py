"""`shuffle`: put all records of a source in a random order that depends on their origins alone.

Each record's key is a hash of the seed and its origin. A corpus larger than memory is first distributed to buckets by
the highest bits of the key, then each bucket is sorted. The buckets one after another are the whole order, however many
there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
import numpy as np

from gristmill.core.records import ORIGIN
from gristmill.core.seeds import hash_origins
from gristmill.core.step import GlobalStep, LocalStep, check_choices
from gristmill.steps.records.source_column import NameSource, with_source_field

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


class Shuffle(GlobalStep, tag="shuffle", frozen=True, kw_only=True):
    """Put the records of each source in a random order; the same seed gives the same order.

    Sources stay apart, since streams mix them. With `across: sources` they are written as one lane, `train/mixed/`:
    each in its random order, interleaved so that every beginning holds each source in its share.

    >>> from gristmill.core.sample_batches import documents, texts
    >>> texts(Shuffle().sort(documents(list("abcdef")), seed=1))
    ['b', 'e', 'c', 'a', 'f', 'd']
    """

    version: ClassVar[int] = 2
    disk_copies: ClassVar[int] = 2

    across: Literal["sources"] | None = None

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_source_field(schema) if self.joins_sources else schema

    @property
    def joins_sources(self) -> bool:
        return self.across == "sources"

    def sample_step(self) -> LocalStep | None:
        return NameSource(source="") if self.joins_sources else None

    def keys(self, batch: pa.RecordBatch, seed: int, epoch: int = 0) -> NDArray[np.uint64]:
        """Return the place of each record in the whole order; each epoch of a `mix` has other places."""
        return hash_origins(seed, f"shuffle/{epoch}" if epoch else "shuffle", batch.column(ORIGIN))

    def sort(self, batch: pa.RecordBatch, seed: int, epoch: int = 0) -> pa.RecordBatch:
        """Sort the records by their keys; records with equal keys by their origins."""
        origin = batch.column(ORIGIN)
        fields = [origin.field(name).to_numpy(zero_copy_only=False) for name in ("part", "position", "file")]
        return batch.take(np.lexsort((*fields, self.keys(batch, seed, epoch))))
