"""What the workers of each kind of task get once: one small context for each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from gristmill.pipeline.stages.stage_context import StageContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.barriers.deduplicate.record_files import PartitionedFile
    from gristmill.steps.deduplicate.deduplicate import Deduplicate


@dataclass(frozen=True, slots=True, kw_only=True)
class SignContext(StageContext):
    """The context of tasks that sign units: nothing is known of the documents yet."""

    step: Deduplicate

    @classmethod
    def extend(cls, context: StageContext, **fields: Any) -> Self:
        """Make a context from that of a stage, or of an earlier kind of task, and what is known since."""
        names = {each.name for each in dataclasses.fields(cls)} & {each.name for each in dataclasses.fields(context)}
        return cls(**{name: getattr(context, name) for name in names} | fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareContext(SignContext):
    """The context of tasks that compare pairs of documents."""

    documents: Documents


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContext(CompareContext):
    """The context of tasks that work through one partition of what earlier tasks have scattered."""

    inputs: tuple[PartitionedFile, ...]
    """Partitioned files: one for each stream of documents, or one for each task that found pairs."""
    num_partitions: int

    def read(self, kind: np.dtype[Any], partition: int, report: Callable[[int], object]) -> Iterator[tuple[int, Any]]:
        """Read the records of a partition, with the number of the input that each array comes from."""
        for number, partitioned in enumerate(self.inputs):
            report(number)
            for records in partitioned.read(self.work, kind, partition, self.num_partitions):
                yield number, records


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateContext(PartitionContext):
    """The context of tasks that find candidates: exact copies are left out."""

    exact_copies_bitmap: str
    """Path of a file with one bit for each document, set for a copy of another one."""
