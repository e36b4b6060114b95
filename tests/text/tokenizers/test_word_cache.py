"""The cache of words: ids are those of the reference, whatever is in it and however little it holds."""

import json

import numpy as np
import pytest
from gristmill_testing.made_tokenizers import made_tokenizer
from gristmill_testing.open_texts import OPEN_CORPORA
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, trainers

from gristmill.core.errors import UsageError
from gristmill.text.tokenizers import word_cache
from gristmill.text.tokenizers.choose import compare_engines, make_adversarial_texts
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.fast_engine import FastEngine
from gristmill.text.tokenizers.files import find_tokenizer
from gristmill.text.tokenizers.word_cache import find_word_rules

KINDS = ("made_gemma_like", "made_llama2_like", "made_gemma3_like")
PIECES = st.sampled_from(
    ["a", "the ", " ", "   ", "\n", "\n\n", "\t", "é", "e\u0301", "▁", "中", "文字", "𠀀", "👩\u200d🌾", "<0x41>", "1",
     "2048", "don't", "\x00", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "user", " über ", "x" * 70,
     "<unused99>", "<b>", "<unused", " (", ").", "y" * 1100, "z" * 300]
)  # fmt: skip
TEXTS = st.lists(st.lists(PIECES, max_size=25).map("".join), max_size=4)


def engines(folder, *, specials_as_text=False):
    files = find_tokenizer(str(folder))
    return FastEngine(files, specials_as_text=specials_as_text), load_engine(files, specials_as_text=specials_as_text)


@pytest.fixture(scope="module", params=KINDS)
def pair(request):
    return engines(made_tokenizer(request.param))


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS)
def test_ids_are_those_of_the_reference(pair, texts):
    fast, reference = pair
    assert fast._words is not None
    assert compare_engines(fast, reference, texts) is None


def test_the_library_is_loaded_when_a_text_needs_it():
    fast, reference = engines(made_tokenizer("made_gemma_like"))
    assert compare_engines(fast, reference, ["a few words", "in" * 100]) is None
    assert "_tokenizer" not in vars(fast)
    assert compare_engines(fast, reference, ["in" * 1000]) is None
    assert "_tokenizer" in vars(fast)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("specials_as_text", [False, True])
def test_small_caches_give_the_same_ids(kind, specials_as_text):
    fast, reference = engines(made_tokenizer(kind), specials_as_text=specials_as_text)
    sizes = word_cache.CacheSizes(num_words=40, pool_bytes=1200, chunk_bytes=3000)
    fast._words = word_cache.WordCache(fast._words._rules, fast._words._encode, sizes)
    texts = [text[:300] for make in OPEN_CORPORA.values() for text in make()[:8]]
    texts += [text for text in make_adversarial_texts(reference.special_tokens) if len(text) < 10_000]
    assert compare_engines(fast, reference, texts) is None
    assert compare_engines(fast, reference, texts[::-1]) is None


def test_a_vocabulary_with_marks_inside_of_tokens_is_cut_elsewhere(tmp_path):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    texts = [text[:2000].replace(" ", "▁") for make in OPEN_CORPORA.values() for text in make()[:10]]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=900, show_progress=False))
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    vocab.update((f"<0x{byte:02X}>", len(vocab) + byte) for byte in range(256))
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    assert any("▁" in token.lstrip("▁") for token in vocab)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    fast, reference = engines(tmp_path)
    assert fast._words is not None
    assert compare_engines(fast, reference, [text.replace("▁", " ") for text in texts]) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["added_tokens"][1].update(normalized=True),
        lambda data: data["added_tokens"][1].update(lstrip=True),
        lambda data: data["model"].update(ignore_merges=True),
        lambda data: data["model"].update(byte_fallback=False),
        lambda data: data["model"]["vocab"].pop("<0xE4>"),
        lambda data: data.update(normalizer={"type": "NFC"}),
        lambda data: data.update(pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}),
    ],
    ids=["normalized", "strips", "ignores_merges", "no_bytes", "lacks_a_byte", "nfc", "metaspace"],
)
def test_other_tokenizers_have_no_words(change):
    data = json.loads((made_tokenizer("made_gemma_like") / "tokenizer.json").read_bytes())
    assert find_word_rules(json.dumps(data).encode(), specials_as_text=False) is not None
    change(data)
    assert find_word_rules(json.dumps(data).encode(), specials_as_text=False) is None


def test_a_failure_leaves_no_word_without_its_ids(monkeypatch):
    fast, reference = engines(made_tokenizer("made_llama2_like"))
    encode_words = word_cache.encode_words

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(word_cache, "encode_words", fail)
    with pytest.raises(MemoryError):
        fast.encode(["some words"])
    monkeypatch.setattr(word_cache, "encode_words", encode_words)
    assert compare_engines(fast, reference, ["some words"]) is None
    with pytest.raises((UsageError, UnicodeEncodeError, ValueError)):
        fast.encode(["some \ud800 words"])
    assert np.array_equal(fast.encode(["some words"])[0], reference.encode(["some words"])[0])
