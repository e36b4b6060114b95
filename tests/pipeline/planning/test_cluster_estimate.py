"""The estimate for a cluster: the driver's share, input that is not here, and prices."""

from types import SimpleNamespace

import pytest

from gristmill.core.errors import UsageError
from gristmill.pipeline.planning.cluster_estimate import (
    PRICES,
    SampleRates,
    estimate_cluster,
    parse_cluster,
    parse_prices,
)

RATES = SampleRates(40e6, 0.5)
TB = 10**12


def outline(num_bytes, num_stages=1):
    source = SimpleNamespace(
        num_bytes=num_bytes,
        unpacked_bytes=2 * num_bytes,
        stages=[["tokenize"]] * num_stages,
        stored_bytes=lambda stage: 2 * num_bytes,
    )
    return SimpleNamespace(sources=[source], needed_bytes=3 * num_bytes)


def test_work_is_shared_by_all_cores():
    small, large = (estimate_cluster(outline(5 * TB), nodes, 32, SampleRates(25e6)) for nodes in (16, 64))
    assert large.core_hours == small.core_hours == pytest.approx(10 * TB / 25e6 / 3600)
    assert small.hours == pytest.approx(4 * large.hours)
    assert large.hours == pytest.approx(large.core_hours / 2048)


def test_stages_add_tasks_and_requests():
    one, two = (estimate_cluster(outline(TB, num_stages), 4, 8, RATES) for num_stages in (1, 2))
    assert two.tasks == 2 * one.tasks
    assert two.read_requests > one.read_requests


def test_small_inputs_do_not_use_all_cores():
    estimate = estimate_cluster(outline(1 << 20), 64, 32, SampleRates(1e6))
    assert estimate.tasks == 1
    assert estimate.hours == estimate.core_hours


@pytest.mark.parametrize("text", ["64", "x32", "0x4", "4x0", "64X32", "-1x2", "9999999x1"])
def test_wrong_clusters(text):
    with pytest.raises(UsageError, match="NODESxCORES"):
        parse_cluster(text)


def test_tasks_are_large_enough_for_the_driver():
    """Units of 64 MiB at 40 MB a second feed 4,480 workers, larger ones 10,000."""
    for nodes, unit_bytes in ((1, 64 << 20), (50, 64 << 20), (140, 64 << 20), (313, 1 << 30)):
        estimate = estimate_cluster(outline(500 * TB), nodes, 32, RATES, unit_bytes)
        assert estimate.driver_hours <= estimate.hours
        assert "cannot feed" not in str(estimate)
    assert "cannot feed" in str(estimate_cluster(outline(500 * TB), 1000, 32, RATES))


def test_a_size_stands_for_files_that_are_not_here():
    there, scaled = (
        estimate_cluster(outline(size), 32, 32, RATES, size=10 * TB, prices=dict.fromkeys(PRICES, 1.0))
        for size in (10 * TB, 10 * TB // 1000)
    )
    assert scaled == there
    assert scaled.hours == pytest.approx(20e12 / 40e6 / 3600 / 1024)
    assert scaled.dataset_bytes == 10 * TB


def test_prices_are_for_amounts():
    estimate = estimate_cluster(
        outline(10 * TB), 32, 32, RATES, prices=parse_prices(["core_hour=0.04", "gb_month=0.02", "gb_network=0.01"])
    )
    network = estimate.read_bytes + estimate.written_bytes
    assert estimate.costs == pytest.approx(
        {"core_hour": estimate.core_hours * 0.04, "gb_month": 10_000 * 0.02, "gb_network": network / 1e9 * 0.01}
    )
    assert "200.00 a month" in str(estimate)


@pytest.mark.parametrize("word", ["core_hours=1", "core_hour", "core_hour=much"])
def test_a_price_that_is_none(word):
    with pytest.raises(UsageError):
        parse_prices([word])
