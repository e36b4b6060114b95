"""Where tokens stand by their lengths alone, against the places that the reference gives."""

import functools
import itertools

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.shared_data import corpus_texts, tokenizer_folder
from gristmill_testing.small_tokenizers import changed
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.steps.tokenize.chat_kernel import _is_changed_by
from gristmill.text.tokenizers.byte_lengths import read_byte_lengths, read_token_bytes
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.files import find_tokenizer

NORMALIZING = ("made_qwen_like", "made_command_like")
SENTENCE_PIECE = ("made_gemma_like", "made_llama2_like", "made_gemma3_like")
KINDS = ("made_gpt4_like", "made_gapped", *NORMALIZING, *SENTENCE_PIECE)
# Few characters, so that what has a meaning of its own comes often: marks, spaces, special tokens, unknown letters.
PIECES = st.sampled_from(
    ["a", "the ", " ", "  ", "\n", "\t", "é", "e\u0301", "▁", "▁▁", "中", "𠀀", "👩\u200d🌾", "<0x41>", "1", "don't",
     "\x00", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "™", "<b>", "user", " über ", "\u0344"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=25).map("".join)


@functools.cache
def loaded(name):
    files = find_tokenizer(str(tokenizer_folder(name)))
    return read_byte_lengths(files), load_engine(files, "tokenizers", specials_as_text=False)


def check(name, text):
    """Gives whether the lengths say where the tokens of a text stand; what they say must be right."""
    lengths, reference = loaded(name)
    ids, places = reference.token_spans(text)
    own = lengths.of(ids, np.array([0, len(ids)]))
    assert (own >= 0).all()
    size = len(text.encode())
    if name in SENTENCE_PIECE:
        assert own.sum() <= size
    if own.sum() != size:
        return False
    starts = np.concatenate([[0], np.cumsum(own)])[:-1]
    # The reference gives all tokens of a letter the whole letter; by their lengths each has its own bytes.
    letters = np.cumsum([byte & 0xC0 != 0x80 for byte in text.encode()])
    assert [letters[place] for place in starts] == [letters[place] for place in places[:, 0]], text
    return True


@pytest.mark.parametrize("name", [name for name in KINDS if name not in NORMALIZING])
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
@example(text="<|im_start|>user\nhello  there<|im_end|>\n<|im_start|>assistant\n é<|im_end|>")
@example(text="\n<|im_start|>\n\n<|im_end|>")
def test_places_are_those_of_the_reference(name, text):
    is_placed = check(name, text)
    assert is_placed or "▁" in text


@pytest.mark.parametrize("name", KINDS)
def test_real_texts_are_placed(name):
    for text in corpus_texts("many_languages", 20):
        assert check(name, f"<|im_start|>user\n{text[:2000]}<|im_end|>\n")


def test_texts_one_after_the_other():
    lengths, reference = loaded("made_llama2_like")
    texts = ["one", "<|im_end|>two three", "", "<|im_end|><|im_end|>"]
    ids, offsets = reference.encode(texts)
    own = lengths.of(ids, offsets)
    sizes = [int(own[start:stop].sum()) for start, stop in itertools.pairwise(offsets)]
    assert sizes == [len(text) for text in texts]


def test_texts_that_a_normaliser_changes_are_not_placed_by_length():
    """Two letters shrink by a byte each, one grows by two: the sum of the lengths is right and the places are not."""
    lengths, reference = loaded("made_qwen_like")
    text = "<|im_start|>e\u0301e\u0301 between \u0344<|im_end|>"
    ids, _ = reference.token_spans(text)
    assert lengths.of(ids, np.array([0, len(ids)])).sum() == len(text.encode())
    texts = pa.array([text, "é between", "plain"], pa.large_string())
    assert _is_changed_by(lengths.unicode_form, texts).tolist() == [True, False, False]


def test_kinds_whose_lengths_say_nothing(tmp_path):
    assert read_byte_lengths(find_tokenizer(str(tokenizer_folder("made_word_piece")))) is None

    def with_letters(data):
        data["model"]["vocab"]["ж"] = len(data["model"]["vocab"]) + 10
        data["pre_tokenizer"] = None

    assert read_byte_lengths(changed(tmp_path, with_letters)) is None


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25)
@given(TEXTS.filter(lambda text: "▁" not in text and text.isprintable() and text.isascii()))
def test_the_bytes_of_tokens_make_the_text(name, text):
    """Joined, they are what the reference decodes; marks that stand for nothing are spaces here."""
    contents = _read_contents(name)
    ids = loaded(name)[1].encode([text])[0].tolist()
    joined = b"".join(contents[token] for token in ids).decode()
    decoded = loaded(name)[1].decode(ids)
    assert joined == decoded or (name in SENTENCE_PIECE and joined.replace(" ", "") == decoded.replace(" ", ""))


@functools.cache
def _read_contents(name):
    return read_token_bytes(find_tokenizer(str(tokenizer_folder(name))))
