"""All shapes of chats become one, and what is not a chat is said in a word."""

import pytest

from gristmill.text.chats.shapes import NotAChat, parse_conversation

USER = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, ANSWER]},
        {"messages": '[{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]'},
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"conversations": [USER, ANSWER]},
        {"instruction": "2 + 2?", "output": "4"},
        {"instruction": "2 + 2?", "input": "", "output": "4"},
        {"prompt": "2 + 2?", "completion": "4"},
        {"prompt": [USER], "completion": [ANSWER]},
    ],
)
def test_shapes_are_told_by_their_keys(record):
    assert parse_conversation(record).messages == [USER, ANSWER]


def test_a_shape_can_be_said():
    record = {"messages": [USER, ANSWER], "prompt": "2 + 2?", "completion": "4", "instruction": "x", "output": "y"}
    assert parse_conversation(record, "prompt_completion").messages == [USER, ANSWER]
    with pytest.raises(NotAChat, match="conversations"):
        parse_conversation(record, "sharegpt")


def test_a_system_prompt_beside_the_turns_comes_first():
    system = {"role": "system", "content": "Be brief."}
    turns = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]
    assert parse_conversation({"system": "Be brief.", "conversations": turns}).messages == [system, USER, ANSWER]
    assert parse_conversation({"system": "Be brief.", "instruction": "2 + 2?", "output": "4"}).messages[0] == system


def test_reasoning_has_the_names_that_templates_know():
    for name in ("reasoning_content", "thinking", "reasoning"):
        [message] = parse_conversation({"messages": [{**ANSWER, name: "easy"}]}).messages
        assert message["reasoning_content"] == message["thinking"] == "easy"


def test_marks_are_taken_off():
    messages = [USER, {**ANSWER, "train": False}, USER, {**ANSWER, "weight": 1}]
    conversation = parse_conversation({"messages": messages})
    assert conversation.marks == {1: False, 3: True}
    assert conversation.messages == [USER, ANSWER, USER, ANSWER]
    shorter = conversation.remove_messages({0, 1})
    assert shorter.marks == {1: True}


def test_arguments_become_objects_only_if_asked():
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    record = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert parse_conversation(record).messages[0]["tool_calls"] == [call]
    [parsed] = parse_conversation(record, parse_arguments=True).messages[0]["tool_calls"]
    assert parsed["function"]["arguments"] == {"a": 1}
    for arguments in ("not JSON", "[1]", {"a": 1}, None):
        odd = {"function": {"name": "add", "arguments": arguments}}
        record = {"messages": [{"role": "assistant", "tool_calls": [odd]}]}
        assert parse_conversation(record, parse_arguments=True).messages[0]["tool_calls"] == [odd]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, "not_a_chat"),
        ({"text": "hello"}, "not_a_chat"),
        ({"messages": []}, "no_messages"),
        ({"messages": 3}, "invalid_messages"),
        ({"messages": "{"}, "invalid_messages"),
        ({"messages": ["hello"]}, "invalid_message"),
        ({"messages": [{"content": "hello"}]}, "unknown_role"),
        ({"messages": [{"role": "robot", "content": "hello"}]}, "unknown_role"),
        ({"messages": [{"role": ["user"], "content": "hello"}]}, "unknown_role"),
        ({"messages": [{"role": "user"}]}, "missing_content"),
        ({"messages": [{"role": "user", "content": None}]}, "missing_content"),
        ({"messages": [{"role": "user", "content": 7}]}, "content_not_text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "content_not_text"),
        ({"messages": [{**ANSWER, "thinking": 3}]}, "content_not_text"),
        ({"messages": [{**ANSWER, "train": "no"}]}, "invalid_mark"),
        ({"messages": [{**ANSWER, "tool_calls": "add"}]}, "invalid_tool_calls"),
        ({"messages": [{**ANSWER, "tool_calls": ["add"]}]}, "invalid_tool_calls"),
        ({"messages": [{**ANSWER, "tool_calls": [{"function": {}}]}]}, "invalid_tool_calls"),
        ({"messages": [ANSWER], "tools": "nothing"}, "invalid_tools"),
        ({"messages": [ANSWER], "tools": [1]}, "invalid_tools"),
        ({"messages": [ANSWER], "chat_template_kwargs": {"messages": []}}, "invalid_variables"),
        ({"conversations": "hello"}, "invalid_messages"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "unknown_role"),
        ({"conversations": [{"from": ["human"], "value": "x"}]}, "unknown_role"),
        ({"instruction": None, "output": "4"}, "missing_content"),
    ],
)
def test_what_is_not_a_chat_is_said_in_a_word(record, reason):
    with pytest.raises(NotAChat) as caught:
        parse_conversation(record)
    assert caught.value.reason == reason
