"""Special tokens in texts, counted."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.texts import Texts
from gristmill.text.tokenizers import SpecialLiterals

PIECES = ["<s>", "</s>", "<|a|>", "<|a|>b", "<", "s", "|", "x", "é", "\n", " ", "<1", "2", ">", "٣"]


def counted(tokens, text):
    """Leftmost, then longest: as a tokenizer takes them."""
    count = place = 0
    while place < len(text):
        found = max((token for token in tokens if text.startswith(token, place)), key=len, default="")
        count += bool(found)
        place += len(found) or 1
    return count


@pytest.mark.parametrize(
    "tokens",
    [
        ["<s>", "</s>", "<|a|>", "<|a|>b", "<| é|>"],
        ["<1>", "<12>", "<1>2", "2", "<s>"],
        ["<1>"],
        ["<s>", "x", "é", "2", "s", "|a"],
    ],
)
@settings(deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=6))
def test_count_is_that_of_a_plain_scan(tokens, texts):
    found = SpecialLiterals(tokens).count(pa.array(texts, pa.large_string()))
    assert found.tolist() == [counted(tokens, text) for text in texts]
    assert SpecialLiterals(tokens).count_in(Texts(texts)).tolist() == found.tolist()
    assert SpecialLiterals(tokens).count_in(Texts(pa.array(texts, pa.large_string()))).tolist() == found.tolist()


@pytest.mark.parametrize(
    "token", ["[I]", "<|a b|>", "a.*", "\\Q", "<|é中|>", "\t", "{1}", "^$", "<\n>", "\uff08\uff09"]
)
def test_no_character_is_taken_for_a_pattern(token):
    texts = pa.array([f"x{token}{token}y", "plain", token[:-1]], pa.large_string())
    assert SpecialLiterals([token]).count(texts).tolist() == [2, 0, 0]


def test_many_special_tokens():
    tokens = [f"<|reserved_special_token_{number}|>" for number in range(5000)]
    texts = pa.array([tokens[0] + tokens[4999], "none"], pa.large_string())
    assert SpecialLiterals(tokens).count(texts).tolist() == [2, 0]


def test_no_special_tokens():
    assert SpecialLiterals([]).count_in(Texts(["a", ""])).tolist() == [0, 0]
    assert SpecialLiterals([]).count(pa.array(["a", ""], pa.large_string())).tolist() == [0, 0]
    assert SpecialLiterals([""]).count(pa.array(["a", ""], pa.large_string())).tolist() == [0, 0]
