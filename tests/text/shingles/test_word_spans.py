"""Words with their places are the words that the kernels hash."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gristmill.text.buffers import get_text_buffers
from gristmill.text.shingles.character_table import make_character_table
from gristmill.text.shingles.kernels import hash_words
from gristmill.text.shingles.word_spans import find_word_spans


def hash_all(text):
    data, offsets = get_text_buffers(pa.array([text], pa.large_string()))
    words = np.empty(len(text.encode()) + 3, np.uint64)
    _, count = hash_words(data, 0, int(offsets[1]), make_character_table(), words, 0)
    return words[:count].tolist()


@given(
    st.text(
        st.characters(exclude_categories=["Cs"]) | st.sampled_from("aé 你ไ.\u0301\U0001d4b3😀\U00020000\U000e0100"),
        max_size=30,
    )
)
def test_the_same_words_as_the_kernels(text):
    spans = find_word_spans(text).tolist()
    assert [hash_all(text[start:stop])[0] for start, stop in spans] == hash_all(text)
    assert all(len(hash_all(text[start:stop])) == 1 for start, stop in spans)
