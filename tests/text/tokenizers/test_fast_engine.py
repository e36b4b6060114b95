"""Vocabularies with gaps: equal ids, and dummies that no text gives."""

import json

import pytest
from gristmill_testing.shared_data import tokenizer_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.text.tokenizers.choose import compare_engines
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.fast_engine import fill_gaps
from gristmill.text.tokenizers.files import find_tokenizer


def model_of(vocab, **more):
    return json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": [], **more}}).encode()


def test_every_id_up_to_the_largest_is_there_once():
    filled = json.loads(fill_gaps(model_of({"a": 0, "b": 3, "c": 5})))
    vocab = filled["model"]["vocab"]
    assert sorted(vocab.values()) == [0, 1, 2, 3, 4, 5]
    assert {"a": 0, "b": 3, "c": 5}.items() <= vocab.items()


@pytest.mark.parametrize(
    "data",
    [
        model_of({"a": 0, "b": 1}),  # no gap
        model_of({"a": 0, "b": 2**32}),  # would fill the memory
        model_of({"a": -3, "b": 1}),
        model_of({}),
        model_of({"a": 0, "▁b": 2}, ignore_merges=True),  # a text that spells the dummy would get it
        json.dumps({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}).encode(),
    ],
)
def test_what_is_not_filled(data):
    assert fill_gaps(data) is None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.sampled_from("\ue000 0123456789is no token<|>"), max_size=40), max_size=4))
def test_no_text_gives_a_dummy(texts):
    files = find_tokenizer(str(tokenizer_folder("made_gapped")))
    spelled = [token for token in json.loads(fill_gaps(files.read()))["model"]["vocab"] if "\ue000" in token]
    assert spelled
    assert compare_engines(load_engine(files, "fastokens"), load_engine(files), [*texts, *spelled]) is None
