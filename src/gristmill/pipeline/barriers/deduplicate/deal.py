"""Tasks that deal the documents of clusters, by ranges: one pass over their texts, which become sets of shingles.

All that is needed to decide about a cluster comes to one partition: similar pairs, and of each member its rank, origin,
sketch and set. So no text is ever read for a pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.pipeline.barriers.deduplicate.record_files import (
    PAIR,
    SIMILAR,
    PartitionedFile,
    RunWriter,
    make_records,
    read_records,
    scatter_records,
)
from gristmill.text.shingles import ShingleSets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import PartitionContext, PartitionTask
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.shards.manifests.stored_files import StoredFile
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

SHINGLE = np.dtype("<u8")


def make_member_type(num_permutations: int) -> np.dtype[Any]:
    """Make the type of the records of cluster members, with sketches of this size."""
    return np.dtype(
        [
            ("document", "<i8"),
            ("rank", "<u8"),
            ("file", "<u8"),
            ("position", "<u8"),
            ("part", "<u4"),
            ("num_shingles", "<i8"),
            ("sketch", "u1", (num_permutations,)),
        ]
    )


def needs_texts(step: Deduplicate) -> bool:
    """Tell whether pairs are accepted by their texts only."""
    return step.verify == "text" and step.kind != "image"


class DealtMembers(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of a range that are in clusters, and its similar pairs, scattered by cluster."""

    members: PartitionedFile
    shingles: PartitionedFile
    similar: PartitionedFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.members.file, self.shingles.file, self.similar.file]


def run_deal(task: Task, context: Context) -> DealtMembers:
    """Deal a range; `context.state` is a `PartitionContext` with the stars, and each range's file of similar pairs."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    documents, stem = stage.documents, stage.open_stem(payload)
    members, labels = _find_members(stage, payload.partition)
    partitions = labels % stage.num_partitions
    descriptions = documents.describe(members)
    records = make_records(
        make_member_type(documents.num_permutations),
        document=members,
        rank=documents.ranks(members),
        num_shingles=np.zeros(len(members), np.int64),
        sketch=documents.sketches(members),
        **{name: descriptions[name] for name in ("file", "position", "part")},
    )
    shingles = _deal_shingles(stage, stem, members, partitions, records["num_shingles"], context)
    similar = read_records(stage.work, stage.files["similar"][payload.partition], SIMILAR)
    similar_partitions = partitions[np.searchsorted(members, similar["second"])]
    return DealtMembers(
        members=scatter_records(stem, ".members", records, partitions, stage.num_partitions),
        shingles=shingles,
        similar=scatter_records(stem, ".pairs", similar, similar_partitions, stage.num_partitions),
    )


def _find_members(stage: PartitionContext, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the documents of a range that are in clusters, sorted, and for each the smallest one of its cluster."""
    start, stop = stage.documents.range_starts[number : number + 2].tolist()
    stars = stage.gather("edges", PAIR, number)
    first, second = stars["first"], stars["second"]
    inside = (second >= start) & (second < stop)
    smallest = first[(first >= start) & (first < stop)]
    members, indices = np.unique(np.concatenate([second[inside], smallest]), return_index=True)
    return members, np.concatenate([first[inside], smallest])[indices]


def _deal_shingles(
    stage: PartitionContext,
    stem: OutputStem,
    members: NDArray[np.int64],
    partitions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    context: Context,
) -> PartitionedFile:
    """Read the texts of members in one pass and scatter their sets; writes the size of each set to `sizes`."""
    block_bytes = {} if stage.block_bytes is None else {"block_bytes": stage.block_bytes}
    with RunWriter(stem, ".shingles", stage.num_partitions, notes_bounds=True, **block_bytes) as writer:
        first = 0
        for texts in stage.documents.read_texts(members) if needs_texts(stage.step) else ():
            context.at(first)
            sets = ShingleSets.of(texts, stage.step.ngram)
            stop = first + len(texts)
            sizes[first:stop] = sets.sizes
            if len(texts):
                # A copy: the memory in which sets are made has room for texts of the shortest words.
                writer.scatter_runs(sets.shingles.copy(), partitions[first:stop], sets.sizes)
            context.count(records=len(texts))
            first = stop
        return writer.close()
