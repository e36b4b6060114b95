"""Which documents are removed, against every document compared with every other."""

import random

import numpy as np
import pytest
from gristmill_testing import duplicates, shared_data
from gristmill_testing.duplicates import column
from gristmill_testing.in_memory_duplicates import find_duplicates
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.steps import Deduplicate
from gristmill.steps.deduplicate.candidates import (
    ALL_PAIRS,
    NEIGHBOURS,
    ORDERS,
    Pairs,
    find_candidate_pairs,
    group_by_digest,
    group_by_key,
)
from gristmill.steps.deduplicate.clusters import SimilarityGraph, SimilarPairs, join_components, verify_removals


def no_ranks(documents):
    return np.zeros(len(documents), np.uint64)


def removed_by(step, texts):
    found, is_exact = find_duplicates(step, column(texts))
    survivors = dict(zip(found.documents.tolist(), found.survivors.tolist(), strict=True))
    assert not set(survivors.values()) & survivors.keys()
    assert sorted(survivors) == list(survivors)
    return survivors, found.similarities, is_exact


def edited_copies(texts, rng):
    """Copies of real texts with some words changed: more in some than in others."""
    for text in texts:
        words = text.split(" ")
        share = rng.choice((0, 0.003, 0.01, 0.02, 0.03, 0.05))
        yield " ".join(f"w{rng.getrandbits(30)}" if rng.random() < share else word for word in words)


@pytest.fixture(
    scope="module", params=[("python_manual", "python_library"), ("kubernetes_website", "chinese_poetry")], ids="+".join
)
def real_texts(request):
    rng = random.Random(3)
    texts = [text for name in request.param for text in shared_data.corpus_texts(name, 75)]
    return texts + list(edited_copies(texts, rng))


@pytest.fixture(scope="module")
def alike(real_texts):
    return duplicates.alike_pairs(real_texts, 0.5)


def test_precision_and_recall_on_real_texts(real_texts, alike):
    survivors, similarities, _ = removed_by(Deduplicate(), real_texts)
    right = [alike.get((min(pair), max(pair)), 0.0) >= 0.8 for pair in survivors.items()]
    assert np.mean(right) >= 0.99
    touched = survivors.keys() | set(survivors.values())
    clear = [pair for pair, found in alike.items() if found >= 0.85]
    assert len(clear) > 60
    assert np.mean([one in touched and other in touched for one, other in clear]) >= 0.98
    # Of each clear pair one goes: both stay only where the estimate or the bands have failed.
    assert np.mean([one in survivors or other in survivors for one, other in clear]) >= 0.98
    assert all(0.8 <= similarity <= 1 for similarity in similarities)


def test_estimates_are_near_the_truth(real_texts, alike):
    survivors, _, _ = removed_by(Deduplicate(verify="signature"), real_texts)
    assert all(alike.get((min(pair), max(pair)), 0.0) >= 0.8 - 0.12 for pair in survivors.items())
    assert len(survivors) > 60


def pages_of_one_template(count, rng, own_words=81):
    """Pages with 670 shingles in common and 85 of their own (4 more than words): 670 / 840 = 0.7976 alike."""
    template = [f"t{number}" for number in range(678)]
    for _ in range(count):
        own = [f"u{rng.getrandbits(40)}" for _ in range(own_words)]
        yield " ".join([*template[:300], *own, *template[300:]])


def test_pages_of_one_template_below_the_threshold_all_stay():
    """Their sketches share the template's values, so that many estimates are wrong together."""
    texts = list(pages_of_one_template(1500, random.Random(1)))
    sets = [duplicates.shingles(text) for text in texts[:3]]
    assert round(duplicates.jaccard(sets[0], sets[1]), 4) == round(duplicates.jaccard(sets[1], sets[2]), 4) == 0.7976
    assert removed_by(Deduplicate(), texts)[0] == {}
    assert removed_by(Deduplicate(verify="signature"), texts)[0]


@pytest.mark.parametrize("seed", range(2))
def test_every_removal_is_right_by_its_texts_and_its_similarity_exact(seed):
    """Families around the threshold and far above it, against the plain definition."""
    rng = random.Random(seed)
    texts = []
    for own_words in (81, 79, 60, 20):
        texts += pages_of_one_template(60, random.Random(rng.random()), own_words)
    texts += edited_copies(texts[::2], rng)
    sets = [duplicates.shingles(text) for text in texts]
    survivors, similarities, is_exact = removed_by(Deduplicate(), texts)
    assert len(survivors) > 100
    for (gone, kept), found, is_copy in zip(survivors.items(), similarities, is_exact, strict=True):
        exact = duplicates.jaccard(sets[gone], sets[kept])
        assert exact >= 0.8
        assert found == (1.0 if is_copy else exact)


@settings(max_examples=60, deadline=None)
@given(
    edges=st.dictionaries(
        st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda edge: edge[0] < edge[1]),
        st.tuples(st.booleans(), st.sampled_from([0.5, 0.79, 0.8, 0.95])),
        max_size=40,
    ),
    fixed=st.integers(0, 3),
)
def test_verifying_removals_gives_what_verifying_all_pairs_gives(edges, fixed):
    """However wrong the estimates are, and however many rounds it takes."""
    exact = {edge: similarity for edge, (_, similarity) in edges.items()}
    edges = {edge: known for edge, (known, similarity) in edges.items() if not known or similarity >= 0.8}
    found = SimilarPairs(
        Pairs(*(np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))),
        np.array([exact[edge] if known else 0.99 for edge, known in edges.items()], np.float64),
        np.array(list(edges.values()), bool),
    )
    asked = []

    def compare_texts(pairs):
        some = list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
        assert sorted(some, key=lambda edge: edge[::-1]) == some
        asked.extend(some)
        return np.array([exact[edge] for edge in some], np.float64)

    removals = verify_removals(found, no_ranks, fixed, 0.8, compare_texts)
    true = [edge for edge in edges if exact[edge] >= 0.8]
    ends = (np.array([edge[side] for edge in true], np.int64) for side in (0, 1))
    expected = SimilarityGraph(Pairs(*ends), no_ranks).removals(
        np.array([exact[edge] for edge in true], np.float64), fixed
    )
    for name in ("documents", "survivors", "similarities"):
        assert getattr(removals, name).tolist() == getattr(expected, name).tolist()
    assert len(set(asked)) == len(asked)


def test_planted_pairs_are_found():
    for similarity in (0.85, 0.9):
        ones, others, _ = duplicates.planted(similarity, 400, num_shingles=200)
        survivors, _, _ = removed_by(Deduplicate(), [*ones, *others])
        assert len(survivors) >= 0.98 * 400
        assert all(abs(gone - kept) == 400 for gone, kept in survivors.items())
    ones, others, _ = duplicates.planted(0.7, 400, num_shingles=200)
    survivors, _, _ = removed_by(Deduplicate(), [*ones, *others])
    assert len(survivors) <= 4


def test_copies_and_short_texts():
    texts = ["a b", "A b.", "", "a b", "", "one two three four five", "One, two, three, four, five!"]
    survivors, similarities, is_exact = removed_by(Deduplicate(prefer_longest=False), texts)
    assert survivors == {3: 0, 4: 2, 6: 5}
    assert is_exact.tolist() == [True, True, False]
    assert similarities.tolist() == [1.0, 1.0, 1.0]
    assert removed_by(Deduplicate(kind="exact"), texts)[0] == {3: 0, 4: 2}
    assert removed_by(Deduplicate(), texts)[0] == {3: 0, 4: 2, 5: 6}


def test_a_chain_does_not_remove_what_is_unlike():
    """Each text is much like the next, and the first nothing like the last."""
    words = [f"w{n}" for n in range(400)]
    texts = [" ".join(words[first : first + 200]) for first in range(0, 200, 10)]
    exact = duplicates.alike_pairs(texts, 0.0)
    survivors, _, _ = removed_by(Deduplicate(prefer_longest=False), texts)
    assert survivors
    assert all(exact[min(pair), max(pair)] >= 0.8 for pair in survivors.items())
    assert 19 not in survivors or survivors[19] > 10


def test_a_copy_of_what_goes_has_the_survivor_of_that():
    text = " ".join(f"w{n}" for n in range(300))
    longer = text + " and one more"
    survivors, similarities, is_exact = removed_by(Deduplicate(), [text, text, longer])
    assert survivors == {0: 2, 1: 2}
    assert is_exact.tolist() == [False, False]
    assert similarities[0] == similarities[1]


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.integers(0, 6), max_size=40),
    ranks=st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_groups_are_those_of_a_dictionary(keys, ranks):
    expected = {}
    for document, key in enumerate(keys):
        expected.setdefault(key, []).append(document)
    ordered = sorted(
        sorted(group, key=lambda document: (ranks[document], document)) for group in expected.values() if len(group) > 1
    )
    rank = np.array(ranks, np.uint64)
    documents = np.arange(len(keys))
    found = group_by_key(np.array(keys, np.uint64), documents, lambda some: rank[some])
    copies = group_by_digest(
        np.array([[key % 2, key] for key in keys], np.uint64).reshape(-1, 2), documents, lambda some: rank[some]
    )
    for made in (found, copies):
        assert sorted(part.tolist() for part in np.split(made.documents, made.starts[1:-1]) if len(part)) == ordered


def random_sketches(count, seed=0):
    sketches = np.random.default_rng(seed).integers(0, 256, (count, 108), np.uint8)
    return lambda documents: sketches[documents]


def test_pairs_of_a_large_group_grow_with_it_and_hang_together():
    keys = np.zeros(100_000, np.uint64)
    pairs = find_candidate_pairs(group_by_key(keys, np.arange(100_000), no_ranks), random_sketches(100_000))
    assert 2 * 100_000 < len(pairs) <= (2 + ORDERS * NEIGHBOURS) * 100_000
    assert len(set(SimilarityGraph(pairs, no_ranks).roots().tolist())) == 1
    small = find_candidate_pairs(group_by_key(keys[:ALL_PAIRS], np.arange(ALL_PAIRS), no_ranks), random_sketches(0))
    assert len(small) == ALL_PAIRS * (ALL_PAIRS - 1) // 2


def test_what_may_go_is_paired_with_what_stays():
    """Each of the last 300 is much like one of the first 3,000, which always stay and are all a little alike."""
    rng = np.random.default_rng(1)
    sketches = np.tile(rng.integers(0, 256, 108, np.uint8), (3300, 1))
    changed = rng.random((3000, 108)) < 0.2
    sketches[:3000][changed] = rng.integers(0, 256, changed.sum(), np.uint8)
    sketches[3000:] = sketches[:300]
    changed = rng.random((300, 108)) < 0.1
    sketches[3000:][changed] = rng.integers(0, 256, changed.sum(), np.uint8)
    keys = np.zeros(3300, np.uint64)
    pairs = find_candidate_pairs(
        group_by_key(keys, np.arange(3300), no_ranks), lambda documents: sketches[documents], 3000
    )
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    # One band alone: a text has a good many of them.
    assert sum((number, 3000 + number) in found for number in range(300)) >= 240
    assert sum(second < 3000 for _, second in found) <= 2 * 3000
    assert len(found) <= 2 * 3300 + (3000 + 2 * 300) * ORDERS * NEIGHBOURS


def test_copies_of_texts_from_one_template_are_found():
    """Two hundred families of two: all share bands by the template, and only the two of a family are alike enough."""
    rng = random.Random(5)

    def edited(words, count):
        words = list(words)
        for place in rng.sample(range(len(words)), count):
            words[place] = f"n{rng.getrandbits(40)}"
        return words

    template = [f"w{rng.getrandbits(40)}" for _ in range(1000)]
    families = [edited(template, 6) for _ in range(200)]
    texts = [" ".join(edited(family, 7)) for family in families for _ in range(2)]
    sets = [duplicates.shingles(text) for text in texts]
    clear = [one for one in range(0, 400, 2) if duplicates.jaccard(sets[one], sets[one + 1]) >= 0.85]
    assert len(clear) > 150
    survivors, _, _ = removed_by(Deduplicate(), texts)
    assert sum(one not in survivors and one + 1 not in survivors for one in clear) <= 0.02 * len(clear)


EDGES = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=20)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(EDGES, min_size=1, max_size=4), data=st.data())
def test_joining_is_the_same_in_any_grouping_and_order(parts, data):
    def roots_of(edges, roots=None):
        roots = np.arange(16) if roots is None else roots.copy()
        ends = np.array(edges, np.int64).reshape(-1, 2)
        join_components(ends[:, 0].copy(), ends[:, 1].copy(), roots)
        return roots

    def forest(edges):
        return [(root, place) for place, root in enumerate(roots_of(edges).tolist())]

    whole = [edge for part in parts for edge in part]
    expected = roots_of(whole)
    # Against the definition: the smallest that can be reached.
    for place in range(16):
        reached, todo = {place}, [place]
        while todo:
            here = todo.pop()
            new = {a + b - here for a, b in whole if here in (a, b)} - reached
            reached |= new
            todo += new
        assert expected[place] == min(reached)
    assert roots_of(data.draw(st.permutations(whole))).tolist() == expected.tolist()
    assert roots_of([edge for part in parts for edge in forest(part)]).tolist() == expected.tolist()
    grown = np.arange(16)
    for part in data.draw(st.permutations(parts)):
        grown = roots_of(part, grown)
    assert grown.tolist() == expected.tolist()


@settings(max_examples=60, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=25), fixed=st.integers(0, 5)
)
def test_removals_are_greedy_by_rank(edges, fixed):
    edges = sorted({(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]}, key=lambda edge: edge[::-1])
    if not edges:
        return
    pairs = Pairs(*(np.array(side, np.int64) for side in zip(*edges, strict=True)))
    ranks = {document: (document * 7) % 5 for document in range(13)}

    def rank_of(documents):
        return np.array([ranks[document] for document in documents.tolist()], np.uint64)

    found = SimilarityGraph(pairs, rank_of).removals(np.arange(len(edges)) / 100, fixed)
    kept, expected = [], {}
    for document in sorted({end for edge in edges for end in edge}, key=lambda document: (ranks[document], document)):
        better = [other for other in kept if (min(document, other), max(document, other)) in edges]
        if better and document >= fixed:
            expected[document] = better[0]
        else:
            kept.append(document)
    assert dict(zip(found.documents.tolist(), found.survivors.tolist(), strict=True)) == expected
    for document, survivor, similarity in zip(found.documents, found.survivors, found.similarities, strict=True):
        assert edges[round(similarity * 100)] == (min(document, survivor), max(document, survivor))
