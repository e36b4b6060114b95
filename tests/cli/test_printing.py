"""Errors and values on the terminal: what happened, what to do, and no more than a screen of it."""

import click
import pytest

from gristmill.cli.printing import describe_error, format_error, format_short_number, to_one_line
from gristmill.core.errors import GristmillError, RemoteError


def test_an_error_says_what_where_and_what_to_do():
    error = GristmillError("no records in 'corpus'", help="check the path")
    error.add_note("in source web\nof recipe.yaml")
    assert format_error(error).splitlines() == [
        "error: no records in 'corpus'",
        "  note: in source web",
        "        of recipe.yaml",
        "  help: check the path",
    ]
    facts = describe_error(error, 1)
    assert facts["exit_code"] == 1
    assert facts["error"]["help"] == "check the path"


def test_where_an_item_failed_is_told_only_if_the_message_does_not():
    for kind, is_told in ((GristmillError, False), (RemoteError, True)):
        error = kind("it broke")
        error.add_note("in the worker: line 3")
        assert ("line 3" in format_error(error)) == is_told


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file", "a.jsonl"), "No such file: a.jsonl"),
        (click.UsageError("no such option"), "--help"),
        (GristmillError("cannot read s3://key:SECRET@bucket/x"), "s3://***@bucket"),
    ],
)
def test_errors_of_others_too(error, words):
    assert words in format_error(error)
    assert "SECRET" not in format_error(error)


def test_a_line_never_fills_the_screen_but_json_has_all_of_it():
    error = GristmillError("x" * 5000)
    assert len(format_error(error)) <= 1000
    assert len(describe_error(error, 1)["error"]["message"]) == 5000


def test_values_are_one_line():
    assert to_one_line("a\nb\x1b") == "a\\nb\\x1b"
    assert "(300 characters)" in to_one_line("x" * 300)


def test_numbers_have_four_digits():
    assert [format_short_number(number) for number in (0.0, 1e9, 0.123456, float("inf"), "en")] == [
        "0", "1,000,000,000", "0.1235", "inf", "en",
    ]  # fmt: skip
