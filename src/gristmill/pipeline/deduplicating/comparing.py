"""The fourth stage, and the fifth: are candidates alike? By their sketches where these are clear, else by their texts.

Pairs are taken in the order of their second document, so that most of what is read lies together. Texts come back from
the parts that the last leg has written; at once as many as have two million shingles (16 MiB as sets).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.pipeline.deduplicating.records_on_disk import ALIKE, PAIR, records, write_records
from gristmill.pipeline.sink import Place
from gristmill.shards.manifest import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.duplicates.candidates import Pairs
from gristmill.steps.duplicates.likeness import judge
from gristmill.text.shingles import ShingleSets, jaccard, similarities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.deduplicating.documents import DedupStage, Documents
    from gristmill.pipeline.deduplicating.matching import PartitionTask
    from gristmill.steps.deduplicate import Deduplicate

_PAIRS_AT_ONCE = 1 << 15
_SHINGLES_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class PairsTask:
    """Compare these."""

    pairs: Pairs
    stem: str


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs that are alike."""

    alike: StoredFile
    num_pairs: int
    num_by_text: int

    def files(self) -> list[StoredFile]:
        return [self.alike]


def run_compare(task: Task, context: Context) -> Compared:
    """A partition of pairs; `context.state` is the `DedupStage`, its inputs the pairs that partitions of keys gave."""
    stage: DedupStage = context.state
    part: PartitionTask = task.payload
    found = [pairs for _, pairs in stage.read(PAIR, part.partition, context.at)]
    joined = np.concatenate([np.empty(0, PAIR), *found])
    return _compare(stage, Pairs.of(joined["first"], joined["second"]), part.stem, context)


def run_compare_pairs(task: Task, context: Context) -> Compared:
    """Pairs that come with the task."""
    work: PairsTask = task.payload
    return _compare(context.state, work.pairs, work.stem, context)


def _compare(stage: DedupStage, pairs: Pairs, stem: str, context: Context) -> Compared:
    alike = [np.empty(0, ALIKE)]
    num_by_text = 0
    for number, start in enumerate(range(0, len(pairs), _PAIRS_AT_ONCE)):
        context.at(number)
        some = pairs.slice(start, start + _PAIRS_AT_ONCE)
        found, is_alike, num_undecided = _similarities(stage.known, stage.step, some, context.at)
        num_by_text += num_undecided
        kept = records(ALIKE, first=some.first, second=some.second, similarity=found)
        alike.append(kept[is_alike])
        context.count(records=len(some))
    file = write_records(Place(stage.root, stem, stage.run_id), ".alike", np.concatenate(alike))
    return Compared(alike=file, num_pairs=len(pairs), num_by_text=num_by_text)


def _similarities(
    documents: Documents, step: Deduplicate, pairs: Pairs, at: Callable[[int], object]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], int]:
    """How alike each pair is, whether that is enough, and for how many the texts were needed."""
    found = similarities(documents.sketches(pairs.first), documents.sketches(pairs.second))
    judgement = judge(step, found)
    is_alike = judgement.alike.copy()
    undecided = np.flatnonzero(judgement.undecided)
    for number, places in enumerate(_that_fit(documents, pairs, undecided)):
        at(number)
        first, second = pairs.first[places], pairs.second[places]
        needed = np.unique(np.concatenate([first, second]))
        sets = ShingleSets(step.ngram).of(documents.texts(needed))
        ends = zip(np.searchsorted(needed, first), np.searchsorted(needed, second), strict=True)
        found[places] = [jaccard(sets[one], sets[other]) for one, other in ends]
        is_alike[places] = found[places] >= step.threshold
    return found, is_alike, len(undecided)


def _that_fit(documents: Documents, pairs: Pairs, places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The places of pairs, in groups whose shingles fit into memory together."""
    one, other = (documents.describe(side[places])["num_shingles"] for side in (pairs.first, pairs.second))
    ends = np.cumsum(one.astype(np.int64) + other)
    first = 0
    while first < len(places):
        before = ends[first - 1] if first else 0
        stop = max(int(np.searchsorted(ends, before + _SHINGLES_AT_ONCE, side="right")), first + 1)
        yield places[first:stop]
        first = stop
