"""The linear classifier: it learns, it is the same every time, and its file is checked."""

import random

import numpy as np
import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.text.classifiers.linear_model import MAGIC, parse_model, train_model

COMMON = [f"c{n}" for n in range(200)]
GOOD, BAD = [f"g{n}" for n in range(60)], [f"b{n}" for n in range(60)]


def make_texts(own, count, seed):
    rng = random.Random(seed)
    return [" ".join(rng.choices(COMMON, k=20) + rng.choices(own, k=10)) for _ in range(count)]


@pytest.fixture(scope="module")
def model():
    return train_model(make_texts(GOOD, 300, 1), make_texts(BAD, 150, 2))


def score(model, texts):
    return model.score(pa.array(texts, pa.large_string()))


def test_new_texts_are_told_apart(model):
    assert np.mean(score(model, make_texts(GOOD, 200, 3)) > 0.5) > 0.95
    assert np.mean(score(model, make_texts(BAD, 200, 4)) < 0.5) > 0.95


def test_the_order_of_words_counts():
    pairs = train_model(["one two"] * 20, ["two one"] * 20)
    assert score(pairs, ["one two"])[0] > score(pairs, ["two one"])[0]


def test_the_same_texts_give_the_same_file(model):
    again = train_model(make_texts(GOOD, 300, 1), make_texts(BAD, 150, 2))
    assert again.to_bytes() == model.to_bytes()


def test_the_file_gives_the_same_scores(model):
    texts = [*make_texts(GOOD, 20, 5), "", "unknown words only", "你好"]
    loaded = parse_model(model.to_bytes(), "a.model")
    assert score(loaded, texts).tolist() == score(model, texts).tolist()
    assert score(model, [""])[0] == 0


def test_scores_do_not_depend_on_the_batch(model):
    texts = make_texts(GOOD, 10, 6)
    assert score(model, texts).tolist() == [score(model, [text])[0] for text in texts]


def test_damaged_files_are_refused(model):
    content = model.to_bytes()
    nan = np.full(1 << 18, np.nan, "<f4").tobytes()
    for damaged in [
        b"",
        b"pickle",
        content[:-1],
        MAGIC + b"{}\n",
        MAGIC + b"not json\n",
        content[:-4] + b"\0\0\0\1",
        MAGIC + nan,
    ]:
        with pytest.raises(UsageError, match=r"a\.model"):
            parse_model(damaged, "a.model")


def test_both_classes_are_needed():
    with pytest.raises(UsageError, match="both classes"):
        train_model(["a"], [])
