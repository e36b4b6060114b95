"""The second and third kind of task: documents with equal digests, and pairs with a band in common, by partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.pipeline.barriers.deduplicate.record_files import (
    DIGEST,
    KEY,
    PAIR,
    PartitionedFile,
    PartitionWriter,
    make_records,
    map_records,
    write_records,
)
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.shards.manifest import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.candidates import ALL_PAIRS, Pairs, find_candidate_pairs, group_by_key
from gristmill.steps.deduplicate.digests import find_copies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import CandidateContext, PartitionContext


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """A task that works through one partition of what earlier tasks have scattered."""

    partition: int
    stem: str


class CopyPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The copies found in a partition: pairs of the document that stays and its copy."""

    copies: StoredFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.copies]


def run_copies(task: Task, context: Context) -> CopyPairs:
    """Find documents with equal texts; `context.state` is a `PartitionContext` over the digests of each unit."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    digests, numbers = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)]
    for unit, records in stage.read(DIGEST, payload.partition, context.at):
        digests.append(np.stack([records["high"], records["low"]], axis=1))
        numbers.append(stage.documents.starts[unit] + records["row"])
    copies = find_copies(np.concatenate(digests), np.concatenate(numbers), stage.documents.ranks)
    pairs = make_records(PAIR, first=copies.survivors, second=copies.documents)
    return CopyPairs(copies=write_records(open_stem(stage.work, payload.stem, stage.run_id), ".copies", pairs))


class CandidatePairs(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs found in a partition that share a band, scattered by their second document."""

    pairs: PartitionedFile
    num_groups: int
    largest_group: int
    num_capped: int
    """Number of groups too large to take all pairs of."""

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.pairs.file]


def run_candidates(task: Task, context: Context) -> CandidatePairs:
    """Find pairs that share a band; `context.state` is a `CandidateContext` over the band keys of each unit."""
    stage: CandidateContext = context.state
    payload: PartitionTask = task.payload
    documents = stage.documents
    copies_bitmap = map_records(stage.work, stage.exact_copies_bitmap, np.uint8)
    keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for unit, records in stage.read(KEY, payload.partition, context.at):
        unit_numbers = documents.starts[unit] + records["row"]
        is_original = _read_bits(copies_bitmap, unit_numbers) == 0
        keys.append(records["key"][is_original])
        numbers.append(unit_numbers[is_original])
    all_keys, all_numbers = np.concatenate(keys), np.concatenate(numbers)
    del keys, numbers  # these arrays are large: the pieces must not stay in memory beside the whole
    groups = group_by_key(all_keys, all_numbers, documents.ranks)
    sizes = np.diff(groups.starts)
    pairs = find_candidate_pairs(groups, documents.sketches, documents.num_reference)
    is_removable = pairs.second >= documents.num_reference  # of two reference documents neither is removed
    pairs = Pairs(pairs.first[is_removable], pairs.second[is_removable])
    num_partitions = stage.num_partitions
    with PartitionWriter(open_stem(stage.work, payload.stem, stage.run_id), ".pairs", num_partitions) as writer:
        records = make_records(PAIR, first=pairs.first, second=pairs.second)
        # By ranges of the second document, so that a task that compares pairs reads neighbouring documents.
        writer.scatter(records, pairs.second * num_partitions // len(documents))
        return CandidatePairs(
            pairs=writer.close(),
            num_groups=len(sizes),
            largest_group=int(sizes.max(initial=0)),
            num_capped=int(np.count_nonzero(sizes > ALL_PAIRS)),
        )


def _read_bits(bitmap: NDArray[np.uint8], indices: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Read single bits of a bitmap that `numpy.packbits` has made: the first bit is the highest of a byte."""
    bits: NDArray[np.uint8] = bitmap[indices >> 3] >> (7 - (indices & 7)).astype(np.uint8) & np.uint8(1)
    return bits


def pack_bits(indices: NDArray[np.int64], start: int, stop: int) -> NDArray[np.uint8]:
    """Make the bitmap from `start` (a multiple of eight) to `stop`, with the bits at the sorted `indices` set."""
    bits = np.zeros(stop - start, dtype=bool)
    first, last = np.searchsorted(indices, [start, stop])
    bits[indices[first:last] - start] = True
    return np.packbits(bits)
