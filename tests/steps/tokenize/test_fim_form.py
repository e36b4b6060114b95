"""Documents with cuts to ids: the parts in order, and the middle put back gives the document."""

import json

import pytest
from gristmill_testing.made_tokenizers import made_tokenizer
from gristmill_testing.small_tokenizers import trained
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.core.records import documents
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.steps import Deduplicate, Fim, Map, Pack, Read, Render, Tokenize
from gristmill.steps.tokenize.fim_form import link_fim
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer

SENTINELS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    trained(folder, specials=("<|endoftext|>", *SENTINELS))
    return str(folder)


@pytest.fixture(scope="module")
def world(folder):
    """The linked steps, the engine that encodes plain text, and the ids of the sentinels."""
    fim = Fim(rate=0.7)
    _, tokenize = link_fim([fim, Tokenize(tokenizer=folder)])
    kernel = tokenize.resolve(".").load()
    engine = load_engine(find_tokenizer(folder))
    return fim, kernel, engine, [engine.special_tokens[name] for name in SENTINELS]


def slow(text, cut, engine, sentinels, end):
    """The ids of one document, part by part."""

    def encode(part):
        return engine.encode([part])[0].tolist()

    if not cut:
        return [*encode(text), end]
    begin, stop, is_spm = cut
    prefix, middle, suffix = encode(text[:begin]), encode(text[begin:stop]), encode(text[stop:])
    before_prefix, before_suffix, before_middle = sentinels
    if is_spm:
        return [before_prefix, before_suffix, *suffix, before_middle, *prefix, *middle, end]
    return [before_prefix, *prefix, before_suffix, *suffix, before_middle, *middle, end]


TEXTS = st.lists(
    st.lists(st.sampled_from(["a", "é", "粉", "\n", " ", "def f():", *SENTINELS, "<|endoftext|>"]), max_size=6).map(
        "".join
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, seed=st.integers(0, 3))
def test_the_ids_of_obvious_code_and_the_document_put_back(world, texts, seed):
    fim, kernel, engine, sentinels = world
    cut = fim.apply(documents(texts), seed).batch
    kernel.begin_cell()
    rows = kernel.apply(cut, seed).batch.column("input_ids").to_pylist()
    end = engine.eos_id
    cuts = cut.column("fim").to_pylist()
    assert rows == [slow(text, places, engine, sentinels, end) for text, places in zip(texts, cuts, strict=True)]
    for ids, text, places in zip(rows, texts, cuts, strict=True):
        # What is written in a document is never a special token: each of them is there once.
        assert [ids.count(token) for token in (*sentinels, end)] == ([1, 1, 1, 1] if places else [0, 0, 0, 1])
        if places and not places[2]:
            first, second, third = (ids.index(token) for token in sentinels)
            parts = ids[first + 1 : second], ids[second + 1 : third], ids[third + 1 : -1]
            prefix, suffix, middle = (engine.decode(part) for part in parts)
            assert prefix + middle + suffix == text
        elif places:
            first, third = ids.index(sentinels[1]), ids.index(sentinels[2])
            suffix, rest = engine.decode(ids[first + 1 : third]), engine.decode(ids[third + 1 : -1])
            assert rest + suffix == text


def test_a_tokenizer_that_begins_a_text_with_a_space():
    """As Llama's does: its space is not put into the middle of documents."""
    folder = str(made_tokenizer("made_llama2_like"))
    files = find_tokenizer(folder)
    prefix, suffix, middle, *_ = load_engine(files).special_tokens
    fim = Fim(rate=1.0, spm=0.5, tokens={"prefix": prefix, "suffix": suffix, "middle": middle})
    _, tokenize = link_fim([fim, Tokenize(tokenizer=folder)])
    texts = ["a line\n  and another  one" * number for number in range(1, 30)]
    cut = fim.apply(documents(texts), 0).batch
    rows = tokenize.resolve(".").load().apply(cut, 0).batch.column("input_ids").to_pylist()
    engine = load_engine(files)
    numbers = [engine.special_tokens[name] for name in (prefix, suffix, middle)]
    for ids, text, (begin, _, _) in zip(rows, texts, cut.column("fim").to_pylist(), strict=True):
        first, second, third = (ids.index(number) for number in numbers)
        middle_ids, suffix_ids = ids[third + 1 : -1], ids[second + 1 : third]
        # In the other order the prefix is in front of the middle; where it is empty, nothing begins with the space.
        whole = engine.decode([*ids[first + 1 : second], *middle_ids, *suffix_ids])
        assert whole == (text if begin else text.removeprefix(" "))


def test_a_run_counts_and_does_not_depend_on_workers(tmp_path, folder):
    rows = [{"text": f"def f{n}(x):\n    return x + {n}\n" * (n % 5 + 1)} for n in range(400)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(**options):
        recipe = Recipe(
            sources={"code": Read(read=str(tmp_path / "in.jsonl"))},
            steps=[Fim(), Deduplicate(kind="exact"), Tokenize(tokenizer=folder), Pack(row_length=64)],
            output=str(tmp_path / "out"),
        )
        options = {"backend": "serial", "progress": False, "overwrite": True} | options
        return run_recipe(recipe, RunOptions(**options))

    result = run()
    [account] = [account for account in result.manifest.books["code"] if account.step == "fim"]
    assert 150 < account.counters["psm"] + account.counters["spm"] < 250
    assert result.dataset().verify()
    again = run(backend="processes", workers=2)
    assert again.manifest.dataset_hash == result.manifest.dataset_hash


def test_steps_that_do_not_fit_are_refused(tmp_path, folder):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    tokenize = Tokenize(tokenizer=folder)
    for steps, message in [
        ([Fim()], "tokenize"),
        ([tokenize, Fim()], "tokenize"),
        ([Fim(), Map(call=dict), tokenize], "changes the text"),
        ([Fim(), Tokenize(tokenizer=folder, special_tokens_in_text="token")], "special_tokens_in_text"),
        ([Render(template="chatml"), Fim(), tokenize], "chats"),
        ([Fim(tokens={"prefix": "<a>", "suffix": "<b>", "middle": "<c>"}), tokenize], "no special token"),
    ]:
        recipe = Recipe(sources={"a": Read(read=str(tmp_path / "in.jsonl"))}, steps=steps, output=str(tmp_path / "out"))
        with pytest.raises(UsageError, match=message):
            make_plan(recipe)
