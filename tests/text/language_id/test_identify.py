"""Our reading of the model gives what fastText gives."""

import numpy as np
import pyarrow as pa
import pytest
from gristmill_testing.shared_data import corpus_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import GristmillError
from gristmill.text.buffers import get_text_buffers
from gristmill.text.language_id import find_model, load_identifier
from gristmill.text.language_id.identify import choose_pieces
from gristmill.text.language_id.model_file import load_model

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
