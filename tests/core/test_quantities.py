import pytest

from gristmill.core.quantities import format_bytes, format_count, format_duration


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (10**18, "1,000.0 PB"),
    ],
)
def test_bytes(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_counts():
    assert [format_count(number, "row") for number in (0, 1, 2, 1000)] == ["0 rows", "1 row", "2 rows", "1,000 rows"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (3599.4, "59 min 59 s"), (3600, "1 h 0 min"), (90_000, "25 h 0 min")],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text
