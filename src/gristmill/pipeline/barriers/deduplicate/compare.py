"""The fourth kind of task, and those after it: are candidates similar? Sketches reject a pair, texts accept it.

Pairs are compared in the order of their second document, so that most of what is read lies together. Texts are read
from the files that the last stage has written, at once as many as have two million shingles (16 MiB as sets).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gristmill.images.perceptual import HASH_BITS, measure_similarities
from gristmill.pipeline.barriers.deduplicate.record_files import ALIKE, PAIR, make_records, write_records
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.shards.manifest import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.similarity import classify_pairs
from gristmill.text.shingles import ShingleSets, estimate_similarities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import CompareContext, PartitionContext
    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.barriers.deduplicate.match import PartitionTask
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

_PAIRS_AT_ONCE = 1 << 15
_SHINGLES_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class CompareTask:
    """A task that compares the pairs it carries."""

    pairs: Pairs
    stem: str
    by_text: bool = False
    """Compare the texts of all pairs, and return all of them, similar or not."""


class ComparedPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The similar pairs of a task, or all of its pairs where their texts were to be compared."""

    alike: StoredFile
    num_pairs: int
    num_by_text: int

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.alike]


def run_compare(task: Task, context: Context) -> ComparedPairs:
    """Compare a partition of pairs; `context.state` is a `PartitionContext` over the candidates that were found."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    pieces = [pairs for _, pairs in stage.read(PAIR, payload.partition, context.at)]
    pairs = np.concatenate([np.empty(0, PAIR), *pieces])
    return _compare(stage, Pairs.of(pairs["first"], pairs["second"]), payload.stem, context)


def run_compare_pairs(task: Task, context: Context) -> ComparedPairs:
    """Run a `CompareTask`; `context.state` is a `CompareContext`."""
    payload: CompareTask = task.payload
    return _compare(context.state, payload.pairs, payload.stem, context, by_text=payload.by_text)


def _compare(
    stage: CompareContext, pairs: Pairs, stem: str, context: Context, *, by_text: bool = False
) -> ComparedPairs:
    alike = [np.empty(0, ALIKE)]
    num_by_text = 0
    compare = _compare_all_texts if by_text else _find_alike_pairs
    for number, start in enumerate(range(0, len(pairs), _PAIRS_AT_ONCE)):
        context.at(number)
        chunk = pairs.slice(start, start + _PAIRS_AT_ONCE)
        records, num_exact = compare(stage.documents, stage.step, chunk, context.at)
        num_by_text += num_exact
        alike.append(records)
        context.count(records=len(chunk))
    file = write_records(open_stem(stage.work, stem, stage.run_id), ".alike", np.concatenate(alike))
    return ComparedPairs(alike=file, num_pairs=len(pairs), num_by_text=num_by_text)


def _compare_all_texts(
    documents: Documents, step: Deduplicate, pairs: Pairs, report: Callable[[int], object]
) -> tuple[NDArray[np.void], int]:
    """Give all pairs with their exact similarities, and the number of pairs whose texts were compared."""
    values = np.empty(len(pairs))
    _compare_texts(documents, step, pairs, np.arange(len(pairs)), values, report)
    return _make_alike_records(pairs, values, np.ones(len(pairs), dtype=bool)), len(pairs)


def _find_alike_pairs(
    documents: Documents, step: Deduplicate, pairs: Pairs, report: Callable[[int], object]
) -> tuple[NDArray[np.void], int]:
    """Give the pairs that neither sketches nor texts reject, and the number of pairs whose texts were compared."""
    sketches = documents.sketches(pairs.first), documents.sketches(pairs.second)
    if step.kind == "image":  # the whole hashes are compared, so there is nothing left to verify
        return _find_alike_images(step, pairs, *sketches), 0
    values = estimate_similarities(*sketches)
    classified = classify_pairs(step, values)
    undecided = classified.undecided
    indices = np.flatnonzero(undecided)
    _compare_texts(documents, step, pairs, indices, values, report)
    is_alike = classified.alike | (undecided & (values >= step.threshold))
    return _make_alike_records(pairs, values, undecided)[is_alike], len(indices)


def _find_alike_images(
    step: Deduplicate, pairs: Pairs, first: NDArray[np.uint8], second: NDArray[np.uint8]
) -> NDArray[np.void]:
    """Give the pairs of images that are alike."""
    values = measure_similarities(first, second)
    is_alike = values >= 1 - step.max_distance / HASH_BITS
    return _make_alike_records(pairs, values, np.ones(len(pairs), dtype=bool))[is_alike]


def _make_alike_records(pairs: Pairs, values: NDArray[np.float64], is_exact: NDArray[np.bool_]) -> NDArray[np.void]:
    return make_records(ALIKE, first=pairs.first, second=pairs.second, similarity=values, is_exact=is_exact)


def _compare_texts(
    documents: Documents,
    step: Deduplicate,
    pairs: Pairs,
    indices: NDArray[np.int64],
    values: NDArray[np.float64],
    report: Callable[[int], object],
) -> None:
    """Put the exact similarities of the pairs at `indices` into `values`."""
    for number, group in enumerate(_group_by_memory(documents, pairs, indices)):
        report(number)
        first, second = pairs.first[group], pairs.second[group]
        needed = np.unique(np.concatenate([first, second]))
        sets = ShingleSets.of(documents.texts(needed), step.ngram)
        values[group] = sets.compare(np.searchsorted(needed, first), np.searchsorted(needed, second))


def _group_by_memory(documents: Documents, pairs: Pairs, indices: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Group the indices of pairs so that the shingles of a group fit into memory together."""
    left, right = (documents.describe(side[indices])["num_shingles"] for side in (pairs.first, pairs.second))
    totals = np.cumsum(left.astype(np.int64) + right)
    first = 0
    while first < len(indices):
        before = totals[first - 1] if first else 0
        stop = max(int(np.searchsorted(totals, before + _SHINGLES_AT_ONCE, side="right")), first + 1)
        yield indices[first:stop]
        first = stop
