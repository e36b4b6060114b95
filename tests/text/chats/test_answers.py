"""Prompts that are not how answers are rendered, ends of several tokens, and what templates leave out."""

import pytest
from gristmill_testing.chat_templates import (
    CHATML,
    CLOSED_THOUGHT,
    EMPTY_THOUGHT,
    LINE_BEFORE_HEADER,
    NO_ARGUMENTS,
    ONE_CALL,
    THINKING_PROMPT,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.text.chats.check_template import check_template
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.shapes import NotAChat
from gristmill.text.chats.templates import FoundTemplate

END = "<|im_end|>"
VARIABLES = {"bos_token": "<s>"}


def maker(source, **options):
    found = FoundTemplate(name="test", sources={"default": source}, variables=VARIABLES)
    return ExampleMaker(found, ChatOptions(**options))


def trained(made):
    return [[example.text[start:end] for start, end in example.trained] for example in made.examples]


def counted(made, name):
    return sum(count for found, count in made.counts if found == name)


def chat(*words):
    return {"messages": [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(words)]}


def call(city, name="weather"):
    return {"id": city, "type": "function", "function": {"name": name, "arguments": {"city": city}}}


def calling(*cities, content=""):
    return {
        "messages": [
            {"role": "user", "content": "Q1?"},
            {"role": "assistant", "content": content, "tool_calls": [call(city) for city in cities]},
            *({"role": "tool", "name": "weather", "tool_call_id": city, "content": "rain"} for city in cities),
            {"role": "assistant", "content": "A1."},
        ]
    }


@pytest.mark.parametrize("source", [THINKING_PROMPT, CLOSED_THOUGHT])
def test_the_answer_begins_behind_what_prompt_and_rendering_have_in_common(source):
    record = chat("Q1?", "A1.", "Q2?", "A2.")
    made = maker(source).make(record)
    assert trained(made) == [["A1." + END, "A2." + END]]
    assert counted(made, "prompt_differs") == 2
    [example] = made.examples
    assert example.text == maker(source).usual_finder.template.render(record["messages"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet="<think>\n/ A|_", min_size=1).filter(str.strip), st.booleans())
def test_no_word_of_an_answer_is_taken_for_a_part_of_the_prompt(answer, asks_twice):
    """The law: all of the answer is trained, unless it begins with just what the prompt ends with."""
    record = chat("Q?", "A.", "Q2?", answer) if asks_twice else chat("Q?", answer)
    for source, ends in ((CLOSED_THOUGHT, "<|channel>thought\n<channel|>"), (THINKING_PROMPT, "<think>\n")):
        made = maker(source).make(record)
        rendered = answer.split("</think>")[-1] if source == THINKING_PROMPT else answer
        if rendered.strip():
            [*_, last] = trained(made)[-1]
            assert last == rendered.removeprefix(ends) + END


def test_an_answer_that_begins_as_the_prompt_ends_does_not_differ():
    source = CHATML.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
    made = maker(source).make(chat("Q?", "<think>\nWhy not.\n</think>\n\nA."))
    assert trained(made) == [["Why not.\n</think>\n\nA." + END]]
    assert not counted(made, "prompt_differs")


def test_prompts_of_every_kind_of_answer_may_differ():
    made = maker(EMPTY_THOUGHT).make(calling("Ulm", "Bonn"))
    [[first, second]] = trained(made)
    assert first.startswith("</think><tool_call>")
    assert second == "</think>A1." + END
    assert counted(made, "prompt_differs") == 2


def test_refused_answers_are_counted_by_kind():
    made = maker(EMPTY_THOUGHT, prompt="refuse").make(calling("Ulm"))
    assert (made.examples, made.dropped) == ([], ["prompt_differs"])
    assert (counted(made, "lost_call"), counted(made, "lost_after_result")) == (1, 1)


def test_as_prompted_is_what_the_model_will_see():
    source = THINKING_PROMPT
    record = chat("Q1?", "<think>\nR1\n</think>\n\nA1.", "Q2?", "<think>\nR2\n</think>\n\nA2.")
    made = maker(source, prompt="as_prompted").make(record)
    template = maker(source).usual_finder.template
    for number, example in enumerate(made.examples):
        prompt = template.render(record["messages"][: 2 * number + 1], None, {"add_generation_prompt": True})
        assert example.text.startswith(prompt)
        assert [start for start, _ in example.trained] == [len(prompt)]
    assert trained(made) == [["R1\n</think>\n\nA1." + END], ["R2\n</think>\n\nA2." + END]]


def test_reasoning_in_a_field_of_its_own_is_put_into_the_open_thought():
    record = chat("Q1?", "A1.")
    record["messages"][1]["reasoning_content"] = "R1"
    made = maker(THINKING_PROMPT, prompt="as_prompted").make(record)
    assert trained(made) == [["R1\n</think>\n\nA1." + END]]


def test_reasoning_is_put_into_a_thought_that_the_rendering_leaves_empty():
    source = EMPTY_THOUGHT.replace("{{ m.reasoning_content or '' }}", "")
    record = chat("Q1?", "A1.")
    record["messages"][1]["reasoning_content"] = "R1"
    [problem] = report(source, [record]).problems
    assert "as_prompted" in problem.help
    made = maker(source, prompt="as_prompted").make(record)
    assert trained(made) == [["R1\n</think>A1." + END]]
    assert not counted(made, "reasoning_left_out")


def test_a_thought_that_never_ends_is_dropped():
    made = maker(THINKING_PROMPT, prompt="as_prompted").make(chat("Q1?", "A1."))
    assert made.dropped == ["unclosed_reasoning"]
    assert counted(made, "lost_plain") == 1


def test_literals_stay_where_they_are_when_the_prompt_is_put_before():
    found = FoundTemplate(name="test", sources={"default": CLOSED_THOUGHT}, variables={})
    made = ExampleMaker(found, ChatOptions(prompt="as_prompted"), special_tokens={END: 0}).make(
        chat(f"What is {END}?", f"It is {END}.")
    )
    [example] = made.examples
    assert [example.text[start:end] for start, end in example.literals] == [END, END]
    assert example.text[slice(*example.trained[0])] == f"It is {END}.{END}"


def test_a_line_more_before_the_header_is_not_taken_for_the_answer():
    made = maker(LINE_BEFORE_HEADER).make(calling("Ulm"))
    assert [spans[-1] for spans in trained(made)][-1] == "A1." + END


def report(source, records, **options):
    return check_template(maker(source, **options), records, VARIABLES)


def test_the_report_shows_both_texts_and_the_switch():
    found = report(EMPTY_THOUGHT, [chat("Q1?", "A1."), calling("Ulm")])
    difference = found.prompt_difference
    assert (difference.num_answers, difference.num_differing) == (3, 3)
    assert difference.prompt.endswith("<think>\n")
    assert "<think></think>A1." in difference.rendered
    assert difference.switch == "enable_thinking: false"
    agreeing = maker(EMPTY_THOUGHT, template_variables={"enable_thinking": False}).make(chat("Q1?", "A1."))
    assert not counted(agreeing, "prompt_differs")
    assert found.num_lost == 0
    assert not found.problems


def test_lost_answers_are_reported_by_kind():
    found = report(EMPTY_THOUGHT, [chat("Q1?", "A1.", "Q2?", "A2."), calling("Ulm")], prompt="refuse")
    assert {kind: counts.num_lost for kind, counts in found.answers.items()} == {
        "plain": 2,
        "call": 1,
        "after_result": 1,
    }
    assert found.prompt_difference.num_differing == 4


def test_reasoning_that_the_last_answer_loses_stops_the_plan():
    record = chat("Q1?", "<think>\nR1\n</think>\n\nA1.")
    [problem] = report(THINKING_PROMPT, [record]).problems
    assert "as_prompted" in problem.help
    assert not report(THINKING_PROMPT, [record], prompt="as_prompted").problems


def test_parallel_calls_of_which_one_is_left_out_are_refused():
    assert len(maker(ONE_CALL).make(calling("Ulm")).examples) == 1
    with pytest.raises(NotAChat) as caught:
        maker(ONE_CALL).make(calling("Ulm", "Bonn"))
    assert caught.value.reason == "calls_left_out"
    with pytest.raises(NotAChat) as caught:
        maker(NO_ARGUMENTS).make(calling("Ulm"))
    assert caught.value.reason == "calls_left_out"


@pytest.mark.parametrize(
    "arguments", ['{"city": "Ulm", "days": [1, 2]}', {"city": "Ulm", "deep": {"er": None}}, {}, "x"]
)
def test_calls_that_are_written_are_kept(arguments):
    record = calling("Ulm")
    record["messages"][1]["tool_calls"][0]["function"]["arguments"] = arguments
    assert maker(EMPTY_THOUGHT, accepts_quoted_arguments=True).make(record).examples


def test_text_beside_calls_that_is_left_out_is_counted():
    record = calling("Ulm", content="Let me look.")
    assert counted(maker(ONE_CALL).make(record), "answer_left_out") == 1
    assert not counted(maker(EMPTY_THOUGHT).make(record), "answer_left_out")
    assert any("next to calls" in note for note in report(ONE_CALL, [record]).notes)
