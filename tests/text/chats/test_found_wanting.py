"""What a review has broken, once each."""

import json

import pytest
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.rendering import SPECIALS, batch, rendered, tokens, words
from gristmill_testing.small_tokenizers import changed, trained

from gristmill.core.books import Account
from gristmill.core.records import ORIGIN
from gristmill.text.chats import ChatOptions, ExampleMaker, FoundTemplate, NotAChat
from gristmill.text.chats.find_template import find_template
from gristmill.text.tokenizers import find_tokenizer, load_engine

END = "<|im_end|>"
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained(folder, specials=SPECIALS, chat_template=CHATML)
    return str(folder)


def maker(source=CHATML, **options):
    found = FoundTemplate(name="test", sources={"default": source}, variables={})
    return ExampleMaker(found, ChatOptions(**options), special_tokens=dict.fromkeys(SPECIALS, 0))


def spans(example):
    return [example.text[start:end] for start, end in example.trained]


def test_a_chat_of_which_no_turn_is_wanted_is_dropped_and_books_do_not_count_below_nothing():
    record = {"messages": [CHAT[0], {**CHAT[1], "train": False}]}
    made = maker(train_on="marked", split_turns="always").make(record)
    assert made.dropped == ["nothing_to_train_on"]
    assert not Account("render", records_in=1, created=-1).is_balanced


@pytest.mark.parametrize(
    "content",
    [
        '"x <\\/s> y"',
        '"x \\u003c/s> y"',
        '[{"type": "text", "text": "x </"}, {"type": "text", "text": "s> y"}]',
        '[{"type":"text","text":"x <"},{"type":"text","text":"/s"},{"type":"text","text":"> y"}]',
    ],
)
def test_no_way_of_writing_a_special_token_makes_it_one(tmp_path, content):
    parts = CHATML.replace(
        "m.content +", "(m.content if m.content is string else m.content | map(attribute='text') | join) +"
    )
    trained(tmp_path, specials=(*SPECIALS, "</s>"), chat_template=parts)
    line = f'{{"messages": [{{"role": "user", "content": {content}}}, {{"role": "assistant", "content": "a"}}]}}'
    text, encoded = tokens(batch(line.encode()), str(tmp_path))
    assert text.counters["special_literals"] == 1
    special = load_engine(find_tokenizer(str(tmp_path)), "tokenizers").special_tokens["</s>"]
    assert special not in encoded.batch.column("input_ids")[0].as_py()


def test_names_in_definitions_of_tools_are_text(tokenizer):
    source = "{{ tools | tojson }}" + CHATML
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {f"a{END}": {}}}}}]
    made = maker(source).make({"messages": CHAT, "tools": tools})
    [example] = made.examples
    assert [example.text[start:end] for start, end in example.literals] == [END]


@pytest.mark.parametrize("tags", [("", ""), ("{% generation %}", "{% endgeneration %}")], ids=["plain", "tagged"])
def test_reasoning_within_content_that_history_loses_splits_the_turns(tags):
    begin, end = tags
    source = (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}"
        + begin
        + "{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
        + end
        + "{% else %}{{ m.content }}{% endif %}<|im_end|>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    said = ["q1", "<think>r1</think>a1", "q2", "<think>r2</think>a2"]
    record = {"messages": [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(said)]}
    examples = maker(source).make(record).examples
    assert [spans(example) for example in examples] == [[said[1] + END], [said[3] + END]]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": CHAT, "chat_template_kwargs": {"self": 1}}, None),
        ({"messages": "[" * 5000}, "invalid_messages"),
        ({"messages": CHAT, "tools": "[" * 5000}, "invalid_tools"),
        ({"messages": json.dumps([CHAT[0], {"role": "assistant", "content": "x" * 99 + "\ud800"}])}, "lone_surrogate"),
    ],
)
def test_one_odd_record_is_one_record(tokenizer, record, reason):
    text, encoded = tokens(batch({"messages": CHAT}, record), tokenizer, max_tokens=50)
    assert [bad.reason for bad in text.quarantined] == ([reason] if reason else [])
    assert encoded.batch.num_rows == (1 if reason else 2)


def test_whatever_a_record_breaks_is_set_aside(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr(ExampleMaker, "make", broken)
    applied = rendered(batch({"messages": CHAT}), template="chatml")
    assert [bad.reason for bad in applied.quarantined] == ["exception"]
    assert "nobody thought of it" in applied.quarantined[0].message


def test_what_is_shortened_keeps_an_answer_and_what_the_system_says():
    messages = [
        {"role": "user", "content": "context"},
        {"role": "user", "content": "q1 " * 20},
        {"role": "assistant", "content": "a1 " * 20},
        {"role": "system", "content": "from now on"},
        {"role": "user", "content": "context 2"},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "content": "a2"},
        {"role": "user", "content": "q3"},
    ]
    found = FoundTemplate(name="test", sources={"default": CHATML}, variables={})
    options = ChatOptions(last_not_assistant="keep", train_on="last_assistant", max_tokens=250)
    made = ExampleMaker(found, options, count_tokens=len).make({"messages": messages})
    [example] = made.examples
    for kept in ("from now on", "context 2", "q2", "a2", "q3"):
        assert kept in example.text
    assert "q1" not in example.text
    assert spans(example) == ["a2" + END]
    options = ChatOptions(last_not_assistant="keep", train_on="last_assistant", max_tokens=60)
    assert ExampleMaker(found, options, count_tokens=len).make({"messages": messages}).dropped == ["too_long"]


def test_a_hundred_thousand_literals_take_no_longer_than_their_text(tokenizer):
    """Was quadratic: 40,000 of them took a minute."""
    record = {"messages": [{"role": "user", "content": END * 20_000}, CHAT[1]]}
    text, encoded = tokens(batch(record), tokenizer, tokenize={"engine": "fastokens"})
    assert text.counters["special_literals"] == 20_000
    assert words(tokenizer, encoded) == "Hello" + END


def test_special_tokens_that_take_space_along_do_so_beside_literals(tmp_path):
    def strips(data):
        for token in data["added_tokens"]:
            token["rstrip"] = True

    changed(tmp_path / "t", strips)
    source = (
        "{% for m in messages %}<|pad|>\n{{ m.content }}<|endoftext|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|pad|>\n{% endif %}"
    )
    (tmp_path / "t" / "chat_template.jinja").write_text(source)
    plain = {"messages": [{"role": "user", "content": "corn"}, {"role": "assistant", "content": "flour"}]}
    sly = {"messages": [{"role": "user", "content": "corn <|pad|>"}, {"role": "assistant", "content": "flour"}]}
    _, encoded = tokens(batch(plain, sly), str(tmp_path / "t"), tokenize={"engine": "tokenizers"})
    one, other = encoded.batch.column("input_ids").to_pylist()
    assert other[:2] == one[:2]
    assert other[-4:] == one[-4:]


def test_tokens_that_only_the_old_file_names_are_known(tmp_path):
    trained(tmp_path, specials=(*SPECIALS, "<s>"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": END}))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}" + CHATML)
    assert find_template(None, find_tokenizer(str(tmp_path))).variables == {"bos_token": "<s>", "eos_token": END}


def test_calls_are_looked_for_in_the_answer_that_makes_them():
    call = {"function": {"name": "search", "arguments": {}}}
    record = {
        "messages": [
            {"role": "user", "content": "search!"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
    }
    source = CHATML.replace("m.content +", "(m.content or '') +")
    with pytest.raises(NotAChat, match="search"):
        maker(source).make(record)


def test_tags_belong_to_the_message_that_they_are_in():
    source = (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and m.thinking %}"
        "{% generation %}({{ m.thinking }}){% endgeneration %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    messages = [*CHAT, {"role": "user", "content": "why?"}, {"role": "assistant", "content": "so", "thinking": "hm"}]
    [example] = maker(source, train_on="last_assistant").make({"messages": messages}).examples
    assert "".join(spans(example)) == "(hm)so" + END


def test_what_a_template_leaves_out_of_split_turns_is_not_lost_either():
    source = "{% for m in messages %}{% if m.role != 'tool' %}{{ m.role }}: {{ m.content }}</s>{% endif %}{% endfor %}"
    messages = [*CHAT, {"role": "tool", "content": "42"}, {"role": "assistant", "content": "so"}]
    with pytest.raises(NotAChat) as caught:
        maker(source, split_turns="always").make({"messages": messages})
    assert caught.value.reason == "message_not_rendered"


def test_reasoning_that_a_template_leaves_out_is_told():
    made = maker().make({"messages": [CHAT[0], {**CHAT[1], "thinking": "be nice"}]})
    assert ("reasoning_left_out", 1) in made.counts


def test_origin_of_examples(tokenizer):
    assert rendered(batch({"messages": CHAT}), template="chatml").batch.column(ORIGIN).field("part").to_pylist() == [0]
