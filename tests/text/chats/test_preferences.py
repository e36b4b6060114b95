"""The shapes of preferences: each becomes a prompt with its answers, and what says nothing has a reason."""

import json
import math

import pytest

from gristmill.text.chats.options import DroppedChat
from gristmill.text.chats.preferences import is_preference, read_preferences
from gristmill.text.chats.shapes import NotAChat, parse_conversation

ASKED, GOOD, BAD = (
    {"role": role, "content": text} for role, text in (("user", "2+2?"), ("assistant", "4"), ("assistant", "5"))
)
BEFORE = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
DIALOGUE = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: 2+2?\n\nAssistant:"
TEXTS = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
SIDES = {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}
SHARE_GPT = [{"from": "human", "value": "2+2?"}]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("record", "prompt"),
    [
        (TEXTS, [ASKED]),
        ({"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}, [ASKED]),
        ({"prompt": [*BEFORE, ASKED], "chosen": GOOD, "rejected": BAD}, [*BEFORE, ASKED]),
        (SIDES, [ASKED]),
        ({**SIDES, "prompt": "2+2?", "messages": [ASKED, GOOD]}, [ASKED]),  # UltraFeedback
        ({"chosen": json.dumps([ASKED, GOOD]), "rejected": json.dumps([ASKED, BAD])}, [ASKED]),
        ({"messages_chosen": [ASKED, GOOD], "messages_rejected": [ASKED, BAD]}, [ASKED]),
        ({"chosen": f"{DIALOGUE} 4", "rejected": f"{DIALOGUE} 5"}, [*BEFORE, ASKED]),  # HH-RLHF
        ({"prompt": DIALOGUE, "chosen": " 4", "rejected": " 5"}, [*BEFORE, ASKED]),
        ({"messages": [*BEFORE, ASKED, GOOD], "rejected_response": "5"}, [*BEFORE, ASKED]),  # ms-swift
        ({"messages": [ASKED, GOOD], "rejected_messages": [ASKED, BAD]}, [ASKED]),
        (
            {
                "conversations": SHARE_GPT,
                "chosen": {"from": "gpt", "value": "4"},
                "rejected": {"from": "gpt", "value": "5"},
            },
            [ASKED],
        ),  # LLaMA-Factory
        ({"instruction": "2+2?", "input": "", "chosen": "4", "rejected": "5"}, [ASKED]),
        ({"prompt": "2+2?", "responses": ["5", "7", "4"], "scores": [0, 2, 9]}, [ASKED]),
        ({"prompt": "2+2?", "responses": ["5", "4"], "ranks": [2, 1]}, [ASKED]),
        (
            {
                "instruction": "2+2?",
                "completions": [{"response": "5", "overall_score": 1.0}, {"response": "4", "overall_score": 7.5}],
            },
            [ASKED],
        ),
    ],
)
def test_every_shape_is_a_prompt_with_two_answers(record, prompt):
    [pair] = read_preferences(record, "pairs")
    side = [answer[0]["content"].strip() for answer in pair.answers]
    assert [{**message, "content": message["content"]} for message in pair.prompt] == prompt
    assert side[0] == "4"
    assert side[1] in ("5", "7") or side[1] == "5"
    assert is_preference(record) == "pairs"
    labeled = read_preferences(record, "labels")
    assert [(each.answers, each.values["label"]) for each in labeled] == [
        ([pair.answers[0]], True),
        ([pair.answers[1]], False),
    ]


def test_the_best_answer_is_compared_with_the_worst():
    record = {"prompt": "2+2?", "responses": ["a", "b", "c", "d", "e"], "scores": [2, 9, 1, 9, 1]}
    [pair] = read_preferences(record, "pairs")
    assert [answer[0]["content"] for answer in pair.answers] == ["b", "c"]
    assert pair.values == {"margin": 8.0, "score_chosen": 9.0, "score_rejected": 1.0}


def test_scores_and_margins_are_carried():
    assert read_preferences(TEXTS, "pairs")[0].values == dict.fromkeys(("margin", "score_chosen", "score_rejected"))
    scored = {**TEXTS, "score_chosen": 8.5, "score_rejected": "7"}
    assert read_preferences(scored, "pairs")[0].values == {"margin": 1.5, "score_chosen": 8.5, "score_rejected": 7.0}
    assert read_preferences({**scored, "margin": 3}, "pairs")[0].values["margin"] == 3.0


@pytest.mark.parametrize("label", [True, False, 1, 0, "true", "false"], ids=repr)
def test_labels_are_true_or_false(label):
    record = {"prompt": "2+2?", "completion": "4", "label": label, "score": 0.5}
    [labeled] = read_preferences(record, "labels")
    assert labeled.values == {"label": label in (True, 1, "true"), "score": 0.5}
    assert (labeled.prompt, labeled.answers) == ([ASKED], [[GOOD]])
    chat = {"messages": [*BEFORE, ASKED, GOOD], "kto_tag": label}
    [labeled] = read_preferences(chat, "labels")
    assert (labeled.prompt, labeled.answers) == ([*BEFORE, ASKED], [[GOOD]])
    assert is_preference(chat) == "labels"


def test_fields_name_other_keys():
    record = {"q": "2+2?", "good": "4", "bad": "5"}
    fields = {"prompt": "q", "chosen": "good", "rejected": "bad"}
    assert read_preferences(record, "pairs", fields) == read_preferences(TEXTS, "pairs")
    with pytest.raises(NotAChat) as problem:
        read_preferences({"q": "2+2?"}, "pairs", fields)
    assert problem.value.reason == "missing_field"


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rejected": "4"}, "equal_sides"),
        ({"chosen": "a  b", "rejected": " a b\n"}, "sides_differ_in_space"),
        ({"chosen": " "}, "empty_chosen"),
        ({"rejected": ""}, "empty_rejected"),
        ({"chosen": [ASKED, GOOD], "rejected": [ASKED, GOOD]}, "equal_sides"),
        ({"chosen": None, "rejected": None, "responses": ["a", "b"], "scores": [1, 1]}, "equal_scores"),
        ({"chosen": None, "rejected": None, "responses": ["a", "b"], "scores": [1, None]}, "one_answer"),
    ],
)
def test_pairs_that_say_nothing_are_dropped(changes, reason):
    with pytest.raises(DroppedChat) as dropped:
        read_preferences({**TEXTS, **changes}, "pairs")
    assert str(dropped.value) == reason


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"chosen": "4", "rejected": "5"}, "no_prompt"),
        ({"messages": [ASKED, GOOD]}, "not_a_pair"),
        ({**TEXTS, "score_chosen": math.nan, "score_rejected": 1}, "invalid_score"),
        ({**TEXTS, "margin": math.inf}, "invalid_score"),
        ({**TEXTS, "margin": True}, "invalid_score"),
        ({"prompt": "2+2?", "responses": ["a", "b"], "scores": [1, "nan"]}, "invalid_score"),
        ({"prompt": "2+2?", "responses": ["a", "b"], "scores": [1]}, "invalid_score"),
        ({"chosen": [ASKED], "rejected": [ASKED, BAD]}, "shorter_than_prompt"),
        ({"prompt": [*BEFORE, ASKED], "chosen": [BEFORE[0]], "rejected": [*BEFORE, ASKED, BAD]}, "shorter_than_prompt"),
        ({"chosen": "\n\nHuman: Hi", "rejected": "\n\nHuman: Hi\n\nAssistant: Hello"}, "shorter_than_prompt"),
        ({"chosen": [ASKED, GOOD], "rejected": [BEFORE[0], BAD]}, "prompts_differ"),
        ({"prompt": "3+3?", **SIDES}, "prompts_differ"),
        ({"prompt": "2+2?", "chosen": [ASKED, GOOD], "rejected": "5"}, "prompts_differ"),
        ({"prompt": "2+2?", "chosen": 7, "rejected": "5"}, "invalid_messages"),
        ({"prompt": "2+2?", "chosen": ["4"], "rejected": "5"}, "invalid_message"),
    ],
)
def test_what_is_no_pair_has_a_reason(record, reason):
    with pytest.raises(NotAChat) as problem:
        read_preferences(record, "pairs")
    assert problem.value.reason == reason


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "2+2?", "completion": "4"}, "no_label"),
        ({"prompt": "2+2?", "completion": "4", "label": 3}, "invalid_label"),
        ({"text": "2+2?", "label": True}, "not_a_chat"),
        ({"prompt": "2+2?", "completion": "4", "label": True, "score": math.nan}, "invalid_score"),
    ],
)
def test_what_has_no_label_has_a_reason(record, reason):
    with pytest.raises(NotAChat) as problem:
        read_preferences(record, "labels")
    assert problem.value.reason == reason


def test_who_did_not_ask_for_pairs_is_told_how_to():
    for record, word in ((TEXTS, "pairs"), ({"prompt": "2?", "completion": "3", "label": False}, "labels")):
        with pytest.raises(NotAChat) as problem:
            parse_conversation(record)
        assert f"preferences: {word}" in problem.value.message
