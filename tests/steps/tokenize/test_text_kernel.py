"""Texts to ids in a worker: the ids of the reference, and what cannot be encoded is set aside."""

import itertools

import numpy as np
import pytest
from gristmill_testing.small_tokenizers import SENTENCES, changed, trained
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.records import INPUT_IDS, ORIGIN, documents
from gristmill.steps import Tokenize
from gristmill.text.tokenizers.engine import load_engine
from gristmill.text.tokenizers.special_tokens import add_end_tokens

EOS = "<|endoftext|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizers")
    trained(path / "mine")
    trained(path / "two", eos_token=EOS, bos_token="<|pad|>")
    return path


@pytest.fixture
def step(folder):
    """A resolved step; the engine is fast unless said otherwise."""

    def make(tokenizer="mine", **parameters):
        return Tokenize(tokenizer=tokenizer, **parameters).resolve(str(folder))

    return make


def ids_of(applied):
    return applied.batch.column(INPUT_IDS).to_pylist()


def test_ids_of_the_reference_and_an_end(step):
    texts = [*SENTENCES, "", "x"]
    made = step()
    applied = made.load().apply(documents(texts), 0)
    ids, offsets = load_engine(made.files).encode(texts)
    expected = [[*ids[a:b].tolist(), 0] for a, b in itertools.pairwise(offsets)]
    assert ids_of(applied) == expected
    assert applied.counters == {
        "tokens": sum(map(len, expected)),
        "bytes": sum(len(text.encode()) for text in texts),
        "special_literals": 0,
        "parity_checked": 0,
    }
    assert applied.batch.column(ORIGIN).equals(documents(texts).column(ORIGIN))


def test_ends_are_never_doubled(step):
    texts = ["a", f"a{EOS}", EOS, "", f"{EOS}a", f"<|pad|>a{EOS}"]
    both = {"tokenizer": "two", "special_tokens_in_text": "token", "add_bos": True}
    [a] = load_engine(step().files).encode(["a"])[0].tolist()
    assert ids_of(step(**both).apply(documents(texts), 0)) == [
        [1, a, 0],
        [1, a, 0],
        [1, 0],
        [1, 0],
        [1, 0, a, 0],
        [1, a, 0],
    ]
    assert ids_of(step(**both, add_eos=False).apply(documents(texts), 0))[1] == [1, a, 0]
    neither = ids_of(step(add_eos=False).apply(documents(["a", ""]), 0))
    assert neither == [[a], []]


@settings(deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=8),
    begin=st.one_of(st.none(), st.integers(0, 4)),
    end=st.one_of(st.none(), st.integers(0, 4)),
)
def test_with_ends_is_the_plain_loop(documents, begin, end):
    ids = np.array([number for document in documents for number in document], dtype=np.uint32)
    offsets = np.cumsum([0, *map(len, documents)])
    found, new_offsets = add_end_tokens(ids, offsets, np.uint16, begin=begin, end=end)
    expected = []
    for document in documents:
        first = [begin] if begin is not None and document[:1] != [begin] else []
        if not document and begin == end:  # a token that is both is needed once
            first = []
        last = [end] if end is not None and document[-1:] != [end] else []
        expected.append([*first, *document, *last])
    assert [found[a:b].tolist() for a, b in itertools.pairwise(new_offsets)] == expected
    assert found.dtype == np.uint16


def test_a_text_that_no_engine_can_encode_is_quarantined(tmp_path):
    def split_at_backtracking(data):
        pattern = {"Regex": "(a+)+$"}
        data["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}

    trained(tmp_path / "mine")
    changed(tmp_path / "mine", split_at_backtracking)
    resolved = Tokenize(tokenizer="mine", add_eos=False).resolve(str(tmp_path))
    result = resolved.load().apply(documents(["one", "a" * 40 + "b", "two", "three"]), 1)
    assert [record.reason for record in result.quarantined] == ["not_encoded"]
    assert result.batch.num_rows == 3
    assert result.quarantined[0].raw == b"a" * 40 + b"b"
