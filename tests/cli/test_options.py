"""Words and numbers with units on the command line."""

import click
import pytest

from gristmill.cli.options import Choice, Size


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Size(), "1GB", 10**9),
        (Size(), "2GiB", 2 << 30),
    ],
)
def test_units(kind, text, value):
    assert kind.convert(text, None, None) == value
    assert kind.convert(value, None, None) == value


@pytest.mark.parametrize(("kind", "text"), [(Size(), "big"), (Size(), "0MB"), (Size(), "-1GB")])
def test_what_is_none_is_refused_with_an_example(kind, text):
    with pytest.raises(click.BadParameter, match="write "):
        kind.convert(text, None, None)


def test_a_choice_names_the_nearest_word():
    with pytest.raises(click.BadParameter, match='Did you mean "threads"'):
        Choice(["serial", "threads"]).convert("thread", None, None)
