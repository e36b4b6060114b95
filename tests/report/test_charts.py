"""Charts: bins."""

from gristmill.report.charts import make_bins


def test_bins_hold_every_value():
    for smallest, largest in ((0, 0), (1, 1), (3, 4), (0, 10**9), (7, 7000)):
        bins = make_bins([smallest, largest])
        assert bins[0][0] <= max(1, smallest)
        assert bins[-1][1] > largest
        assert all(low < high for low, high in bins)
