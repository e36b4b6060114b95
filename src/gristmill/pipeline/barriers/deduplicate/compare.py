"""Tasks that compare the sketches of candidates, by ranges of the second document. Sketches reject most of them.

What is left is written twice: as pairs with their estimates, for the range; and as edges of the graph whose components
are clusters, for the ranges of both ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.pipeline.barriers.deduplicate.record_files import (
    PAIR,
    SIMILAR,
    PartitionedFile,
    make_records,
    scatter_records,
    write_records,
)
from gristmill.shards.manifest import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.similarity import classify_pairs, compare_sketches
from gristmill.storage.stored_paths import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import PartitionContext, PartitionTask
    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.stages.outputs.split_files import OutputStem

_PAIRS_AT_ONCE = 1 << 15


class ComparedPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs of a range that their sketches do not reject."""

    similar: StoredFile
    edges: PartitionedFile
    num_pairs: Count
    num_similar: Count

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.similar, self.edges.file]


def run_compare(task: Task, context: Context) -> ComparedPairs:
    """Compare the candidates of a range; `context.state` is a `PartitionContext` with the pairs."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    records = stage.gather("pairs", PAIR, payload.partition)
    pairs = Pairs.of(records["first"], records["second"])
    similar = [np.empty(0, SIMILAR)]
    for number, start in enumerate(range(0, len(pairs), _PAIRS_AT_ONCE)):
        context.at(number)
        chunk = pairs.slice(start, start + _PAIRS_AT_ONCE)
        sketches = (stage.documents.sketches(side) for side in (chunk.first, chunk.second))
        estimates = compare_sketches(stage.step, *sketches)
        classified = classify_pairs(stage.step, estimates)
        compared = make_records(SIMILAR, first=chunk.first, second=chunk.second, estimate=estimates)
        similar.append(compared[classified.alike | classified.undecided])
        context.count(records=len(chunk))
    stem, left = stage.open_stem(payload), np.concatenate(similar)
    return ComparedPairs(
        similar=write_records(stem, ".similar", left),
        edges=scatter_edges(stem, Pairs(left["first"], left["second"]), stage.documents),
        num_pairs=len(pairs),
        num_similar=len(left),
    )


def scatter_edges(stem: OutputStem, edges: Pairs, documents: Documents) -> PartitionedFile:
    """Write edges for the ranges of both of their ends; once where that is the same range."""
    records = make_records(PAIR, first=edges.first, second=edges.second)
    first, second = documents.find_ranges(edges.first), documents.find_ranges(edges.second)
    apart = first != second
    both: NDArray[Any] = np.concatenate([records, records[apart]])
    return scatter_records(stem, ".edges", both, np.concatenate([second, first[apart]]), documents.num_ranges)
