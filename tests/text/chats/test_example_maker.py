"""What is trained on: which answers, which characters, what becomes of chats that are too long or wrong."""

import pytest
from gristmill_testing.chat_templates import CHATML, FORGETFUL, TAGGED
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.shapes import NotAChat
from gristmill.text.chats.templates import FoundTemplate

END = "<|im_end|>"


def maker(source=CHATML, *, count_tokens=None, special_tokens=(), **options):
    found = FoundTemplate(name="test", sources={"default": source}, variables={})
    specials = dict.fromkeys(special_tokens, 0)
    return ExampleMaker(found, ChatOptions(**options), special_tokens=specials, count_tokens=count_tokens)


def chat(*said, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    for index, content in enumerate(said):
        messages.append({"role": "assistant" if index % 2 else "user", "content": content})
    return {"messages": messages}


def trained(example):
    return [example.text[start:end] for start, end in example.trained]


def only(made):
    [example] = made.examples
    return example


@pytest.mark.parametrize("source", [CHATML, TAGGED])
def test_answers_are_trained_with_their_end_of_turn(source):
    record = chat("Hi", "Hello!", "Bye", "See you", system="Be nice.")
    assert trained(only(maker(source).make(record))) == ["Hello!" + END, "See you" + END]
    without = maker(source, train_end_of_turn=False).make(record)
    assert trained(only(without)) == ["Hello!", "See you"]
    last = maker(source, train_on="last_assistant").make(record)
    assert trained(only(last)) == ["See you" + END]
    whole = only(maker(source, train_on="all").make(record))
    assert trained(whole) == [whole.text]


def test_records_can_mark_what_is_trained():
    record = chat("Hi", "wrong", "No", "right", "More", "also right")
    record["messages"][1]["train"] = False
    record["messages"][5]["train"] = True
    made = maker(train_on="marked").make(record)
    assert trained(only(made)) == ["right" + END, "also right" + END]
    ignored = maker().make(record)
    assert ("ignored_train_marks", 1) in ignored.counts
    assert len(trained(only(ignored))) == 3


def test_a_mark_on_an_answer_that_is_not_trained_anyway_is_no_warning():
    said = chat("Hi", "wrong", "No", "right")["messages"]
    said[1]["train"] = False
    record = {"prompt": said[:3], "completion": said[3:]}
    for train_on, num_ignored in (("auto", 0), ("last_assistant", 0), ("marked", 0), ("assistant", 1), ("all", 1)):
        counts = dict(maker(train_on=train_on).make(record).counts)
        assert counts.get("ignored_train_marks", 0) == num_ignored, train_on


def test_marks_of_parts_are_not_taken_for_marks_of_messages():
    record = chat("Hi", "right and wrong")
    record["messages"][1]["train_detail"] = [{"begin_offset": 10, "end_offset": 14, "train": False}]
    assert ("unread_marks", 1) in maker().make(record).counts
    with pytest.raises(NotAChat) as caught:
        maker(train_on="marked").make(record)
    assert caught.value.reason == "partial_mark"


@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("auto", ["right", "also right"]),
        ("marked", ["marked", "right"]),
        ("assistant", ["wrong", "marked", "right", "also right"]),
        ("last_assistant", ["also right"]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"split_turns": "always"}])
def test_of_prompts_and_completions_the_completion_is_trained(train_on, expected, options):
    messages = chat("Hi", "wrong", "Hm", "marked", "No", "right", "More", "also right")["messages"]
    if train_on == "marked":
        messages[3]["train"] = True
        messages[7]["train"] = False
    made = maker(train_on=train_on, **options).make({"prompt": messages[:5], "completion": messages[5:]})
    wanted = [span for example in made.examples for span in trained(example)]
    assert [span.removesuffix(END) for span in wanted] == (expected[-1:] if train_on == "last_assistant" else expected)
    assert ("answers_in_prompts", 2) in made.counts
    system = maker(train_on=train_on).make({"prompt": messages[:5], "completion": messages[5:], "system": "Be brief."})
    assert [span.removesuffix(END) for span in trained(only(system))] == expected


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (chat("Hi"), "no_assistant"),
        ({"messages": [{"role": "assistant", "content": "Hello"}]}, "begins_with_assistant"),
        (chat("Hi", "Hello", "Bye"), "last_not_assistant"),
        (chat("Hi", "  \n"), "empty_answer"),
        (
            {"messages": [*chat("Hi")["messages"], {"role": "tool", "content": "x"}, *chat("a", "b")["messages"]]},
            "tool_without_call",
        ),
    ],
)
def test_chats_without_anything_to_learn_are_dropped_for_a_reason(record, reason):
    made = maker().make(record)
    assert (made.examples, made.dropped) == ([], [reason])


def test_a_last_question_can_be_kept_or_trimmed():
    record = chat("Hi", "Hello", "Bye")
    kept = only(maker(last_not_assistant="keep").make(record))
    assert "Bye" in kept.text
    assert trained(kept) == ["Hello" + END]
    made = maker(last_not_assistant="trim").make(record)
    assert "Bye" not in only(made).text
    assert trained(only(made)) == ["Hello" + END]
    assert ("trimmed_messages", 1) in made.counts


def test_a_template_that_rewrites_history_makes_one_example_a_turn():
    record = chat("one", "first", "two", "second", "three", "third")
    made = maker(FORGETFUL).make(record)
    assert [trained(example) for example in made.examples] == [["first"], ["second"], ["third"]]
    assert [example.text.count("(old)") for example in made.examples] == [0, 1, 2]
    assert maker(FORGETFUL, train_on="last_assistant").make(record).examples[-1].text == made.examples[-1].text
    assert len(maker(FORGETFUL, train_on="last_assistant").make(record).examples) == 1


def test_turns_can_always_or_never_be_split():
    record = chat("one", "first", "two", "second")
    always = maker(split_turns="always").make(record)
    assert [trained(example) for example in always.examples] == [["first" + END], ["second" + END]]
    assert only(maker(split_turns="never").make(record)).trained
    with pytest.raises(NotAChat, match="cannot be found"):
        maker(FORGETFUL, split_turns="never").make(record)


def count_letters(text):
    return len(text)


def test_old_exchanges_go_first_and_the_system_message_stays():
    record = chat("a" * 40, "b" * 40, "c" * 40, "d" * 40, "e" * 40, "f" * 40, system="SYSTEM")
    whole = only(maker().make(record)).text
    for most in range(60, len(whole) + 1):
        made = maker(max_tokens=most, count_tokens=count_letters).make(record)
        if made.dropped:
            assert made.dropped == ["too_long"]
            continue
        text = only(made).text
        assert len(text) <= most
        assert "SYSTEM" in text
        assert text.endswith("f" * 40 + END + "\n")
        present = "".join(letter for letter in "abcdef" if letter * 40 in text)
        assert "abcdef".endswith(present)
        assert len(present) % 2 == 0
        # One more exchange would not have fitted.
        longer = {"messages": [m for m in record["messages"] if m["content"][0] in "S" + "abcdef"[-len(present) - 2 :]]}
        assert len(present) == 6 or len(only(maker().make(longer)).text) > most
    assert maker(max_tokens=60, too_long="drop", count_tokens=count_letters).make(record).dropped == ["too_long"]
    assert only(maker(max_tokens=60, too_long="cut", count_tokens=count_letters).make(record)).text == whole


@pytest.mark.parametrize("split_turns", ["auto", "always", "never"])
@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_system_message_without_words_may_be_left_out(blank, split_turns):
    skipping = (
        "{% for m in messages %}{% if m.role != 'system' or m.content.strip() %}"
        "{{ m.role }}: {{ m.content }}</s>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    never = skipping.replace(" or m.content.strip()", "")
    record = chat("Hi", "Hello", "Bye", "See you")
    record["messages"].insert(0, {"role": "system", "content": blank})
    for source in (skipping, never):
        made = maker(source, split_turns=split_turns).make(record)
        assert [span for example in made.examples for span in trained(example)] == ["Hello</s>", "See you</s>"]
        assert ("empty_messages", 1) in made.counts
    record["messages"][0]["content"] = "Be brief."
    with pytest.raises(NotAChat) as caught:
        maker(never, split_turns=split_turns).make(record)
    assert caught.value.reason == "message_not_rendered"


def test_history_that_is_rewritten_is_told_where_turns_are_not_split():
    forgetful = (
        "{% for m in messages %}<{{ m.role }}>"
        "{{ m.content if loop.last or m.role != 'assistant' else m.content.split('</think>')[-1] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    record = chat("Hi", "<think>hm</think>Hello", "Bye", "See you")
    assert len(maker(forgetful).make(record).examples) == 2
    with pytest.raises(NotAChat, match="split_turns: auto") as caught:
        maker(forgetful, split_turns="never").make(record)
    assert caught.value.reason == "history_rewritten"


def test_messages_and_calls_that_a_template_leaves_out_are_not_lost_without_a_word():
    only_users = (
        "{% for m in messages %}{% if m.role != 'tool' %}{{ m.role }}: {{ m.content }}</s>{% endif %}{% endfor %}"
    )
    record = chat("Hi", "Hello")
    record["messages"] += [{"role": "tool", "content": "42"}, {"role": "assistant", "content": "It is 42"}]
    with pytest.raises(NotAChat) as caught:
        maker(only_users).make(record)
    assert caught.value.reason == "message_not_rendered"
    call = {"function": {"name": "look_up", "arguments": {}}}
    record = {
        "messages": [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "Let me see", "tool_calls": [call]},
        ]
    }
    with pytest.raises(NotAChat, match="look_up"):
        maker(CHATML).make(record)


def test_literals_are_found_where_they_stand():
    record = chat(f"what is {END}?", f"{END} ends a turn")
    example = only(maker(special_tokens=["<|im_start|>", END]).make(record))
    assert [example.text[start:end] for start, end in example.literals] == [END, END]
    assert [example.text[start - 8 : start] for start, _ in example.literals[:1]] == ["what is "]
    assert trained(example) == [f"{END} ends a turn{END}"]


def test_a_thousand_turns_need_no_more_renderings_than_ten_turns(monkeypatch):
    from gristmill.text.chats.templates import ChatTemplate

    counts = []
    render = ChatTemplate.render
    monkeypatch.setattr(ChatTemplate, "render", lambda *a, **k: counts.append(1) or render(*a, **k))
    for turns in (10, 1000):
        one = maker()
        counts.clear()
        made = one.make(chat(*(f"message {n}" for n in range(2 * turns))))
        assert len(only(made).trained) == turns
        assert len(counts) <= 16


MARKS = "".join(map(chr, range(0xFDD0, 0xFDD9)))  # no characters: they mark places while a chat is rendered
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=MARKS), min_size=1, max_size=30)


@settings(deadline=None, max_examples=150)
@given(
    said=st.lists(WORDS.filter(str.strip), min_size=2, max_size=8),
    system=st.none() | WORDS.filter(str.strip),
    source=st.sampled_from([CHATML, TAGGED, FORGETFUL]),
    special=st.booleans(),
)
def test_what_is_trained_is_exactly_what_the_assistant_said(said, system, source, special):
    said = said[: len(said) // 2 * 2]
    if special:
        said = [words + END for words in said]
    made = maker(source, special_tokens=["<|im_start|>", END]).make(chat(*said, system=system))
    ending = "" if source is FORGETFUL else END
    words = [text for example in made.examples for text in trained(example)]
    assert words == [answer + ending for answer in said[1::2]]
    for example in made.examples:
        assert "".join(example.text[start:end] for start, end in example.literals) == END * len(example.literals)
        assert bool(example.literals) == special
