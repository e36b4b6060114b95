"""Scores of ONNX models."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from gristmill.core.errors import UsageError
from gristmill.text.classifiers.onnx_model import ScorerOptions, check_onnx_file
from gristmill.text.classifiers.scorer import TrialLimits, map_file, open_scorer, try_scorer
from gristmill.text.tokenizers.files import find_tokenizer

MODELS = Path(__file__).parent / "models"


def make_options(name, **options):
    return ScorerOptions(path=str(MODELS / name), **options)


def score(texts, options):
    return open_scorer(map_file(options.path), options).score(pa.array(texts, pa.large_string()))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, **{f"w{n}": n for n in range(3, 50)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return find_tokenizer(str(folder))


@pytest.mark.parametrize("name", ["scikit.onnx", "scikit-map.onnx"])
def test_scikit_learn_through_onnx(name):
    pytest.importorskip("onnxruntime")
    recorded = json.loads((MODELS / "scikit.json").read_text())
    label = "good" if "map" in name else "1"
    scores = score(recorded["texts"], make_options(name, label=label))
    np.testing.assert_allclose(scores, recorded["scores"], atol=1e-4)
    assert scores[:10].min() > 0.5 > scores[10:20].max()


def test_a_model_over_token_ids(tokenizer):
    onnxruntime = pytest.importorskip("onnxruntime")
    texts = ["w3 w4 w5", "", "w7 " * 100, "w9 unknown", *[f"w{n}" for n in range(3, 45)]]
    session = onnxruntime.InferenceSession(str(MODELS / "tokens.onnx"))

    def run_alone(text):
        ids = [1, *(int(word[1:]) if word[1:].isdigit() else 0 for word in text.split()[:6]), 2]
        feed = {"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, len(ids)), np.int64)}
        return session.run(["logits"], feed)[0][0]

    logits = np.array([run_alone(text) for text in texts])
    options = {"tokenizer": tokenizer, "max_tokens": 8, "label": "2"}
    np.testing.assert_allclose(score(texts, make_options("tokens.onnx", **options)), logits[:, 2], atol=1e-4)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    soft = make_options("tokens.onnx", activation="softmax", **options)
    np.testing.assert_allclose(score(texts, soft), shares[:, 2], atol=1e-4)
    assert not try_scorer(soft).is_probability


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label": "1"}, "takes token ids"),
        ({"tokenizer": True}, "classes 0, 1, 2"),
        ({"label": "9", "tokenizer": True}, "9"),
    ],
)
def test_missing_options_are_named(tokenizer, options, said):
    pytest.importorskip("onnxruntime")
    if options.get("tokenizer"):
        options = options | {"tokenizer": tokenizer}
    with pytest.raises(UsageError, match=said):
        score(["w3"], make_options("tokens.onnx", **options))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("endless.onnx", "takes too long"),
        ("huge.onnx", "huge.onnx"),
        ("outside.onnx", "other files"),
        ("not_a_number.onnx", "one number for each text"),
    ],
)
def test_hostile_models_end_in_an_error(name, said):
    pytest.importorskip("onnxruntime")
    with pytest.raises(UsageError, match=said):
        try_scorer(make_options(name), TrialLimits(max_bytes=3 << 30, max_seconds=1))


def test_damaged_onnx_files_are_refused():
    content = (MODELS / "scikit.onnx").read_bytes()
    for size in range(0, len(content), 41):
        with pytest.raises((ValueError, UsageError)):
            check_onnx_file(content[:size])
    check_onnx_file(content)
    with pytest.raises(ValueError, match="nested"):
        check_onnx_file(nest_graphs(80))


def nest_graphs(depth):
    graph = b""
    for _ in range(depth):
        attribute = encode(6, graph)
        graph = encode(1, encode(5, attribute))
    return encode(7, graph)


def encode(number, content):
    size = len(content)
    varint = bytearray()
    while size >= 0x80:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    varint.append(size)
    return bytes([number << 3 | 2]) + bytes(varint) + content
