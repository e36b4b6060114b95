"""Inputs of units: spans of files in the first stage, and in later stages records that a barrier has stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import pyarrow as pa

from gristmill.core.splits import TRAIN
from gristmill.pipeline.planning.units import Span
from gristmill.storage.mapped_files import open_stream_source
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gristmill.storage.locations import Location


class StoredRecords(Protocol):
    """The input that a barrier passes to the next stage. Each barrier has its own class for it, beside the barrier."""

    @property
    def num_rows(self) -> int:
        """The number of rows on disk, of which the barrier may drop some."""

    @property
    def is_copy(self) -> bool:
        """Whether the records have come before, so that these are new ones."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What else the barrier has counted, for the books."""

    def count_dropped(self, num_records: int) -> Mapping[str, int]:
        """Count by reason the rows that the barrier drops, if `num_records` were read."""

    def batches(self, root: Location, seed: int) -> Iterator[pa.RecordBatch]:
        """Read the records, one batch for each cell."""


UnitInput: TypeAlias = Span | StoredRecords
"""One input of a unit. All inputs of a unit are of one kind: spans before the first barrier, stored records after it.
Only spans can be cut into slices, because only files have cells that can be read on their own."""


@dataclass(frozen=True, slots=True)
class StoredInput:
    """An Arrow stream with one batch for each cell, read as it is."""

    path: str
    num_rows: int
    split: str = TRAIN

    is_copy: ClassVar[bool] = False
    counters: ClassVar[Mapping[str, int]] = {}

    def count_dropped(self, num_records: int) -> Mapping[str, int]:  # noqa: ARG002  (part of `StoredRecords`)
        """Give no reasons: nothing is dropped."""
        return {}

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (part of `StoredRecords`)
        """Read the stream. The file is mapped, so columns that nobody uses are not read from disk."""
        with open_stream_source(path_below(root, self.path)) as file:
            for batch in pa.ipc.open_stream(file):
                batch.validate()
                yield batch
