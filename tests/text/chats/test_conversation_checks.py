"""What a review has broken, once each."""

import json

import pytest
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.rendering import SPECIALS, batch, rendered, tokens
from gristmill_testing.small_tokenizers import changed, trained
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.core.books import Account
from gristmill.core.records import ORIGIN
from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.shapes import NotAChat
from gristmill.text.chats.templates import FoundTemplate, find_template
from gristmill.text.tokenizers.files import find_tokenizer

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


CHANNELS = ("<|channel>", "<channel|>", "<|im_start|>", END)
STRIPS_PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.content is string %}{{ m.content | trim }}"
    "{% else %}{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
STRIPS_THOUGHTS = (
    "{% macro strip(text) %}{% set kept = namespace(text='') %}{% for part in text.split('<channel|>') %}"
    "{% set kept.text = kept.text + (part.split('<|channel>')[0] if '<|channel>' in part else part) %}{% endfor %}"
    "{{ kept.text | trim }}{% endmacro %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{{ strip(m.content) if m.role == 'assistant' else m.content | trim }}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def channel_maker(source):
    found = FoundTemplate(name="test", sources={"default": source}, variables={})
    return ExampleMaker(found, ChatOptions(), special_tokens=dict.fromkeys(CHANNELS, 0))


PIECES_OF_TOKENS = st.sampled_from([*CHANNELS, "<|", "|>", "<", "channel", "<|channel", " ", "\n", "words", "\ufdd4"])


@pytest.mark.parametrize("source", [STRIPS_THOUGHTS, STRIPS_PARTS, CHATML], ids=["thoughts", "parts", "chatml"])
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.lists(PIECES_OF_TOKENS, max_size=8).map("".join), min_size=2, max_size=4))
@example(texts=["Hi", "<|channel>words"])
@example(texts=["Hi", "words<channel|>"])
@example(texts=["Hi", "<|channel>a<channel|>b", "c", "<channel|>d<|channel>"])
def test_pieces_of_control_tokens_are_text_or_refused(source, texts):
    """Each token is that of the template or found as a literal; nothing but a refusal keeps a chat away."""
    messages = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]
    maker = channel_maker(source)
    try:
        made = maker.make({"messages": messages})
    except NotAChat:
        return
    for made_example in made.examples:
        literals = [made_example.text[start:end] for start, end in made_example.literals]
        assert set(literals) <= set(CHANNELS)
        num_roles = made_example.text.count("<|im_start|>user\n") + made_example.text.count("<|im_start|>assistant\n")
        assert made_example.text.count("<|im_start|>") - literals.count("<|im_start|>") <= num_roles


@pytest.mark.parametrize("texts", [[" Hi "], ["Hi\n", " there "], ["  ", "Hi"], [" <|im", "_end|> "]])
def test_space_at_the_edges_of_parts_may_be_stripped(texts):
    parts = [{"type": "text", "text": text} for text in texts]
    [made] = channel_maker(STRIPS_PARTS).make({"messages": [{"role": "user", "content": parts}, CHAT[1]]}).examples
    words = "".join(text.strip() for text in texts)
    assert made.text.startswith(f"<|im_start|>user\n{words}<|im_end|>\n")
    assert [made.text[start:end] for start, end in made.literals] == ([END] if END in words else [])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("m.content", "Hello\nyou"),  # would write the list as code
        ("(m.content if m.content is string else '')", "Hello\nyou"),  # would write nothing, and train the empty answer
        ("(m.content | map(attribute='text') | join)", "Helloyou"),  # reads parts only
        ("(m.content if m.content is string else m.content | map(attribute='text') | join)", "Helloyou"),
    ],
    ids=["writes_anything", "texts_only", "parts_only", "both"],
)
def test_contents_have_the_form_that_the_template_reads(expression, expected):
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ " + expression + " }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    one, two = ([{"type": "text", "text": text} for text in texts] for texts in (["Hi"], ["Hello", "you"]))
    for question in ("Hi", one):
        for answer, words_of_answer in (("Hello", "Hello"), (two, expected)):
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            [made] = maker(source).make({"messages": messages}).examples
            assert spans(made) == [words_of_answer + END]
            assert made.text.startswith("<|im_start|>user\nHi<|im_end|>")


@pytest.mark.parametrize(
    "expression",
    [
        "m.content",  # writes null as "None"
        "m.content | trim",
        "('' if '<' in m.content else m.content)",  # fails with null
        "(m['content'] + '')",  # fails without content
        "(m.content or '')",
    ],
)
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_call_without_content_has_no_words(expression, content):
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ " + expression + " }}"
        "{% for call in m.tool_calls %}{{ call | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    call = {"name": "look_up", "arguments": {"None": 1}}
    messages = [CHAT[0], {"role": "assistant", "tool_calls": [call], **content}]
    [made] = maker(source).make({"messages": messages}).examples
    assert spans(made) == [json.dumps(call) + END]
