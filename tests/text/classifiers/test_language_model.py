"""Our reading of the model gives what fastText gives."""

import re

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.shared_data import corpus_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import GristmillError
from gristmill.steps.language import find_letters
from gristmill.text.buffers import get_text_buffers
from gristmill.text.classifiers.language_model import choose_pieces, find_model, load_identifier, load_model

TEXTS = [
    "This is plainly English.",
    "Das ist ein deutscher Satz, nichts weiter.",
    "Ceci n'est pas une pipe.",
    "Это предложение на русском языке.",
    "これは日本語の文章です。",
    "这是一个中文句子。",
    "이것은 한국어 문장입니다.",
    "هذه جملة باللغة العربية.",
    "यह हिंदी में एक वाक्य है।",
    "นี่คือประโยคภาษาไทย",
    "",
    "\x00 \x0b x",
    "< > <b> <s>",  # at a literal </s> fastText would stop reading
]


@pytest.fixture(scope="module")
def fasttext_model():
    return pytest.importorskip("fasttext").load_model(str(find_model()))


def identified(texts):
    labels, scores = load_identifier().identify(*get_text_buffers(pa.array(texts, pa.large_string())))
    return [load_identifier().labels[label] for label in labels], scores


def check(texts, model):
    labels, scores = identified(texts)
    for text, label, score in zip(texts, labels, scores, strict=True):
        [(likely, name), *others] = model.f.predict(text.replace("\n", " ") + "\n", 2, 0.0, "strict")
        assert abs(score - likely) < 1e-3
        if not others or likely - others[0][0] > 1e-3:
            assert label == name.removeprefix("__label__"), text[:100]


def test_languages():
    assert identified(TEXTS[:10])[0] == ["en", "de", "fr", "ru", "ja", "zh", "ko", "ar", "hi", "th"]


def test_as_fasttext_has_it(fasttext_model):
    check(TEXTS, fasttext_model)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), max_size=4))
def test_any_text_as_fasttext_has_it(fasttext_model, texts):
    check(texts, fasttext_model)


@pytest.mark.parametrize("corpus", ["many_languages", "webdev_translations"])
def test_real_documents_as_fasttext_has_them(fasttext_model, corpus):
    check([text[:10_000] for text in corpus_texts(corpus, 60, first=300)], fasttext_model)


@given(st.lists(st.integers(0, 1 << 20), max_size=5))
def test_pieces(sizes):
    offsets = np.cumsum([0, *sizes])
    begins, ends, owners = choose_pieces(offsets)
    assert sorted(set(owners.tolist())) == list(range(len(sizes)))
    for owner, size in enumerate(sizes):
        own = owners == owner
        assert (begins[own] >= offsets[owner]).all()
        assert (ends[own] <= offsets[owner + 1]).all()
        assert (ends - begins)[own].sum() == min(size, 32 << 10)
        assert (begins[own][1:] >= ends[own][:-1]).all()


def sum_slowly(model, text):
    """The number of vectors of a text and the sum of the last column, piece by piece; each word with its own sums."""
    words = {word: row for row, word in enumerate(model.list_words())}
    rows = [words[b"</s>"]]
    for word in re.split(rb"[\0\t-\r ]+", text.encode()):
        rows += [words[word]] if word in words else []
        pieces = f"<{word.decode()}>" if word else ""
        for first in range(len(pieces)):
            for piece in (pieces[first : first + size].encode() for size in (2, 3, 4) if first + size <= len(pieces)):
                hashed = 2166136261
                for byte in piece:
                    hashed = ((hashed ^ (byte | 0xFFFFFF00 if byte >= 128 else byte)) * 16777619) % 2**32
                row = model.bucket_rows[hashed % len(model.bucket_rows)]
                rows += [row] if row >= 0 else []
    return len(rows), np.rint(model.vectors[rows].astype(np.float64) * 2**20).sum(axis=0).astype(np.int64).tolist()


WORDS = st.text(st.sampled_from("aeéяß语ไ\x01`<>'-,.09AZ"), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORDS, st.sampled_from(["", " ", "\n", "\0", "\r\n\t"])), max_size=12))
def test_sums_of_words_are_those_of_their_pieces(model, known_words, parts):
    texts = ["".join(word + gap for word, gap in parts[:count]) for count in range(len(parts) + 1)]
    for known in (known_words, None):  # one that was used before, and a new one
        sums, counts = load_identifier().add_up(*get_text_buffers(pa.array(texts, pa.large_string())), known)
        assert [sum_slowly(model, text) for text in texts] == list(zip(counts.tolist(), sums.tolist(), strict=True))


@pytest.fixture(scope="module")
def model():
    return load_model(find_model())


@pytest.fixture(scope="module")
def known_words():
    return load_identifier().make_known_words()


def test_more_words_than_the_cache_holds(model, known_words):
    texts = [" ".join(f"{number:x}w{number % 7}" for number in range(first, first + 100)) for first in (0, 50)]
    filler = " ".join(f"{number:o}" for number in range(200_000))[:600_000]
    cut = [filler[start : start + 30_000] for start in range(0, len(filler), 30_000)]
    for _ in range(2):
        load_identifier().add_up(*get_text_buffers(pa.array(cut, pa.large_string())), known_words)
        sums, counts = load_identifier().add_up(*get_text_buffers(pa.array(texts, pa.large_string())), known_words)
        assert [sum_slowly(model, text) for text in texts] == list(zip(counts.tolist(), sums.tolist(), strict=True))


def test_letters():
    texts = ["`@[{^_", "a", "Z", "1 2 3", "é", "语", "", None, "\x61"]
    expected = [False, True, True, False, True, True, False, False, True]
    assert find_letters(pa.array(texts, pa.large_string())).tolist() == expected


def test_long_documents():
    english, german = "Some words in English. " * 9000, "Und nun etwas auf Deutsch. " * 30000
    assert identified([english + german])[0] == ["de"]
    assert identified([english])[0] == ["en"]


@pytest.mark.parametrize("content", [b"", b"not a model", bytes(200)])
def test_what_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(GristmillError, match="not a fastText model"):
        load_model(tmp_path / "model")


def test_a_model_that_is_cut_short_is_refused(tmp_path):
    content = find_model().read_bytes()
    (tmp_path / "model").write_bytes(content[: len(content) // 2])
    with pytest.raises(GristmillError, match="not a fastText model"):
        load_model(tmp_path / "model")


def test_words_are_cut_at_every_length_and_separator():
    identifier = load_identifier()
    separators = [bytes([byte]) for byte in (0x20, *range(0x09, 0x0E), 0)]
    words = [(b"q\xc3\xa9w" * 12)[:size] for size in range(1, 41)]
    words += [word[:place] + b"\x1f" + word[place:] for word in words[::5] for place in (0, len(word) // 2, len(word))]

    def add_up(texts):
        offsets = np.cumsum([0, *map(len, texts)])
        sums, counts = identifier.add_up(np.frombuffer(b"".join(texts), np.uint8), offsets)
        return np.column_stack([sums, counts])

    [nothing] = add_up([b""])
    alone = add_up(words)  # too short for several words to be read at once
    expected = nothing + (alone - nothing).sum(axis=0)
    for first in range(len(separators)):
        text = b"".join(word + separators[(first + n) % 7] * (1 + n % 2) for n, word in enumerate(words))
        np.testing.assert_array_equal(add_up([text])[0], expected)
        np.testing.assert_array_equal(add_up([separators[first] * 20 + text])[0], expected)
