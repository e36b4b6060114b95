"""All shapes of chats become one, and what is not a chat is said in a word."""

import json

import pytest

from gristmill.text.chats.shapes import NotAChat, count_unused, parse_conversation

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
        {"prompt": [USER], "completion": "4"},
        {"prompt": "2 + 2?", "completion": [ANSWER]},
        {"prompt": [{"from": "human", "value": "2 + 2?"}], "completion": [ANSWER]},
        {"messages": [{**USER, "from": None, "value": None}, {"from": "gpt", "value": "4", "content": None}]},
    ],
)
def test_shapes_are_told_by_their_keys(record):
    assert parse_conversation(record).messages == [USER, ANSWER]


@pytest.mark.parametrize("is_indented", [False, True])
@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, ANSWER]},
        {"messages": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"conversation": [USER, ANSWER]},
        {"prompt": [USER], "completion": [ANSWER]},
        {"prompt": [USER], "completion": "4"},
        {"prompt": [USER, ANSWER, USER], "completion": [ANSWER]},
        {"instruction": "3 + 3?", "output": "6", "history": [["2 + 2?", "4"]]},
        {"messages": [USER, {**ANSWER, "tool_calls": [{"function": {"name": "add"}}]}]},
        {"messages": [USER, {**ANSWER, "function_call": {"name": "add", "arguments": "{}"}}]},
        {"messages": [USER, ANSWER], "tools": [{"type": "function", "function": {"name": "add"}}]},
        {"messages": [USER, ANSWER], "functions": [{"name": "add"}]},
    ],
)
def test_json_in_a_string_is_what_it_holds(record, is_indented):
    def encode(value):
        return json.dumps(value, indent=1 if is_indented else None) if isinstance(value, (list, dict)) else value

    expected = parse_conversation(record)
    assert parse_conversation({key: encode(value) for key, value in record.items()}) == expected
    for key in record.keys() & {"messages"}:
        messages = [{name: encode(value) for name, value in message.items()} for message in record[key]]
        assert parse_conversation({**record, key: messages}) == expected


def test_texts_that_begin_like_lists_are_texts():
    for text in ("[1, 2]", '[{"a": 1}]', "[] is empty", '[{"a": 1}, what is it?', "[{", '["role"]'):
        assert [m["content"] for m in parse_conversation({"prompt": text, "completion": text}).messages] == [text, text]
    for text in ('[{"role": "user", "content": "cut', "[{'role': 'user', 'content': 'of Python'}]"):
        with pytest.raises(NotAChat, match="not JSON") as caught:
            parse_conversation({"prompt": text, "completion": "4"})
        assert caught.value.reason == "invalid_messages"


def test_calls_and_results_among_turns():
    call = {"name": "get_weather", "arguments": {"city": "Bonn"}}
    asked = {"from": "human", "value": "Weather?"}
    tools = [{"name": "get_weather", "description": "…", "parameters": {}}]
    told = [{"from": "observation", "value": '{"sun": 1}'}, {"from": "gpt", "value": "Sun."}]
    for value in (call, json.dumps(call), [call], json.dumps([call]), {"type": "function", "function": call}):
        turns = [asked, {"from": "function_call", "value": value}, *told]
        conversation = parse_conversation({"conversations": turns, "tools": json.dumps(tools)})
        assert conversation.messages == [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": '{"sun": 1}'},
            {"role": "assistant", "content": "Sun."},
        ]
        assert conversation.tools == [{"type": "function", "function": tools[0]}]
        messages = [{"role": "tool_call", "content": value}, ANSWER]
        assert parse_conversation({"messages": messages}).messages[0] == conversation.messages[1]
    for value in ("I call it.", "", None, 3, '{"arguments": {}}', "[3]"):
        with pytest.raises(NotAChat) as caught:
            parse_conversation({"conversations": [asked, {"from": "function_call", "value": value}, *told]})
        assert caught.value.reason in {"invalid_tool_calls", "missing_content"}


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


@pytest.mark.parametrize("key", ["system", "system_prompt"])
@pytest.mark.parametrize("value", ["Be brief.", [{"type": "text", "text": "Be brief."}], [{"text": "Be brief."}]])
@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, ANSWER]},
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"conversations": [USER, ANSWER]},
        {"prompt": "2 + 2?", "completion": "4"},
        {"prompt": [USER], "completion": [ANSWER]},
        {"instruction": "2 + 2?", "output": "4"},
        {"messages": [{"role": "system", "content": "Be brief."}, USER, ANSWER]},
    ],
)
def test_a_system_message_beside_any_shape_is_used_once(record, value, key):
    system = {"role": "system", "content": "Be brief."}
    assert parse_conversation({**record, key: value}).messages == [system, USER, ANSWER]


@pytest.mark.parametrize("content", ["Add. ", [{"type": "text", "text": "Add."}]])
def test_a_system_message_in_another_form_is_the_same(content):
    messages = [{"role": "system", "content": content, "name": "rules"}, USER, ANSWER]
    assert parse_conversation({"messages": messages, "system": "Add."}).messages == messages


def test_two_different_system_messages_are_both_kept():
    messages = [{"role": "system", "content": "Be kind."}, USER, ANSWER]
    assert [m["content"] for m in parse_conversation({"messages": messages, "system": "Be brief."}).messages[:2]] == [
        "Be brief.",
        "Be kind.",
    ]


def test_parts_without_a_type_are_text():
    bedrock = {"messages": [{"role": "user", "content": [{"text": "2 + 2?"}]}, ANSWER]}
    assert parse_conversation(bedrock).messages[0]["content"] == [{"type": "text", "text": "2 + 2?"}]


@pytest.mark.parametrize("content", [None, "I look it up."])
def test_a_function_call_and_functions_are_a_call_and_tools(content):
    call = {"name": "look_up", "arguments": "{}"}
    function = {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object", "properties": {}}}
    messages = [
        USER,
        {"role": "assistant", "content": content, "function_call": call},
        {"role": "function", "name": "look_up", "content": "4"},
        ANSWER | {"function_call": None},
    ]
    conversation = parse_conversation({"messages": messages, "functions": [function]})
    assert conversation.tools == [{"type": "function", "function": function}]
    asked = {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": call}]}
    assert conversation.messages == [USER, asked, {"role": "tool", "name": "look_up", "content": "4"}, ANSWER]
    [parsed] = parse_conversation({"messages": messages}, parse_arguments=True).messages[1]["tool_calls"]
    assert parsed["function"]["arguments"] == {}


def test_fields_without_a_value_are_not_there():
    response = {**ANSWER, "tool_calls": None, "function_call": None, "refusal": None, "audio": None, "train": None}
    assert parse_conversation({"messages": [USER, response]}).messages == [USER, ANSWER]
    assert parse_conversation({"messages": [USER, {**ANSWER, "tool_calls": []}]}).messages == [USER, ANSWER]


def test_a_record_of_two_shapes_is_noted():
    record = {"messages": [USER, ANSWER], "prompt": "2 + 2?", "completion": "5"}
    conversation = parse_conversation(record)
    assert conversation.messages == [USER, ANSWER]
    assert conversation.notes == {"several_shapes": 1}
    assert parse_conversation(record, "messages").notes == {}
    assert parse_conversation({"messages": None, "conversations": [USER, ANSWER]}).notes == {}


@pytest.mark.parametrize(
    ("record", "unread"),
    [
        ({"system": "Add.", "system_prompt": "Count."}, {"system_prompt": 1}),
        ({"system": "Add.", "system_prompt": "Add.", "system_message": ""}, {}),
        ({"system": "", "system_instruction": "Add."}, {}),
        ({"tools": [{"name": "add"}], "functions": [{"name": "count"}]}, {"functions": 1}),
        ({"messages": None, "conversations": [USER, ANSWER], "conversation": [USER]}, {"conversation": 1}),
        ({"conversation": [USER]}, {}),
    ],
)
def test_of_two_keys_with_the_same_meaning_the_other_is_counted_as_unread(record, unread):
    assert parse_conversation({"messages": [USER, ANSWER], **record}).unread == unread


def test_functions_next_to_no_tools_are_read():
    record = {"messages": [USER, ANSWER], "tools": [], "functions": [{"name": "add"}]}
    assert parse_conversation(record).tools == [{"type": "function", "function": {"name": "add"}}]


def test_a_function_call_next_to_calls_is_counted_as_unread():
    calls = [{"type": "function", "function": {"name": "add", "arguments": "{}"}}]
    both = {"role": "assistant", "tool_calls": calls, "function_call": {"name": "look_up", "arguments": "{}"}}
    conversation = parse_conversation({"messages": [USER, both]})
    assert conversation.unread == {"function_call": 1}
    assert conversation.messages[1]["tool_calls"] == calls


@pytest.mark.parametrize("key", ["label", "kto_tag"])
@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, ANSWER]},
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": [USER], "completion": [ANSWER]},
        {"instruction": "2 + 2?", "output": "4"},
    ],
)
def test_only_answers_that_are_clearly_good_are_trained(record, key):
    for label in (None, True, 1, 1.0, "true", "True", "1", "1.0", "yes", " Good"):
        assert parse_conversation({**record, key: label}).messages == [USER, ANSWER]
    unclear = ("false", "False", "0", "no", "bad", "-1", "", "undesirable", "not good", "rejected", [], {}, [True])
    for label in (False, 0, 0.0, -1, 2, 0.5, *unclear):
        with pytest.raises(NotAChat) as caught:
            parse_conversation({**record, key: label})
        assert caught.value.reason == "bad_answer"


def test_a_label_of_a_message_counts_for_answers():
    assert parse_conversation({"messages": [USER | {"label": "sums"}, ANSWER]}).messages[1] == ANSWER
    for label in (False, "no", -1):
        with pytest.raises(NotAChat, match="message 1"):
            parse_conversation({"messages": [USER, ANSWER | {"label": label}]})
    turns = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "5", "kto_tag": "bad"}]
    with pytest.raises(NotAChat, match="message 1"):
        parse_conversation({"conversations": turns})


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


@pytest.mark.parametrize(
    ("field", "mark", "unread"),
    [
        *(({name: False}, False, {}) for name in ("train", "training", "loss", "train_on_turn")),
        *(({name: 0}, False, {}) for name in ("train", "loss", "weight", "loss_weight")),
        *(({"loss": True}, True, {}), ({"weight": 0.0}, False, {}), ({"weight": 1.0}, True, {})),
        *(({"weight": 1, "train": False}, False, {}), ({"train": True, "loss": False}, False, {})),
        *(({"loss_weight": 0.5}, True, {}), ({"loss": 0.37}, None, {"loss": 1})),
        *(({"mask": 1}, None, {"mask": 1}), ({"ignore_loss": True}, None, {"ignore_loss": 1})),
        ({"train_detail": [{"begin_offset": 0, "end_offset": 0, "train": False}]}, None, {"train_detail": 1}),
        *(({"brain": 1}, None, {}), ({"weights_file": "x"}, None, {})),
    ],
)
def test_marks_have_other_names_too(field, mark, unread):
    conversation = parse_conversation({"messages": [USER, ANSWER | field]})
    assert conversation.marks.get(1) == mark
    assert conversation.unread == unread


def test_marks_of_whole_records_are_counted():
    record = {"messages": [USER, ANSWER], "train": False, "weight": 0.0, "loss": 0.3, "enable_thinking": "false"}
    assert parse_conversation(record).unread == {"train": 1, "weight": 1, "enable_thinking": 1}
    assert parse_conversation({"messages": [USER, ANSWER], "train": True, "weight": None}).unread == {}


def test_a_refusal_is_what_the_assistant_says():
    refused = {"role": "assistant", "content": None, "refusal": "I will not add."}
    conversation = parse_conversation({"messages": [USER, refused]})
    assert conversation.messages[1] == {"role": "assistant", "content": "I will not add."}
    assert parse_conversation({"messages": [USER, ANSWER | {"refusal": "no"}]}).unread == {"refusal": 1}
    assert parse_conversation({"messages": [USER, ANSWER | {"refusal": "", "reasoning_details": []}]}).unread == {}


def test_reasoning_details_are_reasoning_if_they_are_texts():
    details = [{"type": "reasoning.text", "text": "two "}, {"type": "reasoning.text", "text": "and two"}]
    conversation = parse_conversation({"messages": [USER, ANSWER | {"reasoning_details": details}]})
    assert conversation.messages[1]["reasoning_content"] == "two and two"
    hidden = [*details, {"type": "reasoning.encrypted", "data": "x"}]
    conversation = parse_conversation({"messages": [USER, ANSWER | {"reasoning_details": hidden}]})
    assert conversation.messages[1] == ANSWER
    assert conversation.unread == {"reasoning_details": 1}


def test_whether_a_record_thinks_is_a_variable():
    record = {"messages": [USER, ANSWER], "enable_thinking": False}
    assert parse_conversation(record).variables == {"enable_thinking": False}
    both = record | {"chat_template_kwargs": {"enable_thinking": True}}
    assert parse_conversation(both).variables == {"enable_thinking": True}


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
        ({"prompt": "2?", "chosen": "2", "rejected": "3"}, "not_a_chat"),
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
        ({"messages": [USER, ANSWER], "system": 3}, "content_not_text"),
        ({"messages": [USER, {**ANSWER, "function_call": "look_up"}]}, "invalid_tool_calls"),
        ({"messages": [USER, ANSWER], "functions": "nothing"}, "invalid_tools"),
        ({"conversations": [{"from": "human", "value": "<image>\nWhat?"}], "image": "1.png"}, "images_not_set"),
        ({"messages": [{"role": "user", "content": "<image>"}, ANSWER], "images": ["1.png"]}, "images_not_set"),
        ({"messages": [{"role": "user", "content": [{"text": "a <image>"}]}, ANSWER], "image": "1"}, "images_not_set"),
        ({"messages": [USER, ANSWER], "images": ["1.png"]}, "images_not_set"),  # trained as text without them
        ({"messages": [{"role": "user", "content": "<video> What?"}, ANSWER], "videos": ["1.mp4"]}, "videos_not_set"),
        ({"messages": [{"role": "user", "content": "<audio>"}, ANSWER], "audio": "1.wav"}, "audios_not_set"),
    ],
)
def test_what_is_not_a_chat_is_said_in_a_word(record, reason):
    with pytest.raises(NotAChat) as caught:
        parse_conversation(record)
    assert caught.value.reason == reason


@pytest.mark.parametrize("key", ["system", "system_prompt", "system_message", "system_instruction"])
def test_a_system_prompt_next_to_the_messages_comes_first(key):
    conversation = parse_conversation({key: "Be brief.", "conversations": [{"from": "human", "value": "Hi"}]})
    assert conversation.messages[0] == {"role": "system", "content": "Be brief."}


def test_fields_name_the_parts_of_a_chat():
    pair = {"q": "2?", "a": "2", "about": "Count.", "messages": [{"role": "user", "content": "other"}], "label": True}
    found = parse_conversation(pair, fields={"prompt": "q", "response": "a", "system": "about"})
    assert [message["content"] for message in found.messages] == ["Count.", "2?", "2"]
    turns = {"dialog": [{"from": "human", "value": "2?"}, {"from": "gpt", "value": "2"}], "prompt": "x"}
    assert parse_conversation(turns, fields={"messages": "dialog"}).messages[1]["content"] == "2"
    for record, reason in (({"q": "2?"}, "missing_field"), ({**pair, "label": False}, "bad_answer")):
        with pytest.raises(NotAChat) as caught:
            parse_conversation(record, fields={"prompt": "q", "response": "a"})
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("record", "suggestion"),
    [
        ({"question": "a", "answer": "b", "context": "c"}, "{prompt: question, response: answer, system: context}"),
        ({"Problem": "a", "Solution": "b"}, "{prompt: Problem, response: Solution}"),
        ({"id": 1, "dialog": [{"role": "user", "content": "a"}]}, "{messages: dialog}"),
        ({"id": 1, "dialog": '[{"role": "user", "content": "a"}]'}, "{messages: dialog}"),
        ({"question": "a", "n": 3}, "{prompt: …, response: …}"),
    ],
)
def test_fields_are_suggested_for_other_keys(record, suggestion):
    with pytest.raises(NotAChat) as caught:
        parse_conversation(record)
    assert f"fields: {suggestion}" in caught.value.message


def test_what_looks_like_part_of_a_chat_and_is_not_read_is_counted():
    turn = {
        "role": "assistant",
        "content": "Yes.",
        "thoughts": "Hm.",
        "citations": ["a"],
        "timestamp": "now",
        "mask": 1,
    }
    record = {
        "messages": [{"role": "user", "content": "Is it?"}, turn],
        "prompt": "Is it?",  # is in the conversation
        "prompt_id": "7",
        "source": "web",
        "context": "It is.",
        "rejected_response": "No.",
        "sample_weight": 0.5,
        "documents": [],
    }
    counted = count_unused(record, parse_conversation(record), {"citations"}, ())
    assert counted == {"context": 1, "rejected_response": 1, "sample_weight": 1, "thoughts": 1}
    assert not count_unused(record, parse_conversation(record), {"citations", "thoughts"}, record.keys())


def test_turns_of_sharegpt_under_the_name_messages():
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho", "train": False}]
    assert parse_conversation({"messages": turns}) == parse_conversation({"conversations": turns})


def test_a_message_without_a_role_is_shown_with_its_keys():
    with pytest.raises(NotAChat, match="message 0 has no role, only speaker, text"):
        parse_conversation({"messages": [{"speaker": "a", "text": "b"}]})


def test_a_weight_between_is_never_silent():
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    assert parse_conversation({"messages": messages, "weight": 0.5}).unread == {"weight": 1}
    marked = parse_conversation({"messages": [messages[0], {**messages[1], "weight": 0.5, "loss_weight": 4}]})
    assert (marked.weights, marked.marks, marked.unread) == ({1: 2}, {1: True}, {})
    assert marked.remove_messages({0}).weights == {0: 2}
    for weight in (-1, -0.0001, float("nan"), float("inf")):
        with pytest.raises(NotAChat, match="weight"):
            parse_conversation({"messages": [messages[0], {**messages[1], "weight": weight}]})
