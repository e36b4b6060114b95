"""What the workers of each kind of task get once: one small context for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import StageContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.barriers.deduplicate.record_files import PartitionedFile
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.shards.manifests.stored_files import StoredFile
    from gristmill.steps.deduplicate.deduplicate import Deduplicate


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """A task that works through one partition, or some consecutive ones, of what earlier tasks have scattered."""

    partition: int
    stem: str
    num_partitions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SignContext(StageContext):
    """The context of tasks that sign units: nothing is known of the documents yet."""

    step: Deduplicate


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContext(SignContext):
    """The context of tasks that work through partitions of what earlier tasks have scattered."""

    documents: Documents
    inputs: Mapping[str, tuple[PartitionedFile, ...]] = field(default_factory=dict)
    """Partitioned files by what they hold: one for each task that has written them, or for each stream."""
    files: Mapping[str, tuple[StoredFile, ...]] = field(default_factory=dict)
    """Files by what they hold: one for each range of documents."""
    input_starts: NDArray[np.int64] | None = None
    """Of inputs with rows: the number of the document that has the first row of each."""
    num_partitions: int = 1
    """The number of partitions of keys or of clusters; of documents there are as many as ranges."""
    block_bytes: int | None = None
    """How much is written at once, if it is more than usual."""

    def read(self, name: str, kind: np.dtype[Any], partition: int, report: Callable[[int], object]) -> Iterator[Any]:
        """Read the records of a partition, with the number of the document that has the first row of their input."""
        assert self.input_starts is not None
        for number, partitioned in enumerate(self.inputs[name]):
            report(number)
            for records in partitioned.read(self.work, kind, partition, self.num_partitions):
                yield self.input_starts[number], records

    def gather(self, name: str, kind: np.dtype[Any], partition: int, count: int = 1) -> NDArray[Any]:
        """Read all records of a partition, or of `count` consecutive ones, of as many as the inputs have."""
        places = [
            (partitioned, start, stop)
            for partitioned in self.inputs[name]
            for start, stop in partitioned.locate(self.work, kind, partition, partitioned.num_partitions, count)
        ]
        # Piece by piece: all of them and one array of all would be twice the memory, and twice as many fresh pages.
        records = np.empty(sum(stop - start for _, start, stop in places), kind)
        num_read = 0
        for partitioned, start, stop in places:
            piece = partitioned.read_located(self.work, kind, start, stop)
            records[num_read : num_read + len(piece)] = piece
            num_read += len(piece)
        return records

    def open_stem(self, task: PartitionTask) -> OutputStem:
        """Open the stem of a task's files."""
        return open_stem(self.work, task.stem, self.run_id)
