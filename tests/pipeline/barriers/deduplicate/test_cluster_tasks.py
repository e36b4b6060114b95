"""Rounds over ranges of documents find the components that union-find over all edges finds, in any cut."""

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.pipeline.barriers.deduplicate.cluster_tasks import find_members
from gristmill.pipeline.barriers.deduplicate.deduplication import link_documents
from gristmill.pipeline.barriers.exchange import Part, Partition
from gristmill.pipeline.barriers.record_files import PAIR, make_records
from gristmill.steps import Deduplicate
from gristmill.steps.deduplicate.clusters import join_components


@dataclass
class Arrays:
    """Records by range, in memory."""

    ranges: list[Any]

    def gather(self, number, count):
        return np.concatenate(self.ranges[number : number + count])


class ArrayExchange:
    """Stages are functions of arrays: this exchange has no files."""

    def __init__(self, borders):
        self.borders = np.array(borders, np.int64)
        self.rounds = []

    def scatter(self, edges):
        first, second = (np.searchsorted(self.borders, edges[end], side="right") - 1 for end in ("first", "second"))
        return Arrays([edges[(first == number) | (second == number)] for number in range(len(self.borders) - 1)])

    def run(self, stage, num_tasks, desc, *, reads, writes, num_partitions, label):
        assert writes["edges"].by == ("second", "first")
        assert len(self.rounds) < 100
        self.rounds.append(num_tasks)
        bounds = [each * num_partitions // num_tasks for each in range(num_tasks + 1)]
        results = [stage(Partition(Part(first, stop - first), reads)) for first, stop in pairwise(bounds)]
        edges = self.scatter(np.concatenate([result["edges"] for result in results]))
        counts = lambda name: [result[name] for result in results]  # noqa: E731
        return SimpleNamespace(scattered=lambda _: edges, counts=counts)


def find_clusters(pairs, borders, partition_bytes):
    """Return the smallest document of each one's cluster, and the number of rounds."""
    exchange = ArrayExchange(borders)
    first, second = np.sort(np.array(pairs, np.int64).reshape(-1, 2)).T
    edges = exchange.scatter(make_records(PAIR, first=first, second=second))
    num_ranges = len(borders) - 1
    linked = link_documents(exchange, edges, len(first), Deduplicate(partition_bytes=partition_bytes), num_ranges)
    labels = {}
    for number in range(num_ranges):
        partition = Partition(Part(number), {"edges": linked.scattered("edges")})
        members, smallest = find_members(SimpleNamespace(range_starts=exchange.borders), partition)
        labels |= dict(zip(members.tolist(), smallest.tolist(), strict=True))
    return labels, exchange.rounds


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
