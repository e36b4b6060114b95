"""How templates end turns."""

import pytest
from gristmill_testing.chat_templates import (
    CHATML,
    LAST_END,
    NESTED_ENDS,
    NEXT_HEADER,
)

from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.templates import FoundTemplate

END = "<|im_end|>"


VARIABLES = {"bos_token": "<s>"}


def maker(source, **options):
    found = FoundTemplate(name="test", sources={"default": source}, variables=VARIABLES)
    return ExampleMaker(found, ChatOptions(**options))


def trained(made):
    return [[example.text[start:end] for start, end in example.trained] for example in made.examples]


def chat(*words):
    return {"messages": [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(words)]}


@pytest.mark.parametrize(
    ("source", "token", "first", "last"),
    [
        (NESTED_ENDS, "<|end_response|><|end_turn|>", "<|end_response|><|end_turn|>", "<|end_response|><|end_turn|>"),
        (LAST_END, "<|end|>", "<|end|>", "<|end|>"),
        (NEXT_HEADER, END, END, END),
        (CHATML, END, END, END),
    ],
)
def test_the_whole_end_of_a_turn_is_trained(source, token, first, last):
    made = maker(source).make(chat("Q1?", "A1.", "Q2?", "A2."))
    spans = [span for spans in trained(made) for span in spans]
    assert spans == ["A1." + first, "A2." + last]
    assert maker(source).usual_finder.turns.ending.token == token
    without = maker(source, train_end_of_turn=False).make(chat("Q1?", "A1."))
    assert trained(without) == [["A1."]]


@pytest.mark.parametrize("part", ["<|end_response|><|end_turn|>", "<|end_response|>", ""])
def test_tags_that_hold_a_part_of_the_end_are_completed(part):
    words = "{{ m.content }}"
    rest = "<|end_response|><|end_turn|>".removeprefix(part)
    source = NESTED_ENDS.replace(
        words + "<|end_response|>{% else %}{{ m.content }}{% endif %}<|end_turn|>",
        "{% generation %}"
        + words
        + part
        + "{% endgeneration %}"
        + rest
        + "{% else %}"
        + words
        + "<|end_turn|>{% endif %}",
    )
    assert "generation %}" in source
    made = maker(source).make(chat("Q1?", "A1.", "Q2?", "A2."))
    assert trained(made) == [[f"A{n}.<|end_response|><|end_turn|>" for n in (1, 2)]]


FIRST_PART = """{%- for m in messages -%}
<|{{ m.role }}|>{{ m.content if m.content is string else m.content[0].text }}<|im_end|>
{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""
ONLY_TEXT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content + '<|im_end|>' }}{% endfor %}"
ONLY_TEXT += "{% if add_generation_prompt %}<|assistant|>{% endif %}"


@pytest.mark.parametrize("source", [FIRST_PART, ONLY_TEXT])
def test_parts_of_text_are_joined_for_a_template_that_does_not_write_all_of_them(source):
    record = chat("Q1?\nQ2?", "A1.\nA2.")
    expected = maker(source).make(record)
    for message in record["messages"]:
        message["content"] = [{"type": "text", "text": line} for line in message["content"].split("\n")]
    assert maker(source).make(record).examples == expected.examples
