"""Each source is less than a row away from its share, at every row, whatever the weights.

Each source has its share of every beginning, and all records come once and in their order.
"""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.order import Mixture
from gristmill.order.mixture import PERIOD, Interleaving, period_counts


def random_weights(rng, num_sources):
    weights = rng.random(num_sources) ** 4 + 1e-4
    return {f"source-{number}": float(weight) for number, weight in enumerate(weights)}


def errors(mixture, start, stop, counts):
    """The largest distance from its share that any source has at any row, counted from `start`."""
    sources, _ = mixture(np.arange(start, stop))
    is_drawn = sources[:, None] == np.arange(len(mixture.sources))
    shares = np.array([counts.get(name, 0) for name in mixture.sources]) / PERIOD
    return np.abs(np.cumsum(is_drawn, axis=0) - np.arange(1, stop - start + 1)[:, None] * shares).max()


@pytest.mark.parametrize("seed", range(12))
def test_every_prefix_is_within_a_row_of_its_share(seed):
    rng = np.random.default_rng(seed)
    mixture = Mixture(random_weights(rng, int(rng.integers(1, 14))))
    assert errors(mixture, 0, PERIOD + 500, mixture.phases[0].counts) < 1
    counts = mixture.draws_before(PERIOD)
    assert counts == {name: mixture.phases[0].counts[name] for name in mixture.sources}


@pytest.mark.parametrize("seed", range(6))
def test_and_so_it_is_in_every_phase(seed):
    rng = np.random.default_rng(100 + seed)
    borders = [0, *np.cumsum(rng.integers(1, 3000, 5)).tolist()]
    mixture = Mixture([(row, random_weights(rng, 5)) for row in borders])
    for phase, end in zip(mixture.phases, [*borders[1:], borders[-1] + 70_000], strict=True):
        assert errors(mixture, phase.first_row, end, phase.counts) < 1


def test_draws_are_counted_on_through_periods_and_phases():
    mixture = Mixture([(0, {"a": 2, "b": 1}), (1000, {"b": 1, "c": 5}), (1500, {"a": 1, "c": 1e-3})])
    rows = np.arange(3 * PERIOD)
    sources, draws = mixture(rows)
    for number, name in enumerate(mixture.sources):
        of_source = draws[sources == number]
        assert np.array_equal(of_source, np.arange(len(of_source)))
        for row in (0, 1, 999, 1000, 1001, 1500, PERIOD, 2 * PERIOD + 17):
            assert mixture.draws_before(row)[name] == np.count_nonzero(sources[:row] == number)


def test_an_appended_phase_changes_no_earlier_row():
    before = Mixture({"a": 0.3, "b": 0.7})
    after = before.then(12_345, {"b": 0.2, "c": 0.8})
    for row, (source, draw) in enumerate(zip(*(part.tolist() for part in before(range(12_345))), strict=True)):
        if row % 500 == 0 or row > 12_300:
            later_source, later_draw = (int(part[0]) for part in after([row]))
            assert (after.sources[later_source], later_draw) == (before.sources[source], draw)


def test_far_rows():
    mixture = Mixture({"a": 0.3, "b": 0.7})
    far = 10**15
    sources, draws = mixture([far, far + 1])
    assert draws[0] == mixture.draws_before(far)[mixture.sources[sources[0]]]


@pytest.mark.slow
def test_a_million_far_rows_take_under_half_a_second():
    mixture = Mixture({"a": 0.3, "b": 0.7})
    start = time.process_time()
    mixture(np.arange(10**15, 10**15 + 1_000_000))
    assert time.process_time() - start < 0.5


def test_the_order_of_names_does_not_matter():
    rows = range(2000)
    a, b = Mixture({"x": 0.1, "y": 0.9}), Mixture({"y": 0.9, "x": 0.1})
    assert np.array_equal(a(rows)[0], b(rows)[0])


def test_golden_vectors():
    """Whoever must change these must raise ORDER_VERSION."""
    mixture = Mixture([(0, {"books": 0.05, "code": 0.25, "web": 0.7}), (20, {"code": 0.5, "web": 0.5})])
    names = "".join(mixture.sources[source][0] for source in mixture(range(30))[0])
    assert names == "wwcwwcwwwcwwwcwwbwcwcwcwcwcwcw"
    assert mixture.draws_before(10**9) == {"books": 1, "code": 499999995, "web": 500000004}


def test_integer_weights_sum_to_the_period():
    rng = np.random.default_rng(1)
    for _ in range(200):
        weights = random_weights(rng, int(rng.integers(1, 40)))
        counts = period_counts(weights)
        assert sum(counts.values()) == PERIOD
        total = sum(weights.values())
        assert all(abs(counts[name] - weights[name] / total * PERIOD) < 1 for name in weights)


def test_tiny_weights_get_a_row_or_are_refused():
    assert period_counts({"a": 1.0, "b": 0.6 / PERIOD})["b"] == 1
    many = period_counts({"a": 1.0, **{f"b{number}": 0.6 / PERIOD for number in range(50)}})
    assert sum(many.values()) == PERIOD
    assert set(many.values()) == {1, PERIOD - 50}
    with pytest.raises(UsageError, match="weight of b"):
        period_counts({"a": 1.0, "b": 0.4 / PERIOD})


def test_a_weight_of_zero_leaves_a_source_out():
    assert Mixture({"a": 1, "b": 0}).sources == ["a"]


@pytest.mark.parametrize(
    "wrong",
    [{}, {"a": 0}, {"a": -1}, {"a": float("nan")}, {"a": float("inf")}, [], [(5, {"a": 1})], [(0, {"a": 1})] * 2],
)
def test_other_weights_are_refused(wrong):
    with pytest.raises(UsageError):
        Mixture(wrong)


def test_a_thousand_sources():
    mixture = Mixture({f"source-{number}": 1 + number % 7 for number in range(1000)})
    assert sum(mixture.draws_before(12_345).values()) == 12_345


COUNTS = st.lists(st.integers(0, 400), min_size=1, max_size=12).filter(any)


@settings(max_examples=200, deadline=None)
@given(counts=COUNTS)
def test_every_beginning_holds_each_share_to_less_than_one_record(counts):
    total = sum(counts)
    sources = Interleaving(counts).sources(0, [0] * len(counts), total)
    drawn = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)
    assert drawn[-1].tolist() == counts
    shares = np.arange(1, total + 1)[:, None] * np.array(counts) / total
    assert np.abs(drawn - shares).max() < 1


@settings(max_examples=100, deadline=None)
@given(counts=COUNTS, step=st.integers(1, 500))
def test_pieces_are_pieces_of_the_whole(counts, step):
    order = Interleaving(counts)
    whole = order.sources(0, [0] * len(counts), order.num_records)
    borders = order.borders(step)
    pieces = [
        order.sources(first, drawn, min(step, order.num_records - first))
        for first, drawn in zip(range(0, order.num_records, step), borders, strict=False)
    ]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert borders[-1].tolist() == counts


def test_large_numbers_are_exact_or_refused():
    order = Interleaving([2_000_000_000, 999_999_999, 1])
    drawn = [1_999_999_998, 999_999_999, 0]
    assert order.sources(2_999_999_997, drawn, 3).tolist() in ([0, 2, 0], [2, 0, 0], [0, 0, 2])
    with pytest.raises(UsageError, match="cannot be interleaved"):
        Interleaving([2_000_000_000, 2_000_000_000])
