"""Words with their places are the words that the kernels hash."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.text.buffers import get_text_buffers
from gristmill.text.comparison_words import cut_spans, find_word_spans, make_character_table
from gristmill.text.shingle_kernels import hash_words


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


PARTS = st.sampled_from(["a", "Word", "long" * 30, "é", "naïve", "你", "7", "."]) | st.text("ab ,\n", max_size=60)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.tuples(PARTS, st.sampled_from([" ", ", ", "", "\n"])), max_size=80),
    room=st.integers(3, 12) | st.integers(60, 400),
)
@example(parts=[("a", " "), ("é", ""), ("Word", " ")], room=3)  # full where ASCII ends
def test_long_texts_are_read_word_by_word_whatever_the_room(parts, room):
    """Long runs of ASCII are read at two places at once; the words and their order must not show it."""
    text = "".join(part + gap for part, gap in parts)
    data, offsets = get_text_buffers(pa.array([text], pa.large_string()))
    alone = {text[start:stop] for start, stop in find_word_spans(text).tolist()}
    hashes = {word: hash_all(word)[0] for word in alone}
    position, hashed, words = 0, [], np.empty(room, np.uint64)
    while position < offsets[1]:
        position, count = hash_words(data, position, int(offsets[1]), make_character_table(), words, 0)
        hashed += words[:count].tolist()
    assert hashed == [hashes[text[start:stop]] for start, stop in find_word_spans(text).tolist()]


@given(
    parts=st.lists(
        st.sampled_from(["5", "30", "月", "b", "ไ", "e\u0301", " ", "\n", ", ", "(", "。", "'"]), max_size=20
    ),
    picks=st.lists(st.tuples(st.integers(0, 19), st.integers(1, 4)), max_size=4),
)
@example(parts=["5", "月", "30", "月", "月", "20", "月"], picks=[(3, 2)])
def test_a_cut_takes_its_words_and_changes_no_other(parts, picks):
    text = "".join(parts)
    spans = find_word_spans(text).tolist()
    runs = [(first, min(first + length, len(spans))) for first, length in picks if first < len(spans)]
    removed = {number for first, stop in runs for number in range(first, stop)}
    cut = cut_spans(text, [(spans[first][0], spans[stop - 1][1]) for first, stop in runs])
    assert hash_all(cut) == [word for number, word in enumerate(hash_all(text)) if number not in removed]


@pytest.mark.parametrize(
    ("text", "cut", "left"),
    [("မြန်မာ", (0, 1), "န်မာ"), ("မြန်မာ", (4, 5), "မြန်"), ("ភាសា", (2, 3), "ភា"), ("ที่นี้", (0, 1), "นี้")],
)
def test_marks_of_a_letter_go_with_it(text, cut, left):
    assert cut_spans(text, [cut]) == left
