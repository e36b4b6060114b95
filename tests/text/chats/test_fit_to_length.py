"""End tokens on request, thoughts that a switch would supply, and long conversations in several windows."""

import re

import pytest
from gristmill_testing.chat_templates import CHATML, END_BETWEEN, NO_END, SWITCHED_THOUGHT
from gristmill_testing.shared_data import template_source, tokenizer_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.text.chats.check_template import check_template
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.templates import FoundTemplate
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer

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


AGENTS = (
    "{%- for t in tools or [] %}<tool>{{ t.name }}</tool>{% endfor %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@st.composite
def agent_chats(draw):
    """Exchanges of many turns, with calls and their results; each question and answer has a name of its own."""
    messages = [{"role": "system", "content": "SYSTEM"}] if draw(st.booleans()) else []
    questions, numbers = {}, iter(range(1000))
    for number in range(draw(st.integers(1, 4))):
        messages += [{"role": "user", "content": f"Q{number}. " + "why " * draw(st.integers(0, 8))}]
        num_turns = draw(st.integers(1, 6))
        for turn in range(num_turns):
            name = f"A{next(numbers)}."
            questions[name] = f"Q{number}."
            answer = {"role": "assistant", "content": name + " so" * draw(st.integers(0, 30))}
            calls = draw(st.integers(0 if turn == num_turns - 1 else 1, 2))
            if calls:
                arguments = {"text": "x " * draw(st.integers(0, 20))}
                answer["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": arguments}}] * calls
            results = [{"role": "tool", "content": "r " * draw(st.integers(0, 40))}] * calls
            messages += [answer, *results]
    while messages[-1]["role"] == "tool":
        messages.pop()
    chat = {"messages": messages}
    if draw(st.booleans()):
        chat["tools"] = [{"name": "TOOL"}]
    if draw(st.booleans()) and len(questions) > 2:
        cut = next(index for index, message in enumerate(messages) if message["content"].startswith("A1."))
        return {**chat, "messages": None, "prompt": messages[:cut], "completion": messages[cut:]}, questions
    return chat, questions


def check_turn_windows(made, chat, questions, count_tokens, most):
    """Each answer that is wanted is trained in one window, with its question, or counted; every window fits."""
    messages = chat["messages"] or chat["prompt"] + chat["completion"]
    wanted = [m["content"].split(" ")[0] for m in chat.get("completion") or messages if m["role"] == "assistant"]
    names = [re.search(r"A\d+\.", span)[0] for spans in trained(made) for span in spans]
    assert names == [name for name in wanted if name in names]  # once each, and in order
    lost = sum(count for name, count in made.counts if name.startswith("lost_"))
    assert len(names) + lost == len(wanted)
    has_system, has_tools = messages[0]["role"] == "system", "tools" in chat
    for example, spans in zip(made.examples, trained(made), strict=True):
        assert count_tokens(example.text) <= most
        assert ("SYSTEM" in example.text) == has_system
        assert ("TOOL" in example.text) == has_tools
        for span in spans:
            assert questions[re.search(r"A\d+\.", span)[0]] in example.text


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=agent_chats(), most=st.integers(100, 700))
def test_in_turn_windows_every_turn_is_trained_once_with_its_question(drawn, most):
    chat, questions = drawn
    made = maker(AGENTS, too_long="turn_windows", max_tokens=most).make(chat)
    check_turn_windows(made, chat, questions, len, most)
    whole = maker(AGENTS).make(chat).examples[0].text
    if len(whole) <= most:
        assert [example.text for example in made.examples] == [whole]
    # A window begins as early as it can: with the turn before its first one it would be too long.
    by_exchange = maker(AGENTS, too_long="windows", max_tokens=most).make(chat)
    assert sum(map(len, trained(made))) >= sum(map(len, trained(by_exchange)))


def test_a_question_with_many_turns_is_cut_between_them():
    turn = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "r" * 50},
    ]
    messages = [{"role": "user", "content": "Q."}, *turn * 200, {"role": "assistant", "content": "Done."}]
    counts = []

    def count_tokens(text):
        counts.append(len(text))
        return len(text)

    made = maker(AGENTS, count_tokens, too_long="turn_windows", max_tokens=500).make({"messages": messages})
    assert sum(map(len, trained(made))) == 201
    assert not made.dropped
    assert all(example.text.startswith("<|im_start|>user\nQ.") for example in made.examples)
    assert sum(counts) < 6 * sum(len(example.text) for example in made.examples)
    assert maker(AGENTS, len, too_long="windows", max_tokens=500).make({"messages": messages}).dropped == ["too_long"]


@pytest.mark.parametrize("template", ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=agent_chats(), most=st.integers(150, 500))
def test_turn_windows_of_real_templates_and_tokens(template, drawn, most):
    """With the template and the tokenizer of a model; Qwen3's makes an example of each answer."""
    chat, questions = drawn
    if "tools" in chat:
        chat["tools"] = [{"type": "function", "function": {"name": "TOOL", "description": "", "parameters": {}}}]
    engine = load_engine(find_tokenizer(str(tokenizer_folder("qwen2_5"))), "tokenizers", specials_as_text=False)

    def count_tokens(text):
        return len(engine.encode([text])[0])

    source = template_source(template)
    made = maker(source, count_tokens, too_long="turn_windows", max_tokens=most).make(chat)
    check_turn_windows(made, chat, questions, count_tokens, most)
