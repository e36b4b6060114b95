"""The fourth stage and those behind it: are candidates alike? Sketches reject, texts accept (`duplicates/likeness.py`).

Pairs are taken in the order of their second document, so that most of what is read lies together. Texts come back from
the parts that the last leg has written; at once as many as have two million shingles (16 MiB as sets).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.pipeline.barriers.deduplicate.record_files import ALIKE, PAIR, make_records, write_records
from gristmill.pipeline.stages.sink import OutputStem
from gristmill.shards.manifest import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.similarity import classify_pairs
from gristmill.text.shingles import ShingleSets, estimate_similarities, jaccard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.documents import DedupContext, Documents
    from gristmill.pipeline.barriers.deduplicate.match import PartitionTask
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

_PAIRS_AT_ONCE = 1 << 15
_SHINGLES_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class CompareTask:
    """Compare these."""

    pairs: Pairs
    stem: str
    by_text: bool = False
    """Compare the texts of all, and give back all of them, alike or not."""


class ComparedPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs that are alike, or all whose texts were to be compared."""

    alike: StoredFile
    num_pairs: int
    num_by_text: int

    def files(self) -> list[StoredFile]:
        return [self.alike]


def run_compare(task: Task, context: Context) -> ComparedPairs:
    """Compare a partition of pairs; `context.state` is the `DedupContext` with the pairs that share keys."""
    stage: DedupContext = context.state
    part: PartitionTask = task.payload
    found = [pairs for _, pairs in stage.read(PAIR, part.partition, context.at)]
    joined = np.concatenate([np.empty(0, PAIR), *found])
    return _compare(stage, Pairs.of(joined["first"], joined["second"]), part.stem, context)


def run_compare_pairs(task: Task, context: Context) -> ComparedPairs:
    """Pairs that come with the task."""
    work: CompareTask = task.payload
    return _compare(context.state, work.pairs, work.stem, context, by_text=work.by_text)


def _compare(stage: DedupContext, pairs: Pairs, stem: str, context: Context, *, by_text: bool = False) -> ComparedPairs:
    alike = [np.empty(0, ALIKE)]
    num_by_text = 0
    compare = _compare_all_texts if by_text else _find_alike_pairs
    for number, start in enumerate(range(0, len(pairs), _PAIRS_AT_ONCE)):
        context.at(number)
        some = pairs.slice(start, start + _PAIRS_AT_ONCE)
        found, num_exact = compare(stage.known, stage.step, some, context.at)
        num_by_text += num_exact
        alike.append(found)
        context.count(records=len(some))
    file = write_records(OutputStem(stage.root, stem, stage.run_id), ".alike", np.concatenate(alike))
    return ComparedPairs(alike=file, num_pairs=len(pairs), num_by_text=num_by_text)


def _compare_all_texts(
    documents: Documents, step: Deduplicate, pairs: Pairs, at: Callable[[int], object]
) -> tuple[NDArray[np.void], int]:
    found = np.empty(len(pairs))
    _compare_texts(documents, step, pairs, np.arange(len(pairs)), found, at)
    return _make_alike_records(pairs, found, np.ones(len(pairs), dtype=bool)), len(pairs)


def _find_alike_pairs(
    documents: Documents, step: Deduplicate, pairs: Pairs, at: Callable[[int], object]
) -> tuple[NDArray[np.void], int]:
    """The pairs that no sketch and no text has rejected, and for how many the texts were compared."""
    found = estimate_similarities(documents.sketches(pairs.first), documents.sketches(pairs.second))
    judgement = classify_pairs(step, found)
    undecided = judgement.undecided
    places = np.flatnonzero(undecided)
    _compare_texts(documents, step, pairs, places, found, at)
    is_alike = judgement.alike | (undecided & (found >= step.threshold))
    return _make_alike_records(pairs, found, undecided)[is_alike], len(places)


def _make_alike_records(pairs: Pairs, found: NDArray[np.float64], is_exact: NDArray[np.bool_]) -> NDArray[np.void]:
    return make_records(ALIKE, first=pairs.first, second=pairs.second, similarity=found, is_exact=is_exact)


def _compare_texts(
    documents: Documents,
    step: Deduplicate,
    pairs: Pairs,
    places: NDArray[np.int64],
    found: NDArray[np.float64],
    at: Callable[[int], object],
) -> None:
    """Put the exact similarities of the pairs at these places into `found`."""
    for number, some in enumerate(_group_by_memory(documents, pairs, places)):
        at(number)
        first, second = pairs.first[some], pairs.second[some]
        needed = np.unique(np.concatenate([first, second]))
        sets = ShingleSets(step.ngram).of(documents.texts(needed))
        ends = zip(np.searchsorted(needed, first), np.searchsorted(needed, second), strict=True)
        found[some] = [jaccard(sets[one], sets[other]) for one, other in ends]


def _group_by_memory(documents: Documents, pairs: Pairs, places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The places of pairs, in groups whose shingles fit into memory together."""
    one, other = (documents.describe(side[places])["num_shingles"] for side in (pairs.first, pairs.second))
    ends = np.cumsum(one.astype(np.int64) + other)
    first = 0
    while first < len(places):
        before = ends[first - 1] if first else 0
        stop = max(int(np.searchsorted(ends, before + _SHINGLES_AT_ONCE, side="right")), first + 1)
        yield places[first:stop]
        first = stop
