"""Messages of any API in one shape: nothing is guessed, nothing is gone without being counted."""

from collections import Counter

import pytest

from gristmill.readers.agents.messages import BINARY_TEXT, clean_result, make_call, read_message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1', '{"a": 1'),  # written wrongly by the model
        ("[1]", "[1]"),
        (None, {}),
        ("", ""),
    ],
)
def test_arguments(arguments, expected):
    assert make_call("f", arguments, "x")["function"] == {"name": "f", "arguments": expected}


@pytest.mark.parametrize(
    ("content", "is_binary"),
    [
        ("\x7fELF" + "\x00\x01" * 40, True),
        ("a\ufffd" * 20, True),
        ("one bad \ufffd in a long text " * 3, False),
        ("a\tb\n\x1b[0m", False),
    ],
)
def test_binary_results(content, is_binary):
    counts = Counter()
    assert (clean_result(content, counts) == BINARY_TEXT) == is_binary
    assert counts["binary_results"] == is_binary


def test_media_are_left_out_and_said():
    counts = Counter()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO" * 1000}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "A picture:"}, image]}
    [tool, user] = read_message({"role": "user", "content": [result, {"type": "text", "text": "See?"}, image]}, counts)
    assert tool == {"role": "tool", "content": "A picture:\n\n[image left out]", "tool_call_id": "x"}
    assert user["content"] == "See?\n\n[image left out]"
    assert counts == {"images_left_out": 2}


def test_calls_that_are_json_in_strings():
    call = '{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}'
    [message] = read_message({"role": "assistant", "content": None, "tool_calls": [call, "{"]}, counts := Counter())
    assert message["tool_calls"] == [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]
    assert counts == {"unknown_part_tool_calls": 1}


def test_an_unknown_role_is_counted():
    assert read_message({"role": "wizard", "content": "hi"}, counts := Counter()) == []
    assert counts == {"unknown_role_wizard": 1}
