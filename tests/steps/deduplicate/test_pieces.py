"""Pieces of documents."""

import pyarrow as pa

from gristmill.steps.deduplicate.pieces import LINES, hash_pieces


def test_pictures_and_punctuation_are_parts_of_words_in_lines():
    lines = pa.array(["👍👍👍 - 好、好", "👍👍👍👍"], pa.large_string())
    assert hash_pieces(lines, LINES, 4)["row"].tolist() == [0]
    assert hash_pieces(lines, LINES, 1)["row"].tolist() == [0, 1]
