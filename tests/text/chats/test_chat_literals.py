"""Special tokens that are written into conversations stay text."""

import pytest
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.rendering import SPECIALS, batch, tokens, words
from gristmill_testing.small_tokenizers import trained

from gristmill.text.chats.example_maker import ExampleMaker
from gristmill.text.chats.options import ChatOptions
from gristmill.text.chats.templates import FoundTemplate
from gristmill.text.tokenizers.engine import load_engine
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


def test_a_hundred_thousand_literals_take_no_longer_than_their_text(tokenizer):
    """Was quadratic: 40,000 of them took a minute."""
    record = {"messages": [{"role": "user", "content": END * 20_000}, CHAT[1]]}
    text, encoded = tokens(batch(record), tokenizer, tokenize={"engine": "fastokens"})
    assert text.counters["special_literals"] == 20_000
    assert words(tokenizer, encoded) == "Hello" + END


def test_a_token_that_the_template_takes_out_is_no_reason_to_refuse():
    """As templates do that take thoughts out of answers; what is left around it must not become a token."""
    forgetful = CHATML.replace("m.content", "m.content | replace('<|x|>', '')")
    assert forgetful != CHATML
    found = FoundTemplate(name="test", sources={"default": forgetful}, variables={})
    taken_out = ExampleMaker(found, ChatOptions(), special_tokens={**dict.fromkeys(SPECIALS, 0), "<|x|>": 9})
    for content, left in (("<|x|>4", "4"), ("4<|x|>", "4"), ("4<|x|> or <|x|>5", "4 or 5"), (f"<|x|>{END}", END)):
        [example] = taken_out.make({"messages": [CHAT[0], {"role": "assistant", "content": content}]}).examples
        assert [example.text[start:end] for start, end in example.trained] == [left + END]
    for content in ("<|im<|x|>_end|>", f"<|x|>{END}"):
        [example] = taken_out.make({"messages": [{"role": "user", "content": content}, CHAT[1]]}).examples
        assert [example.text[start:end] for start, end in example.literals] == [END]
        assert example.text.index(END) == example.literals[0][0]
