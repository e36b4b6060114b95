"""Models from elsewhere: ONNX models score as their libraries do; hostile files end in a clear error, in time."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gristmill.core.errors import UsageError
from gristmill.text.classifiers.onnx_model import ScorerOptions
from gristmill.text.classifiers.scorer import find_kind, map_file, open_scorer, try_scorer

MODELS = Path(__file__).parent / "models"


def make_options(name, **options):
    return ScorerOptions(path=str(MODELS / name), **options)


def score(texts, options):
    return open_scorer(map_file(options.path), options).score(pa.array(texts, pa.large_string()))


def test_a_pipeline_that_is_converted_now(tmp_path):
    pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx", reason="the package that converts scikit-learn's models")
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    texts = ["good bread", "bad bread", "good shop", "bad shop", "bread", ""]
    pipeline = make_pipeline(CountVectorizer(lowercase=False, token_pattern=r"[a-z]+"), Ridge()).fit(
        texts, [5, 0, 4, 1, 2.5, 2.5]
    )
    path = tmp_path / "ridge.onnx"
    inputs = [("text", skl2onnx.common.data_types.StringTensorType([None, 1]))]
    path.write_bytes(skl2onnx.to_onnx(pipeline, initial_types=inputs, target_opset=17).SerializeToString())
    np.testing.assert_allclose(score(texts, ScorerOptions(path=str(path))), pipeline.predict(texts), atol=1e-4)


def test_a_fasttext_model_is_tried():
    assert try_scorer(make_options("softmax.ftz", label="hq")).is_probability
    with pytest.raises(UsageError, match="no label"):
        try_scorer(make_options("softmax.ftz", label="none"))


def test_pickles_are_never_loaded(tmp_path):
    class Harm:
        def __reduce__(self):
            return Path.touch, (tmp_path / "harm",)

    for protocol in range(2, 6):
        path = tmp_path / "model.onnx"
        path.write_bytes(pickle.dumps(Harm(), protocol))
        with pytest.raises(UsageError, match="pickle"):
            find_kind(map_file(str(path)), str(path))
    path.write_bytes(b"anything")
    with pytest.raises(UsageError, match="no model"):
        find_kind(map_file(str(path)), str(path))
    assert not (tmp_path / "harm").exists()
