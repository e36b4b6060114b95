"""The second and third stage: documents with equal digests, and pairs with a band in common, partition by partition."""

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
from gristmill.pipeline.stages.sink import OutputStem
from gristmill.shards.manifest import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.candidates import ALL_PAIRS, Pairs, find_candidate_pairs, group_by_key
from gristmill.steps.deduplicate.digests import find_copies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.documents import DedupContext


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """One partition of what the stage before has dealt out."""

    partition: int
    stem: str


class CopyPairs(msgspec.Struct, frozen=True, kw_only=True):
    """Documents that are copies of a better one: pairs of the one that stays and the other."""

    copies: StoredFile

    def files(self) -> list[StoredFile]:
        return [self.copies]


def run_copies(task: Task, context: Context) -> CopyPairs:
    """The function of these tasks; `context.state` is the `DedupContext`, its inputs the digests of each unit."""
    stage: DedupContext = context.state
    part: PartitionTask = task.payload
    digests, numbers = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)]
    for unit, found in stage.read(DIGEST, part.partition, context.at):
        digests.append(np.stack([found["high"], found["low"]], axis=1))
        numbers.append(stage.known.starts[unit] + found["row"])
    copies = find_copies(np.concatenate(digests), np.concatenate(numbers), stage.known.ranks)
    content = make_records(PAIR, first=copies.survivors, second=copies.documents)
    return CopyPairs(copies=write_records(OutputStem(stage.root, part.stem, stage.run_id), ".copies", content))


class CandidatePairs(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs that share a band."""

    pairs: PartitionedFile
    num_groups: int
    largest_group: int
    num_capped: int
    """Groups of which not all pairs were taken."""

    def files(self) -> list[StoredFile]:
        return [self.pairs.file]


def run_candidates(task: Task, context: Context) -> CandidatePairs:
    """The function of these tasks; `context.state` is the `DedupContext`, its inputs the keys of each unit."""
    stage: DedupContext = context.state
    part: PartitionTask = task.payload
    documents = stage.known
    hidden = map_records(stage.root, stage.exact_copies_bitmap, np.uint8)
    keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for unit, found in stage.read(KEY, part.partition, context.at):
        number = documents.starts[unit] + found["row"]
        is_left = _read_bits(hidden, number) == 0
        keys.append(found["key"][is_left])
        numbers.append(number[is_left])
    joined_keys, joined_numbers = np.concatenate(keys), np.concatenate(numbers)
    del keys, numbers
    alike = group_by_key(joined_keys, joined_numbers, documents.ranks)
    sizes = np.diff(alike.starts)
    pairs = find_candidate_pairs(alike, documents.sketches, documents.num_reference)
    is_open = pairs.second >= documents.num_reference  # two that both stay need not be compared
    pairs = Pairs(pairs.first[is_open], pairs.second[is_open])
    num_partitions = stage.inputs[0].num_partitions
    with PartitionWriter(OutputStem(stage.root, part.stem, stage.run_id), ".pairs", num_partitions) as file:
        content = make_records(PAIR, first=pairs.first, second=pairs.second)
        file.scatter(content, pairs.second * num_partitions // len(documents))
        return CandidatePairs(
            pairs=file.close(),
            num_groups=len(sizes),
            largest_group=int(sizes.max(initial=0)),
            num_capped=int(np.count_nonzero(sizes > ALL_PAIRS)),
        )


def _read_bits(packed: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = packed[places >> 3] >> (7 - (places & 7)).astype(np.uint8) & np.uint8(1)
    return found


def pack_bits(places: NDArray[np.int64], start: int, stop: int) -> NDArray[np.uint8]:
    """Bits from `start` on (a multiple of eight) with those of the sorted `places` set."""
    bits = np.zeros(stop - start, dtype=bool)
    first, last = np.searchsorted(places, [start, stop])
    bits[places[first:last] - start] = True
    return np.packbits(bits)
