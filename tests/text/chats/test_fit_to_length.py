"""End tokens on request, thoughts that a switch would supply, and long conversations in several windows."""

import pytest
from gristmill_testing.chat_templates import CHATML, END_BETWEEN, NO_END, SWITCHED_THOUGHT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.text.chats.check_template import check_template
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.templates import FoundTemplate

END = "<|im_end|>"
VARIABLES = {"eos_token": "</s>"}


def maker(source=CHATML, count_tokens=len, **options):
    found = FoundTemplate(name="test", sources={"default": source}, variables=VARIABLES)
    return ExampleMaker(found, ChatOptions(**options), count_tokens=count_tokens)


def trained(made):
    return [[example.text[start:end] for start, end in example.trained] for example in made.examples]


def chat(*words, system=None):
    messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(words)]
    return {"messages": [*([{"role": "system", "content": system}] if system else []), *messages]}


@pytest.mark.parametrize(
    ("source", "spans"),
    [
        (NO_END, ["A1.", "A2.</s>"]),
        (END_BETWEEN, ["A1.</s>", "A2.</s>"]),
        (CHATML, ["A1." + END, "A2." + END + "</s>"]),
    ],
)
def test_the_end_token_is_appended_and_trained_on_request(source, spans):
    record = chat("Q1?", "A1.", "Q2?", "A2.")
    made = maker(source, append_eos=True).make(record)
    assert trained(made) == [spans]
    assert made.examples[0].text.endswith("</s>")
    assert made.examples[0].text.count("</s>") == 1 + (source == END_BETWEEN)
    assert trained(maker(source, append_eos=True, train_end_of_turn=False).make(record))[0][-1] == "A2."


def test_a_template_without_an_end_names_the_option():
    [problem] = check_template(maker(NO_END), [chat("Q?", "A.")], VARIABLES).problems
    assert "append_eos" in problem.help
    assert not check_template(maker(NO_END, append_eos=True), [chat("Q?", "A.")], VARIABLES).problems


def test_a_thought_is_trained_with_its_tag_unless_the_default_prompt_supplies_it():
    record = chat("Q?", "A.")
    assert trained(maker(SWITCHED_THOUGHT).make(record)) == [["A." + END]]  # the empty thought is the template's
    record["messages"][1]["reasoning_content"] = "Why not."
    assert trained(maker(SWITCHED_THOUGHT).make(record)) == [["<think>\nWhy not.\n</think>\nA." + END]]
    told = maker(SWITCHED_THOUGHT, template_variables={"enable_thinking": True}).make(record)
    assert trained(told) == [["Why not.\n</think>\nA." + END]]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(80, 400), st.booleans())
def test_in_windows_every_answer_is_trained_once_or_counted(sizes, most, has_system):
    words = [text for n, size in enumerate(sizes) for text in (f"Q{n}?", f"A{n}." + "x" * size)]
    record = chat(*words, system="SYSTEM" if has_system else None)
    made = maker(too_long="windows", max_tokens=most).make(record)
    spans = [span for spans in trained(made) for span in spans]
    wanted = [words[2 * n + 1] + END for n in range(len(sizes))]
    assert [span for span in wanted if span in spans] == spans  # once each, and in order
    assert len(spans) + sum(count for name, count in made.counts if name.startswith("lost_")) == len(wanted)
    assert all(len(example.text) <= most for example in made.examples)
    assert all(("SYSTEM" in example.text) == has_system for example in made.examples)
    whole = maker().make(record).examples[0].text
    if len(whole) <= most:
        assert [example.text for example in made.examples] == [whole]
    shortened = maker(too_long="drop_turns", max_tokens=most).make(record)
    if shortened.examples:
        assert made.examples[-1].text == shortened.examples[-1].text


def test_the_plan_tells_what_a_limit_costs():
    record = chat(*(f"message {n} of some length" for n in range(12)))
    costs = []
    for too_long in ("drop_turns", "windows", "cut"):
        limited = maker(too_long=too_long, max_tokens=250)
        [note] = [note for note in check_template(limited, [record], VARIABLES).notes if "trained tokens" in note]
        costs.append(float(note.split("%")[0].rpartition(" ")[2]))
    assert costs[0] > 30
    assert costs[1] == 0
    assert costs[2] > 30
