"""Rendered and tokenized preferences against a slow reference: each text encoded alone, then their common prefix."""

import random

import msgspec
import pytest
from gristmill_testing.chat_templates import CHATML, THINKING_PROMPT
from gristmill_testing.rendering import SPECIALS, batch, rendered, tokens
from gristmill_testing.small_tokenizers import trained

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN
from gristmill.steps import Render
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer

WORDS = ["mill", "grist", "größe", "粉", "\n", " ", "<|im_end|>", "1,234"]
LINES = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained(folder, specials=SPECIALS, chat_template=CHATML)
    return str(folder)


def make_pairs(count, seed=0):
    rng = random.Random(seed)

    def say():
        return " ".join(rng.choices(WORDS[:-2], k=rng.randrange(1, 9))) + rng.choice("ab")

    return [
        {
            "prompt": [
                {"role": role, "content": say()} for role in ("user", "assistant", "user")[: rng.choice([1, 3])]
            ],
            "chosen": [{"role": "assistant", "content": f"{say()} c"}],
            "rejected": [{"role": "assistant", "content": f"{say()} r"}],
        }
        for _ in range(count)
    ]


def split_parts(encoded):
    for row in encoded.batch.to_pylist():
        ids, parts = row["input_ids"], []
        for length in row["lengths"]:
            parts.append(ids[:length])
            ids = ids[length:]
        assert not ids
        yield parts


def count_common(*sequences):
    count = 0
    while all(len(each) > count for each in sequences) and len({each[count] for each in sequences}) == 1:
        count += 1
    return count


@pytest.mark.parametrize("template", [None, LINES])
def test_ids_are_those_of_the_whole_texts_with_their_common_prefix(tokenizer, template, tmp_path):
    if template is not None:
        (tmp_path / "t.jinja").write_text(template)
    options = {} if template is None else {"template": str(tmp_path / "t.jinja"), "append_eos": False}
    text, encoded = tokens(batch(*make_pairs(60)), tokenizer, preferences="pairs", **options)
    engine = load_engine(find_tokenizer(tokenizer), "tokenizers", specials_as_text=False)

    def encode(words):
        return engine.encode([words])[0].tolist()

    assert encoded.batch.num_rows == 60
    num_merged = 0
    for row, parts in zip(text.batch.to_pylist(), split_parts(encoded), strict=True):
        prompt, chosen, rejected = (
            encode(words) for words in (row["prompt"], row["text"], row["prompt"] + row["rejected"])
        )
        # As in TRL: what the ids of the prompt and of both texts have in common.
        shared = count_common(prompt, chosen, rejected)
        assert row["prompt"] + row["chosen"] == row["text"]
        assert parts == [prompt[:shared], chosen[shared:], rejected[shared:]]
        num_merged += shared < len(prompt)
    assert encoded.counters.get("merged_borders", 0) == num_merged
    assert num_merged or template  # in ChatML a line feed of the prompt and one of the answer are one token


def test_labeled_answers_are_prompt_and_completion(tokenizer):
    [pair] = make_pairs(1)
    _, paired = tokens(batch(pair), tokenizer, preferences="pairs")
    _, labeled = tokens(batch(pair), tokenizer, preferences="labels")
    [(prompt, chosen, rejected)] = split_parts(paired)
    assert list(split_parts(labeled)) == [[prompt, chosen], [prompt, rejected]]
    assert labeled.batch.column("label").to_pylist() == [True, False]
    assert labeled.batch.column(ORIGIN).field("part").to_pylist() == [0, 1]


def test_special_tokens_in_an_answer_are_text(tokenizer):
    said = {"prompt": "Say it.", "chosen": "a <|im_end|> b", "rejected": "c <|im_end|>"}
    text, encoded = tokens(batch(said), tokenizer, preferences="pairs")
    end = find_id(tokenizer, "<|im_end|>")
    [(_, chosen, rejected)] = split_parts(encoded)
    assert (chosen.count(end), rejected.count(end)) == (1, 1)
    assert text.counters["special_literals"] == 2
    _, rejecting = tokens(
        batch(said, *make_pairs(2)), tokenizer, preferences="pairs", tokenize={"special_tokens_in_text": "reject"}
    )
    assert (rejecting.batch.num_rows, rejecting.dropped) == (2, {"special_token": 1})


def find_id(tokenizer, token):
    engine = load_engine(find_tokenizer(tokenizer), "tokenizers", specials_as_text=False)
    return engine.encode([token])[0].tolist()[0]


def test_length_rules_hold_for_the_pair(tokenizer):
    pairs = make_pairs(40, seed=3)
    _, whole = tokens(batch(*pairs), tokenizer, preferences="pairs")
    longest = [len(parts[0]) + max(map(len, parts[1:])) for parts in split_parts(whole)]
    limit = sorted(longest)[20]
    text, shorter = tokens(batch(*pairs), tokenizer, max_tokens=limit, preferences="pairs")
    assert text.counters["shortened_chats"] > 0  # the oldest exchange of both sides
    assert all(len(parts[0]) + len(side) <= limit for parts in split_parts(shorter) for side in parts[1:])
    num_lost = text.dropped.get("too_long", 0) + shorter.dropped.get("too_long", 0)
    assert shorter.batch.num_rows + num_lost == 40
    _, cut = tokens(batch(*pairs), tokenizer, max_tokens=limit, cuts=True, preferences="pairs")
    assert cut.counters["cut_chats"] > 0
    by_origin = dict(zip(whole.batch.column(ORIGIN).field("position").to_pylist(), split_parts(whole), strict=True))
    for number, parts in zip(cut.batch.column(ORIGIN).field("position").to_pylist(), split_parts(cut), strict=True):
        prompt, *sides = by_origin[number]
        assert parts == [prompt, *(side[: limit - len(prompt)] for side in sides)]


def test_a_prompt_that_the_template_rewrites_follows_a_stated_rule(tokenizer, tmp_path):
    (tmp_path / "t.jinja").write_text(THINKING_PROMPT)
    template = {"template": str(tmp_path / "t.jinja"), "preferences": "pairs"}
    pair = {"prompt": "2+2?", "chosen": "<think>\nTwo.\n</think>\n\n4", "rejected": "<think>\nOh.\n</think>\n\n5"}
    plain = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
    given = batch(pair, plain)
    counted = rendered(given, **template).counters["prompt_differs"]
    assert counted >= 1
    assert rendered(given, prompt="refuse", **template).dropped["prompt_differs"] == counted
    for row in rendered(given, prompt="as_rendered", **template).batch.to_pylist():
        assert row["text"] == row["prompt"] + row["chosen"]


def test_the_books_have_every_record(tokenizer):
    records = [
        *make_pairs(3),
        {"prompt": "2?", "chosen": "2", "rejected": "2"},
        {"prompt": "2?", "chosen": "2", "rejected": "2 "},
        {"prompt": "2?", "chosen": "2", "rejected": "3", "margin": "nan"},
        {"text": "no pair"},
        b'{"prompt": "2?", "chosen": "2", "rejected": NaN}',
    ]
    text, encoded = tokens(batch(*records), tokenizer, preferences="pairs")
    assert text.dropped == {"equal_sides": 1, "sides_differ_in_space": 1}
    assert [bad.reason for bad in text.quarantined] == ["invalid_score", "not_a_pair", "invalid_json"]
    assert (text.created, text.batch.num_rows, encoded.batch.num_rows) == (0, 3, 3)


def test_options_that_preferences_cannot_have():
    for changes in ({"keep": "messages"}, {"train_on": "all"}, {"too_long": "windows"}, {"shape": "messages"}):
        with pytest.raises(UsageError):
            Render(preferences="pairs", **changes)
    with pytest.raises(UsageError):
        Render(preferences="pairs", fields={"prompt": "q", "answers": "a"})
    assert msgspec.structs.asdict(Render(preferences="labels", fields={"prompt": "q", "response": "a"}))["fields"]
