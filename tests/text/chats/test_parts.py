"""Whose each character of a rendered chat is, for the templates that are published and those that are made up."""

from datetime import date

import pytest
from gristmill_testing import chat_templates
from gristmill_testing.open_chats import published_templates
from gristmill_testing.template_matrix import MADE, TOOLS, VARIABLES
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core import token_kinds as kinds
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions, Example, TextPart
from gristmill.text.chats.parts import list_changes
from gristmill.text.chats.shapes import NotAChat
from gristmill.text.chats.templates import FoundTemplate

TEMPLATES = published_templates() | {f"made_{name}": getattr(chat_templates, name.upper()) for name in MADE}
CALL = {"id": "call00000", "type": "function", "function": {"name": "weather", "arguments": {"place": "Placeword"}}}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call00000", "content": "Resultword"}
WORDS = {
    "Systemword": kinds.SYSTEM,
    "Userword": kinds.USER,
    "Laterword": kinds.USER,
    "Resultword": kinds.RESULT,
    "Reasonword": kinds.REASONING,
    "Textword": kinds.ASSISTANT,
    "Finalword": kinds.ASSISTANT,
    "Placeword": kinds.CALL,
}


def user(words):
    return {"role": "user", "content": words}


def answer(words, **more):
    return {"role": "assistant", "content": words, **more}


RECORDS = {
    "turns": {
        "messages": [
            *({"role": "system", "content": "Systemword"}, user(" Userword 2+2?\n"), answer("Textword 4")),
            *(user("Laterword"), answer("\n Finalword ")),
        ]
    },
    "reasoning": {"messages": [user("Userword"), answer("Finalword", reasoning_content="Reasonword\n\nand 4")]},
    "inline": {"messages": [user("Userword"), answer("<think>\nReasonword\n</think>\n\nFinalword")]},
    "call": {
        "messages": [user("Userword"), answer("", tool_calls=[CALL]), RESULT, answer("Finalword")],
        "tools": TOOLS,
    },
    "text and call": {
        "messages": [user("Userword"), answer("Textword", tool_calls=[CALL]), RESULT, answer("Finalword")],
        "tools": TOOLS,
    },
    "reasoning and call": {
        "messages": [
            *(user("Userword"), answer("", reasoning_content="Reasonword", tool_calls=[CALL]), RESULT),
            answer("Finalword", reasoning_content="Reasonword again"),
        ],
        "tools": TOOLS,
    },
    "alike": {"messages": [user("4"), answer("4", reasoning_content="4"), user("<think>"), answer("user")]},
}


def make(source, record, **options):
    found = FoundTemplate(name="test", sources={"default": source}, variables=VARIABLES)
    try:
        return ExampleMaker(found, ChatOptions(**options), today=date(2026, 1, 31)).make(record).examples
    except NotAChat:
        return []


def written(example):
    """The characters that the model writes, by their kinds; the same in one span for neighbours."""
    return {place for part in example.parts if part.kind in kinds.WRITTEN for place in range(part.start, part.end)}


@pytest.mark.parametrize("prompt", ["as_rendered", "as_prompted"])
def test_words_are_only_in_parts_of_their_kind(prompt):
    num_known = num_examples = 0
    for name, source in TEMPLATES.items():
        for key, record in RECORDS.items():
            for example in make(source, record, prompt=prompt):
                assert list(example.parts) == sorted(example.parts), name
                trained = {place for span in example.trained for place in range(*span)}
                assert written(example) <= trained, (name, key)
                for word, kind in WORDS.items():
                    for part in example.parts:
                        if word in example.text[part.start : part.end]:
                            assert part.kind in (kind, kinds.CONTEXT), (name, key, word)
                            assert part.kind != kinds.CONTEXT or kind in kinds.WRITTEN, (name, key, word)
                num_examples += 1
                num_known += written(example) == trained
    assert num_examples > 4 * len(TEMPLATES)
    assert num_known > 0.97 * num_examples


def names(example):
    return [(kinds.TOKEN_KINDS[part.kind], example.text[part.start : part.end]) for part in example.parts]


def test_what_a_template_writes_around_reasoning_and_calls_is_theirs():
    source = (
        "{% for message in messages %}<|{{ message.role }}|>"
        "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>\n{% endif %}"
        "{{ message.content }}"
        "{% for call in message.tool_calls or [] %}<call>{{ call.function.name }}({{ call.function.arguments.place }})"
        "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    said = answer("Textword", reasoning_content="Reasonword", tool_calls=[CALL])
    [example] = make(source, {"messages": [user("Userword"), said, RESULT, answer("Finalword")], "tools": TOOLS})
    assert names(example) == [
        *(("user", "Userword"), ("reasoning", "<think>"), ("reasoning", "Reasonword"), ("reasoning", "</think>\n")),
        *(("assistant", "Textword"), ("call", "<call>weather(Placeword)"), ("end", "<|end|>")),
        *(("result", "Resultword"), ("assistant", "Finalword"), ("end", "<|end|>")),
    ]


def test_an_answer_that_is_not_trained_is_context():
    messages = [user("Userword"), answer("Textword", train=False), user("Laterword"), answer("Finalword", train=True)]
    [example] = make(chat_templates.CHATML, {"messages": messages}, train_on="marked")
    assert [name for name, _ in names(example)] == ["user", "context", "user", "assistant", "end"]


def test_a_border_that_is_not_known_is_not_guessed():
    # The template looks for a word in the answer, so that a mark in its place is written in another way.
    source = (
        "{% for message in messages %}<|{{ message.role }}|>{{ message.reasoning_content }}"
        "{% if 'Finalword' in message.content %}!{% endif %}{{ message.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    [example] = make(source, {"messages": [user("Userword"), answer("Finalword", reasoning_content="Reasonword")]})
    assert names(example) == [("user", "Userword"), ("end", "<|end|>")]
    [plain] = make(source, {"messages": [user("Userword"), answer("Finalword")]})
    assert names(plain)[1] == ("assistant", "!Finalword")


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(4, 12)), max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=4),
)
def test_changes_are_those_of_a_loop_over_characters(lengths, spans):
    parts, trained, position = [], [], 0
    for gap, length, kind in lengths:
        parts.append(TextPart(position + gap, position + gap + length, kind))
        position += gap + length
    position = 0
    for gap, length in spans:
        trained.append((position + gap, position + gap + length))
        position += gap + length
    num_chars = max([part.end for part in parts] + [end for _, end in trained] + [1])
    codes = [0] * num_chars
    for part in parts:
        codes[part.start : part.end] = [part.kind] * (part.end - part.start)
    for start, end in trained:
        codes[start:end] = [code | kinds.TRAINED for code in codes[start:end]]
    changes = dict(list_changes(Example("x" * num_chars, trained, [], 0, parts=parts)))
    code, expanded = 0, []
    for place in range(num_chars):
        code = changes.get(place, code)
        expanded.append(code)
    assert expanded == codes
