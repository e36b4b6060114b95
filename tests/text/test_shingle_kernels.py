"""Words, shingles and signatures against the slow and obvious way."""

# ruff: noqa: RUF001  (characters that look like others are what is tried)
import random

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.duplicates import column

from gristmill.text.comparison_words import make_character_table
from gristmill.text.minhash import MinHash, ShingleSets


def similarity(sets):
    return sets.compare(np.array([0]), np.array([1]))[0]


def test_long_texts_go_on_from_block_to_block():
    rng = random.Random(1)
    words = [f"{rng.getrandbits(30):x}" for _ in range(5000)]
    for count in (1019, 1020, 1021, 1022, 1023, 1024, 1025, 2040, 2045, 5000):
        text = " ".join(words[:count])
        counts = MinHash(ngram=5).sign(column([text, text + "."])).counts
        assert counts.tolist() == [count - 4] * 2
        assert len(ShingleSets.of(column([text]), 5)[0]) == count - 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello, World! It is me.", "hello world  it\nis ME"),
        ("Crème brûlée is a fine dessert", "Cre\u0300me bru\u0302le\u0301e is a fine dessert"),
        ("ＡＢＣ １２３ is wide, very wide", "abc 123 is wide very wide"),
        ("一二三四五六", "一 二，三。四 五 六"),
        ("for all x in ℝ and 𝐋𝐨𝐮𝐝 words", "for all x in R and loud words"),
    ],
)
def test_what_does_not_count(one, other):
    sets = ShingleSets.of(column([one, other]), 5)
    assert len(sets[0]) > 0
    assert similarity(sets) == 1.0


def test_numbers_count():
    assert similarity(ShingleSets.of(column(["in the year 1984 we met", "in the year 1985 we met"]), 5)) == 0.0


def test_long_words_that_differ_in_few_letters_are_different():
    rng = random.Random(7)
    words = {"aqqqqqqqqb", "cqqqqqqqqc", "a" * 64, "b" * 64}
    digits = [f"{first}{rng.getrandbits(26):08d}"[:9] for first in range(10) for _ in range(2000)]
    words.update(number + last for number in digits for last in "0123456789")
    for alphabet in ("ab", "abcdefghijklmnopqrstuvwxyz", "абвгде", "aбcд"):
        for length in (10, 19, 40):
            base = [rng.choice(alphabet) for _ in range(length)]
            for _ in range(3000):
                word = base[:]
                for place in rng.sample(range(length), rng.randint(1, 3)):
                    word[place] = rng.choice(alphabet)
                words.add("".join(word))
    assert len(words) > 200_000
    assert len(ShingleSets.of(column([" ".join(sorted(words))]), 1)[0]) == len(words)


def test_slices_nulls_and_other_string_types():
    texts = ["zero one two three four five", None, "six seven eight nine ten eleven"]
    whole = MinHash().sign(pa.array(["left out", *texts], pa.string()).slice(1))
    assert whole.counts.tolist() == [2, 0, 2]
    alone = MinHash().sign(column([texts[2]]))
    assert np.array_equal(whole.keys[1], alone.keys[0])
    assert np.array_equal(whole.sketches[1], alone.sketches[0])
    assert MinHash().sign(column([])).keys.shape == (0, 18)


def test_the_order_of_shingles_does_not_count():
    first, second = (" ".join(order) for order in (["a b c d e", "f g h i j"], ["f g h i j", "a b c d e"]))
    signed = MinHash(ngram=1).sign(column([first, second]))
    assert np.array_equal(signed.keys[0], signed.keys[1])


def test_the_table_is_made_of_what_unicode_says():
    table = make_character_table()
    assert table[ord("É")] == table[ord("e")] == ord("e")
    assert table[ord(".")] == table[ord("。")] == table[0] == 0
    assert not table.flags.writeable
