"""Rounds of tasks that find clusters: the components of the graph of similar pairs, each with its smallest document.

A task has the edges at the documents of some consecutive ranges. It joins them (union-find), and writes stars in their
place: each document with the smallest of its component, for the ranges of both ends. Components that lie in several
ranges grow together in the next rounds. If no task has changed anything, all edges are stars of whole components: were
a document b the smallest of one star and a member of another, a—b—c, its own task would have replaced b—c by a—c.

As many ranges as have about 2^17 edges together are one task, so that small data needs one round of one task. Each
task leaves at most one edge for a document, so no more than the ranges of its neighbours are left of its edges.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import msgspec

from gristmill.pipeline.barriers.deduplicate.compare import scatter_edges
from gristmill.pipeline.barriers.deduplicate.contexts import PartitionContext
from gristmill.pipeline.barriers.deduplicate.record_files import PAIR, PartitionedFile
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.clusters import contract_edges
from gristmill.storage.stored_paths import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import PartitionTask
    from gristmill.shards.manifests.stored_files import StoredFile


_BYTES_PER_EDGE = 256
"""What a task holds for an edge, with room for sorting."""


class LinkedDocuments(msgspec.Struct, frozen=True, kw_only=True):
    """The stars that a task has made of the edges at the documents of its ranges."""

    edges: PartitionedFile
    num_edges: Count
    is_changed: bool

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.edges.file]


def run_link(task: Task, context: Context) -> LinkedDocuments:
    """Join the edges at some ranges of documents; `context.state` is a `PartitionContext` with the edges."""
    stage: PartitionContext = context.state
    payload: PartitionTask = task.payload
    records = stage.gather("edges", PAIR, payload.partition, payload.num_partitions)
    stars, is_changed = contract_edges(Pairs.of(records["first"], records["second"]))
    context.count(records=len(stars))
    edges = scatter_edges(stage.open_stem(payload), stars, stage.documents)
    return LinkedDocuments(edges=edges, num_edges=len(stars), is_changed=is_changed)


def link_documents(
    edges: tuple[PartitionedFile, ...],
    num_edges: int,
    context: PartitionContext,
    run_round: Callable[[PartitionContext, int, int], list[LinkedDocuments]],
) -> list[LinkedDocuments]:
    """Run rounds until nothing changes, or one task has seen all edges.

    `run_round` is called with the context, the number of the round and the number of its tasks.
    """
    for number in count(1):
        num_bytes = num_edges * _BYTES_PER_EDGE
        num_tasks = max(1, min(context.documents.num_ranges, -(-num_bytes // context.step.partition_bytes)))
        linked = run_round(PartitionContext.extend(context, inputs={"edges": edges}), number, num_tasks)
        if num_tasks == 1 or not any(result.is_changed for result in linked):
            return linked
        edges, num_edges = tuple(result.edges for result in linked), sum(result.num_edges for result in linked)
    raise AssertionError
