"""The pass over the text: documents of any size, and bytes that are not UTF-8."""

import numpy as np
import pyarrow as pa

from gristmill.text.quality.counting import SCORES, RequiredPasses, StopWords, TextCounter

STOP_WORDS = ["the", "of", "и", "der", "的", "है"]


ALL = TextCounter(RequiredPasses.of(SCORES.values()), StopWords([["nothing"], STOP_WORDS]))


def scores(texts, counting=ALL):
    counts = counting.count(pa.array(texts, pa.large_string()), np.ones(len(texts), np.int64))
    return {name: score.value(counts).tolist() for name, score in SCORES.items()}


def test_an_empty_column():
    assert all(not values for values in scores([]).values())


def test_huge_documents():
    """A line of 60 MB, a million lines of a character, a million words: counted in bounded memory."""
    words = TextCounter(RequiredPasses(lines=True, longest_run=10))
    texts = ["abcdefghi " * 6_000_000, "a\n" * 1_000_000, "中" * 1_500_000]
    counts = words.count(pa.array(texts, pa.large_string()))
    assert counts["words"].tolist() == [6_000_000, 1_000_000, 1_500_000]
    assert counts["lines"].tolist() == [1, 1_000_000, 1]
    assert counts["duplicate_lines"].tolist() == [0, 999_999, 0]
    assert counts["searched_words"].tolist() == [1 << 20, 1_000_000, 1 << 20]
    assert counts["duplicate_10_gram_characters"].tolist() == counts["searched_word_characters"].tolist()
    assert counts["longest_line"].tolist() == [59_999_999, 1, 1_500_000]


def test_bytes_that_are_not_utf_8_do_no_harm():
    """Parquet files may hold such; what is counted is of no interest, only that nothing beyond the text is read."""
    broken = [b"\xff\xfe", b"a\xe4", b"\xf0\x9f", b"\x80\x80 \xc3", b"ok"]
    column = pa.array(broken, pa.large_binary()).view(pa.large_string())
    assert ALL.count(column)["words"][4] == 1
