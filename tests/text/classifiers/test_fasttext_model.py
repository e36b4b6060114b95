"""fastText models: the numbers of the library itself, for every kind of model, and clear errors for damaged files."""

import random
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.text.classifiers.fasttext_model import open_fasttext

fasttext = pytest.importorskip("fasttext")

MODELS = Path(__file__).parent / "models"
KINDS = ["softmax.bin", "softmax.ftz", "ova.bin", "hs.bin", "hs.ftz"]
WORDS = [*(f"c{n}" for n in range(40)), *(f"good{n}" for n in range(20)), *(f"bad{n}" for n in range(20))]
ODD = [
    "schön",
    "日本",
    "<",
    ">",
    "a",
    "__label__x",
    "__label__hq",
    "unknown",
    "Ünbekannt",
    "x" * 200,
    "</s>",
    "é\u0301",
]


def read(name):
    return np.frombuffer((MODELS / name).read_bytes(), np.uint8)


def score(content, texts, label="hq"):
    return open_fasttext(content, "m.bin", label).score(pa.array(texts, pa.large_string()))


def score_with_library(path, texts, label="hq"):
    model = fasttext.load_model(str(path))
    scores = [{name: share for share, name in model.f.predict(text + "\n", -1, 0.0, "strict")} for text in texts]
    return [min(row.get(f"__label__{label}", 0.0), 1.0) for row in scores]


def make_texts():
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS + ODD[:-2], k=rng.randrange(40))) for _ in range(60)]
    return [*texts, "", "  ", " ".join(ODD), "a\tb\x0bc\x00d\re", "good1  good2 "]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("label", ["hq", "rest"])
def test_scores_are_those_of_the_library(name, label):
    texts = make_texts()
    expected = score_with_library(MODELS / name, texts, label)
    np.testing.assert_allclose(score(read(name), texts, label), expected, atol=2e-6)
    assert label != "hq" or max(expected) - min(expected) > 0.1


def write_model(rng, *, loss, word_ngrams, min_piece, max_piece, bucket, words, labels, dimensions):
    """Write a model of random numbers in fastText's format."""
    words = ["</s>", *words]
    head = struct.pack("<ii12id", 793712314, 12, dimensions, 5, 1, 1, 5, word_ngrams, loss, 3, bucket, min_piece,
                       max_piece, 100, 0.0)  # fmt: skip
    sizes = struct.pack("<iiiqq", len(words) + len(labels), len(words), len(labels), 100, -1)
    entries = b"".join(
        entry.encode() + b"\0" + struct.pack("<qb", 100 - number, kind)
        for kind, names in ((0, words), (1, [f"__label__{label}" for label in labels]))
        for number, entry in enumerate(names)
    )
    matrices = b""
    for rows in (len(words) + bucket, len(labels)):
        values = rng.normal(size=(rows, dimensions)).astype("<f4")
        matrices += b"\0" + struct.pack("<qq", rows, dimensions) + values.tobytes()
    return head + sizes + entries + matrices


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(0, 3),
    st.lists(st.sampled_from([*WORDS, *ODD[:5], "schön"]), unique=True, min_size=1, max_size=20),
    st.lists(st.text(st.sampled_from("abcé日<> \t"), max_size=30), min_size=1, max_size=4),
    st.integers(2, 5),
)
def test_any_model_scores_any_text_as_the_library_does(tmp_path_factory, loss, ngrams, low, more, words, texts, labels):
    rng = np.random.default_rng(len(words))
    names = [f"l{number}" for number in range(labels)]
    content = write_model(
        rng, loss=loss, word_ngrams=ngrams, min_piece=low, max_piece=low + more if low else 0, bucket=37, words=words,
        labels=names, dimensions=5,
    )  # fmt: skip
    path = tmp_path_factory.getbasetemp() / "random.bin"
    path.write_bytes(content)
    texts = [*texts, " ".join(words)]
    np.testing.assert_allclose(
        score(np.frombuffer(content, np.uint8), texts, "l1"), score_with_library(path, texts, "l1"), atol=3e-6
    )


def test_line_feeds_are_spaces_and_neighbours_do_not_matter():
    texts = ["good1\ngood2\r\nc3", "good1 good2  c3"]
    scores = score(read("softmax.bin"), texts)
    assert scores[0] == scores[1]
    assert scores[0] == score(read("softmax.bin"), ["bad1", texts[0]])[1]


def test_labels_are_named():
    with pytest.raises(UsageError, match="rest"):
        score(read("softmax.bin"), [""], None)
    with pytest.raises(UsageError, match='no label "hg"') as raised:
        score(read("softmax.bin"), [""], "hg")
    assert "hq" in raised.value.help
    assert score(read("softmax.bin"), ["good1"], "__label__hq") == score(read("softmax.bin"), ["good1"])
