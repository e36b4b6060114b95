"""Rounds over ranges of documents find the components that union-find over all edges finds, in any cut."""

import uuid
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.deduplicate.cluster_tasks import _find_members, link_documents, run_link
from gristmill.pipeline.barriers.deduplicate.documents import Documents, PartitionContext, PartitionTask
from gristmill.pipeline.barriers.deduplicate.pair_tasks import scatter_edges
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.steps import Deduplicate
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.clusters import join_components
from gristmill.storage.locations import StorePath


def make_context(work, borders, partition_bytes):
    starts = np.array(borders, np.int64)
    documents = Documents(work, (), starts, np.zeros(0, np.uint64), starts, 0, True, 108)
    step = Deduplicate(partition_bytes=partition_bytes)
    return PartitionContext(
        root=work,
        work=work,
        run_id="run",
        seed=0,
        max_quarantine=0,
        sources={},
        keep_dropped=None,
        watch=None,
        step=step,
        documents=documents,
    )


def find_clusters(pairs, borders, partition_bytes):
    """Return the smallest document of each one's cluster, and the number of rounds."""
    work = StorePath(f"memory://{uuid.uuid4().hex}/work")
    context, rounds = make_context(work, borders, partition_bytes), []

    def run_round(stage, number, num_tasks):
        rounds.append(num_tasks)
        assert len(rounds) < 100
        bounds = [each * stage.documents.num_ranges // num_tasks for each in range(num_tasks + 1)]
        results = []
        for first, stop in pairwise(bounds):
            payload = PartitionTask(first, f"{number}-{first}", stop - first)
            state = SimpleNamespace(state=stage, count=lambda **_: None, at=lambda _: None)
            results.append(run_link(Task("task", payload), state))
        return results

    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    edges = Pairs.of(first, second)
    scattered = scatter_edges(open_stem(work, "edges", "run"), edges, context.documents)
    linked = link_documents((scattered,), len(edges), context, run_round)
    stage = PartitionContext.extend(context, inputs={"edges": tuple(result.edges for result in linked)})
    labels = {}
    for number in range(stage.documents.num_ranges):
        members, smallest = _find_members(stage, number)
        labels |= dict(zip(members.tolist(), smallest.tolist(), strict=True))
    return labels, rounds


def find_by_union(pairs, num_documents):
    roots = np.arange(num_documents)
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    join_components(first, second, roots)
    return {document: int(roots[document]) for document in np.unique(np.concatenate([first, second])).tolist()}


@st.composite
def graphs(draw):
    num_documents = draw(st.integers(2, 40))
    document = st.integers(0, num_documents - 1)
    pairs = draw(st.lists(st.tuples(document, document).filter(lambda pair: pair[0] != pair[1]), min_size=1))
    cuts = draw(st.sets(st.integers(1, num_documents - 1))) if num_documents > 1 else set()
    return num_documents, pairs, [0, *sorted(cuts), num_documents]


@given(graphs(), st.sampled_from([1, 1000, 1 << 25]))
@settings(max_examples=60, deadline=None)
def test_rounds_equal_union_find(graph, partition_bytes):
    num_documents, pairs, borders = graph
    labels, rounds = find_clusters(pairs, borders, partition_bytes)
    assert labels == find_by_union(pairs, num_documents)
    assert partition_bytes < 1 << 25 or rounds == [1]


def test_a_chain_through_all_ranges_takes_few_rounds():
    """Every link of the chain is in another range, in no order."""
    order = np.random.default_rng(1).permutation(32).tolist()
    pairs = list(pairwise(order))
    labels, rounds = find_clusters(pairs, list(range(33)), 1)
    assert set(labels.values()) == {0}
    assert len(labels) == 32
    assert len(rounds) <= 8
