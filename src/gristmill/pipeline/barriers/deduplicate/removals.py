"""Tasks that gather what is removed, by ranges of documents: near copies, and exact ones with their last survivors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.pipeline.barriers.deduplicate.record_files import (
    NUMBER,
    PAIR,
    PartitionedFile,
    make_records,
    scatter_records,
    write_records,
)
from gristmill.pipeline.barriers.deduplicate.removal_lists import COUNT, REMOVAL
from gristmill.shards.manifests.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import PartitionContext, PartitionTask
    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.stages.outputs.split_files import OutputStem

ORIGIN_FIELDS = ("file", "position", "part")


class ScatteredRemovals(msgspec.Struct, frozen=True, kw_only=True):
    """Removals, scattered by the range of the document that goes, and of the one that stays."""

    removals: PartitionedFile
    survivors: PartitionedFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.removals.file, self.survivors.file]


def scatter_removals(stem: OutputStem, removals: NDArray[Any], documents: Documents) -> ScatteredRemovals:
    """Write removals for the ranges of both of their documents."""
    survivors = make_records(NUMBER, document=removals["survivor"])
    by_document, by_survivor = (documents.find_ranges(removals[name]) for name in ("document", "survivor"))
    return ScatteredRemovals(
        removals=scatter_records(stem, ".removed", removals, by_document, documents.num_ranges),
        survivors=scatter_records(stem, ".kept", survivors, by_survivor, documents.num_ranges),
    )


def run_follow(task: Task, context: Context) -> ScatteredRemovals:
    """Find the last survivors of exact copies, by the range of the document with the same text.

    If that is itself removed as a near copy of a third document, the third one is the survivor of both.
    `context.state` is a `PartitionContext` with the copies and the near removals.
    """
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    copies = stage.gather("copies", PAIR, payload.partition)
    # Reference documents stay even where they are copies of each other.
    copies = copies[copies["second"] >= stage.documents.num_reference]
    near = stage.gather("near", REMOVAL, payload.partition)
    near = near[np.argsort(near["document"])]
    origins = stage.documents.describe(copies["first"])
    removals = make_records(
        REMOVAL,
        document=copies["second"],
        survivor=copies["first"],
        similarity=np.ones(len(copies)),
        is_exact=np.ones(len(copies), dtype=bool),
        **{name: origins[name] for name in ORIGIN_FIELDS},
    )
    if len(near):
        indices = np.minimum(np.searchsorted(near["document"], copies["first"]), len(near) - 1)
        is_removed = near["document"][indices] == copies["first"]
        followed = near[indices[is_removed]]
        followed["document"] = copies["second"][is_removed]
        removals[is_removed] = followed
    return scatter_removals(stage.open_stem(payload), removals, stage.documents)


class RangeRemovals(msgspec.Struct, frozen=True, kw_only=True):
    """The removals from a range of documents, and how many documents those of the range stand for."""

    removals: StoredFile
    counts: StoredFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.removals, self.counts]


def run_gather(task: Task, context: Context) -> RangeRemovals:
    """Sort the removals of a range; `context.state` is a `PartitionContext` with those of all tasks."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    removals = stage.gather("removals", REMOVAL, payload.partition)
    removals = removals[np.argsort(removals["document"])]
    numbers = stage.gather("survivors", NUMBER, payload.partition)["document"]
    survivors, counts = np.unique(numbers, return_counts=True)
    stem = stage.open_stem(payload)
    return RangeRemovals(
        removals=write_records(stem, ".removals", removals),
        counts=write_records(stem, ".counts", make_records(COUNT, document=survivors, count=counts + 1)),
    )
