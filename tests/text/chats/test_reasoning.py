"""Reasoning that prompts begin, and templates whose tags hold more or less than the answers."""

import json

import pytest
from gristmill_testing.chat_templates import (
    CHATML,
    CLOSED_THOUGHT,
    LINE_BEFORE_HEADER,
    OPEN_THOUGHT,
    TAGGED_END_OF_TEXT,
    TAGGED_HEADER,
    UNTAGGED_CALLS,
)
from gristmill_testing.rendering import SPECIALS, batch, tokens, words
from gristmill_testing.small_tokenizers import trained as trained_tokenizer

from gristmill.text.chats.check_template import check_template
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.shapes import NotAChat
from gristmill.text.chats.templates import FoundTemplate, find_unknown_tokens
from gristmill.text.tokenizers.files import find_tokenizer, read_facts

END = "<|im_end|>"
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
CALLING = {
    "messages": [
        {"role": "user", "content": "Q?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "weather", "content": "rain"},
        {"role": "assistant", "content": "A."},
    ]
}


def maker(source, special_tokens=(), **options):
    found = FoundTemplate(name="test", sources={"default": source}, variables={"bos_token": "<s>"})
    return ExampleMaker(found, ChatOptions(**options), special_tokens=dict.fromkeys(special_tokens, 0))


def chat(answer, **more):
    return {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": answer, **more}]}


def trained(made):
    return [[example.text[start:end] for start, end in example.trained] for example in made.examples]


def counts(made):
    return {name: count for name, count in made.counts if not name.startswith("found_by")}


def test_a_template_need_not_know_how_the_thought_of_its_prompt_ends():
    made = maker(OPEN_THOUGHT, prompt="as_prompted").make(chat("A."))
    assert (made.examples, made.dropped) == ([], ["unclosed_reasoning"])
    for record in (chat("A.", reasoning_content="R."), chat("<think>R.\n</think>\n\nA.")):
        made = maker(OPEN_THOUGHT, prompt="as_prompted").make(record)
        assert trained(made) == [["R.\n</think>\n\nA." + END]]


def test_reasoning_that_only_the_prompt_of_a_template_knows_stops_the_plan():
    report = check_template(maker(OPEN_THOUGHT), [chat("A.", reasoning_content="R.")], {})
    assert [(problem.name, "as_prompted" in problem.help) for problem in report.problems] == [("reasoning_lost", True)]
    assert not check_template(maker(CHATML), [chat("A.", reasoning_content="R.")], {}).problems


def test_notes_say_why_answers_become_examples_of_their_own():
    record = chat("A.", reasoning_content="R.")
    notes = check_template(maker(OPEN_THOUGHT, prompt="as_prompted"), [record], {}).notes
    assert any("answers are written after their prompts, so each" in note for note in notes)
    assert not any("rewrites" in note for note in notes)


def test_a_tag_that_the_end_of_the_turn_closes_is_no_thought():
    source = (
        "{%- for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
        "{# </assistant> #}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    assert not check_template(maker(source), [chat("A.", reasoning_content="R.")], {}).problems


@pytest.mark.parametrize("answer", ["<b>Four</b>, of course.", "<answer>4</answer>", "<details>x</details>"])
def test_tags_at_the_start_of_an_answer_are_not_reasoning(answer):
    made = maker(CLOSED_THOUGHT, prompt="as_prompted").make(chat(answer))
    assert trained(made) == [[answer + END]]
    assert maker(OPEN_THOUGHT, prompt="as_prompted").make(chat(answer)).dropped == ["unclosed_reasoning"]


def test_reasoning_is_cut_only_where_the_prompt_has_ended_the_thought():
    record = {"messages": [*CALLING["messages"][:3], {"role": "assistant", "content": "<think>R.</think>A."}]}
    made = maker(LINE_BEFORE_HEADER, prompt="as_prompted").make(record)
    assert trained(made)[-1] == ["<think>R.</think>A." + END]
    made = maker(CLOSED_THOUGHT, prompt="as_prompted").make(chat("<think>R.</think>A."))
    assert trained(made) == [["A." + END]]
    assert counts(made)["reasoning_left_out"] == 1


def test_reasoning_that_a_template_cuts_from_answers_is_told_and_can_be_kept():
    """The prompt says nothing of it: the model itself is to begin with `<think>`."""
    source = CHATML.replace("m.content +", "m.content.split('</think>')[-1].strip() +")
    record = chat("<think>\nR.\n</think>\n\nA.")
    assert counts(maker(source).make(record)) == {"reasoning_left_out": 1}
    [problem] = check_template(maker(source), [record], {}).problems
    assert (problem.name, "as_prompted" in problem.help) == ("reasoning_lost", True)
    made = maker(source, prompt="as_prompted").make(record)
    assert trained(made) == [["<think>\nR.\n</think>\n\nA." + END]]
    assert "reasoning_left_out" not in counts(made)


def test_special_tokens_in_reasoning_stay_text_where_it_is_put_into_the_prompt():
    record = chat(f"A {END}.", reasoning_content=f"R {END}.")
    [example] = maker(OPEN_THOUGHT, [END], prompt="as_prompted").make(record).examples
    assert [example.text[start:end] for start, end in example.literals] == [END, END]
    assert [example.text[start - 2 : end + 1] for start, end in example.literals] == [f"R {END}.", f"A {END}."]


def test_what_the_prompt_holds_more_is_seen_behind_a_header_within_tags():
    header = "<|im_start|>assistant\n"
    made = maker(TAGGED_HEADER).make(chat("A."))
    assert (trained(made), counts(made)) == ([[f"{header}A.{END}"]], {"prompt_differs": 1})
    same = chat("<think>\nR.</think>A.")
    made = maker(TAGGED_HEADER, prompt="refuse").make(same)
    assert (trained(made), counts(made)) == ([[f"{header}<think>\nR.</think>A.{END}"]], {})


def test_answers_that_tags_leave_out_are_counted_by_kind():
    made = maker(UNTAGGED_CALLS).make(CALLING)
    assert (trained(made), counts(made)) == ([["A." + END]], {"lost_call": 1})
    report = check_template(maker(UNTAGGED_CALLS), [CALLING], {})
    assert {kind: found.num_lost for kind, found in report.answers.items()} == {"call": 1, "after_result": 0}
    assert counts(maker(UNTAGGED_CALLS, train_on="last_assistant").make(CALLING)) == {}


def test_calls_that_a_template_with_tags_does_not_write_are_refused():
    source = (
        "{%- for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    with pytest.raises(NotAChat) as caught:
        maker(source).make(CALLING)
    assert caught.value.reason == "calls_left_out"


def test_a_begin_token_in_a_message_does_not_hide_that_the_template_writes_two():
    twice = "{{ bos_token }}{{ bos_token }}" + CHATML
    for answer, source in (("A <s>.", twice), ("A.", twice)):
        problems = check_template(maker(source, ["<s>"]), [chat(answer)], {"bos_token": "<s>"}).problems
        assert [problem.name for problem in problems] == ["double_bos"]
    once = "{{ bos_token }}" + CHATML
    assert not check_template(maker(once, ["<s>"]), [chat("A <s>.")], {"bos_token": "<s>"}).problems


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"<|more|>": 900}),
        ("special_tokens_map.json", {"additional_special_tokens": ["<|more|>"]}),
        ("special_tokens_map.json", {"sep_token": {"content": "<|more|>", "lstrip": False}}),
    ],
)
def test_tokens_may_be_added_by_other_files_beside_the_tokenizer(tmp_path, name, content):
    trained_tokenizer(tmp_path, specials=SPECIALS, chat_template=CHATML)
    (tmp_path / name).write_text(json.dumps(content))
    files = find_tokenizer(str(tmp_path))
    assert find_unknown_tokens(files, read_facts(files).added_tokens) == ("<|more|>",)


@pytest.mark.parametrize("is_traced", [False, True])
def test_an_end_of_text_with_tags_of_its_own_is_trained(is_traced):
    made = maker(TAGGED_END_OF_TEXT, SPECIALS)
    if is_traced:
        made.start_tracing()
    turns = chat("A.")["messages"]
    assert trained(made.make({"messages": turns * 2})) == [["A.<|im_end|>", "A.<|im_end|>", "<|endoftext|>"]]
    last = maker(TAGGED_END_OF_TEXT, SPECIALS, train_on="last_assistant")
    assert trained(last.make({"messages": turns * 2})) == [["A.<|im_end|>", "<|endoftext|>"]]
    without_ends = maker(TAGGED_END_OF_TEXT, SPECIALS, train_end_of_turn=False)
    assert "".join(trained(without_ends.make({"messages": turns}))[0]) == "A."


def test_an_end_of_text_with_tags_of_its_own_is_trained_in_plain_chats(tmp_path):
    trained_tokenizer(tmp_path, specials=SPECIALS, chat_template=TAGGED_END_OF_TEXT)
    _, encoded = tokens(batch(*[chat(f"Answer {number}.") for number in range(5)]), str(tmp_path))
    assert [words(str(tmp_path), encoded, row) for row in range(5)] == [
        f"Answer {number}.<|im_end|><|endoftext|>" for number in range(5)
    ]
