"""Makes the files of `models/`: real models of fastText, scikit-learn and a transformer's shape, and hostile ones.

Run with fasttext-wheel, onnx, skl2onnx and scikit-learn installed; the tests need none of them.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np

MODELS = Path(__file__).parent / "models"
COMMON = [f"c{n}" for n in range(100)]
GOOD, BAD = [*(f"good{n}" for n in range(20)), "schön", "日本"], [f"bad{n}" for n in range(20)]


def make_texts(own, count, seed):
    rng = random.Random(seed)
    return [" ".join(rng.choices(COMMON, k=10) + rng.choices(own, k=6)) for _ in range(count)]


def train_fasttext():
    import fasttext

    lines = [
        f"__label__{label} {text}" for label, own in (("hq", GOOD), ("cc", BAD)) for text in make_texts(own, 200, 1)
    ]
    random.Random(3).shuffle(lines)
    lines += [f"__label__rest {text}" for text in make_texts(COMMON, 40, 2)]
    examples = MODELS / "examples.txt"
    examples.write_text("\n".join(lines) + "\n")
    common = {"dim": 8, "bucket": 300, "epoch": 5, "lr": 0.3, "thread": 1, "verbose": 0}
    kinds = {"softmax": {"wordNgrams": 2}, "ova": {"minn": 2, "maxn": 4}, "hs": {"wordNgrams": 3, "minn": 3, "maxn": 3}}
    for loss, options in kinds.items():
        model = fasttext.train_supervised(str(examples), loss=loss, **common, **options)
        model.save_model(str(MODELS / f"{loss}.bin"))
        if loss != "ova":
            model.quantize(str(examples), cutoff=280, retrain=False, qnorm=True)
            model.save_model(str(MODELS / f"{loss}.ftz"))
    examples.unlink()


def train_scikit():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    pipeline = make_pipeline(TfidfVectorizer(lowercase=False, token_pattern=r"[a-zA-Z0-9]+"), LogisticRegression())
    pipeline.fit(make_texts(GOOD[:20], 60, 1) + make_texts(BAD, 60, 2), ["good"] * 60 + ["bad"] * 60)
    inputs = [("text", StringTensorType([None]))]
    for name, zipmap in (("scikit-map", True), ("scikit", False)):
        model = to_onnx(pipeline, initial_types=inputs, options={"zipmap": zipmap}, target_opset=17)
        (MODELS / f"{name}.onnx").write_bytes(model.SerializeToString())
    texts = make_texts(GOOD[:20], 10, 3) + make_texts(BAD, 10, 4) + ["good1", "", "unknown words"]
    scores = pipeline.predict_proba(texts)[:, 1].tolist()
    (MODELS / "scikit.json").write_text(json.dumps({"texts": texts, "scores": scores}))


def build_onnx():
    from onnx import TensorProto, helper, numpy_helper

    def save(name, nodes, inputs, outputs, initializers=()):
        graph = helper.make_graph(nodes, name, inputs, outputs, list(initializers))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        (MODELS / f"{name}.onnx").write_bytes(model.SerializeToString())

    def tensor(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)

    rng = np.random.default_rng(1)
    embedding = numpy_helper.from_array(rng.normal(size=(50, 4)).astype(np.float32), "embedding")
    head = numpy_helper.from_array(rng.normal(size=(4, 3)).astype(np.float32), "head")
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    last = numpy_helper.from_array(np.array([2], np.int64), "last")
    ids, mask = (tensor(name, TensorProto.INT64, ["n", "t"]) for name in ("input_ids", "attention_mask"))
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "axis"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("MatMul", ["mean", "head"], ["logits"]),
    ]
    save("tokens", nodes, [ids, mask], [tensor("logits", TensorProto.FLOAT, ["n", 3])], [embedding, head, axis, last])

    texts = tensor("text", TensorProto.STRING, ["n"])
    scores = tensor("scores", TensorProto.FLOAT, None)
    # A loop without end, around a body that does nothing.
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["value", "value"], ["doubled"]),
        ],
        "body",
        [
            tensor("turn", TensorProto.INT64, []),
            tensor("go", TensorProto.BOOL, []),
            tensor("value", TensorProto.FLOAT, [1]),
        ],
        [tensor("go_on", TensorProto.BOOL, []), tensor("doubled", TensorProto.FLOAT, [1])],
    )
    yes = numpy_helper.from_array(np.array(True), "yes")
    one = numpy_helper.from_array(np.array([1], np.float32), "one")
    save(
        "endless", [helper.make_node("Loop", ["", "yes", "one"], ["scores"], body=body)], [texts], [scores], [yes, one]
    )
    size = numpy_helper.from_array(np.array([1 << 36], np.int64), "size")
    save("huge", [helper.make_node("ConstantOfShape", ["size"], ["scores"])], [texts], [scores], [size])
    outside = TensorProto(name="outside", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="../../../../etc/passwd")
    save("outside", [helper.make_node("Identity", ["outside"], ["scores"])], [texts], [scores], [outside])
    save("not_a_number", [helper.make_node("Log", ["minus"], ["scores"])], [texts], [scores],
         [numpy_helper.from_array(np.array([-1.0], np.float32), "minus")])  # fmt: skip


if __name__ == "__main__":
    MODELS.mkdir(exist_ok=True)
    for make in (train_fasttext, train_scikit, build_onnx):
        if len(sys.argv) == 1 or make.__name__ in sys.argv:
            make()
