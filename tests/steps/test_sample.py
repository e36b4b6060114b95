import pytest

from gristmill.core.errors import UsageError
from gristmill.core.sample_batches import documents
from gristmill.steps import Sample


def kept(fraction, seed=0, count=20_000, **parameters):
    batch = documents([""] * count)
    applied = Sample(fraction=fraction, **parameters).apply(batch, seed)
    return {origin["position"] for origin in applied.batch.column("origin").to_pylist()}


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.5, 0.9])
def test_keeps_about_the_fraction(fraction):
    spread = 5 * (20_000 * fraction * (1 - fraction)) ** 0.5
    assert abs(len(kept(fraction)) - 20_000 * fraction) < spread


def test_ends():
    assert kept(0) == set()
    assert len(kept(1)) == 20_000


def test_smaller_fraction_keeps_a_part():
    assert kept(0.1) < kept(0.3) < kept(0.9)


def test_seeds_and_salts_choose_independently():
    for other in (kept(0.5, seed=1), kept(0.5, salt="other")):
        assert abs(len(kept(0.5) & other) - 5000) < 300


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_not_a_fraction(fraction):
    with pytest.raises(UsageError):
        Sample(fraction=fraction)
