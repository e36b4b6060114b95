"""Scores of an ONNX model: a scikit-learn pipeline over texts, or a transformer over token ids.

A model with one input of strings gets the texts. One with the input `input_ids` gets the ids of the beginning of each
text, in groups of texts of similar length. The score is its number for each text, or the one of a class. The door to
onnxruntime. Scores have 4 digits, so that processors whose sums differ in the last bits agree nearly always.

An ONNX file is a protocol buffer whose tensors may be in other files of any path, which the library would read. Before
it is loaded, a walk through all tensors of the graph, of its subgraphs and functions refuses damaged files and those
that name others. O(number of messages).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from gristmill.core.errors import UsageError, install_command
from gristmill.text.tokenizers.files import TokenizerFiles  # noqa: TC001  (msgspec reads it)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray


_IDS, _MASK, _KINDS = "input_ids", "attention_mask", "token_type_ids"
_PREFERRED_OUTPUTS = ("probabilities", "output_probability", "logits", "scores")
_TEXTS_AT_ONCE = 32
_CHARACTERS_PER_TOKEN = 20
"""A text is cut to this many characters for each token before it is encoded."""
_DIGITS = 4
_TWO_CLASSES = 2
_FEW_DIMENSIONS = 2


class OnnxModel:
    """A loaded ONNX model."""

    is_probability = False

    def __init__(self, content: bytes, options: ScorerOptions) -> None:
        self._options = options
        try:
            check_onnx_file(content)
            self._session = _start_session(content)
        except ValueError as error:
            raise UsageError(f"{options.path} cannot be used: {error}", help="export it again") from error
        self._inputs = {item.name: item.type for item in self._session.get_inputs()}
        self._has_texts = list(self._inputs.values()) == ["tensor(string)"]
        self._rank = len(self._session.get_inputs()[0].shape or []) if self._inputs else 0
        self._encoder = None if self._has_texts else self._load_encoder()
        self._output = self._choose_output()

    def score(self, texts: pa.Array) -> NDArray[np.float64]:
        """Return the score of each text."""
        values = texts.to_pylist()
        scores = np.zeros(len(values))
        ids: list[list[int]] | None = None if self._encoder is None else self._encoder.encode(values)
        sizes = [0] * len(values) if ids is None else [len(row) for row in ids]
        order = np.argsort(sizes, kind="stable")
        for start in range(0, len(values), _TEXTS_AT_ONCE):
            rows = order[start : start + _TEXTS_AT_ONCE].tolist()
            feed = self._feed_texts([values[row] for row in rows]) if ids is None else self._feed_ids(ids, rows)
            scores[rows] = self._read_scores(self._session.run([self._output], feed)[0], len(rows))
        return np.round(scores, _DIGITS)

    def _load_encoder(self) -> _TokenEncoder:
        known = {_IDS, _MASK, _KINDS}
        if _IDS not in self._inputs or not self._inputs.keys() <= known:
            raise UsageError(
                f"{self._options.path} has the inputs {', '.join(self._inputs) or 'none'}",
                help=f"a model needs one input of strings, or {_IDS} (with {_MASK} and {_KINDS})",
            )
        if self._options.tokenizer is None:
            raise UsageError(f"{self._options.path} takes token ids", help="set tokenizer to its tokenizer.json")
        return _TokenEncoder(self._options.tokenizer, self._options.max_tokens)

    def _choose_output(self) -> str:
        names = [item.name for item in self._session.get_outputs() if "float" in item.type or "double" in item.type]
        chosen = next((name for name in _PREFERRED_OUTPUTS if name in names), names[0] if len(names) == 1 else None)
        if chosen is None:
            outputs = ", ".join(f"{item.name} ({item.type})" for item in self._session.get_outputs())
            raise UsageError(
                f"{self._options.path} has the outputs {outputs}",
                help=f"it needs one output of numbers, or one that is called {' or '.join(_PREFERRED_OUTPUTS)}",
            )
        return chosen

    def _feed_texts(self, texts: list[str]) -> dict[str, Any]:
        values = np.array(texts, dtype=object)
        return {next(iter(self._inputs)): values.reshape(-1, 1) if self._rank == _FEW_DIMENSIONS else values}

    def _feed_ids(self, ids: list[list[int]], rows: Sequence[int]) -> dict[str, Any]:
        longest = max(1, *(len(ids[row]) for row in rows))
        table = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for number, row in enumerate(rows):
            table[number, : len(ids[row])] = ids[row]
            mask[number, : len(ids[row])] = 1
        feed = {_IDS: table, _MASK: mask, _KINDS: np.zeros_like(table)}
        return {
            name: feed[name].astype(np.int32 if kind == "tensor(int32)" else np.int64)
            for name, kind in self._inputs.items()
        }

    def _read_scores(self, output: Any, count: int) -> NDArray[np.float64]:
        if isinstance(output, list):  # a probability by class for each text, as skl2onnx writes it
            classes = [str(name) for name in output[0]]
            values = np.array([list(row.values()) for row in output], np.float64)
        else:
            values = np.asarray(output, np.float64)
            if values.size % count or not values.size:
                raise UsageError(
                    f"{self._options.path} does not give one number for each text", help="check its output"
                )
            values = values.reshape(count, -1)
            classes = [str(number) for number in range(values.shape[1])]
        if self._options.activation == "softmax":
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            values = powers / powers.sum(axis=1, keepdims=True)
        elif self._options.activation == "sigmoid":
            values = 1 / (1 + np.exp(-np.clip(values, -500, 500)))
        column = values[:, self._choose_column(classes)]
        if not np.isfinite(column).all():
            raise UsageError(f"{self._options.path} gives scores that are no numbers", help="check the model")
        return column

    def _choose_column(self, classes: list[str]) -> int:
        label = self._options.label
        if label is None and len(classes) <= _TWO_CLASSES:
            return len(classes) - 1
        if label not in classes:
            said = "" if label is None else f', not "{label}"'
            raise UsageError(
                f"{self._options.path} has the classes {', '.join(classes[:20])}{said}",
                help="set label to the class whose number is the score",
            )
        return classes.index(label)


class _TokenEncoder:
    """A tokenizer that gives a model its inputs: special tokens are added, and long texts cut."""

    def __init__(self, files: TokenizerFiles, max_tokens: int) -> None:
        import tokenizers  # noqa: PLC0415

        self._max_characters = max_tokens * _CHARACTERS_PER_TOKEN
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(files.read())
        except ValueError as error:
            raise UsageError(f"{files.path} is not a tokenizer: {error}", help="copy it again") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def encode(self, texts: list[str]) -> list[list[int]]:
        cut = [text[: self._max_characters] for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(cut)]


def _start_session(content: bytes) -> Any:
    try:
        import onnxruntime  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("ONNX models need onnxruntime", help=install_command("onnx")) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    onnxruntime.set_default_logger_severity(4)
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a dozen types of the library, all of them about the file
        note = " (install that locale, or convert it with lowercase=False)" if "locale" in str(error) else ""
        raise ValueError(f"onnxruntime does not load it: {str(error).strip().splitlines()[0]:.300}{note}") from error


_BYTES, _VARINT = 2, 0
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_DEPTH = 64
_MAX_SHIFT = 63
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "training": {1: "graph", 2: "graph"},
    "tensor": {13: "external"},
    "external": {},
}
"""By kind of message: which fields are messages that may hold tensors."""


def check_onnx_file(content: bytes) -> None:
    """Check that a file is an ONNX model with all its tensors inside.

    Raises:
        ValueError: It is not.
    """
    view = memoryview(content)
    if not any(number == 7 for number, _ in _read_fields(view)):
        raise ValueError("it is not an ONNX model")
    _check_message(view, "model", 0)


def _check_message(message: memoryview, kind: str, depth: int) -> None:
    if kind == "external":
        raise ValueError("its numbers are in other files; save it as one file")
    if depth > _MAX_DEPTH:
        raise ValueError("it is damaged: its graphs are nested too deeply")
    for number, value in _read_fields(message):
        child = _FIELDS[kind].get(number)
        if child is not None and value is not None:
            _check_message(value, child, depth + 1)


def _read_fields(message: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yield the number of each field, and its bytes if it has a length."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, position = _read_varint(message, position)
            yield number, None
            continue
        if kind == _BYTES:
            size, position = _read_varint(message, position)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            raise ValueError("it is damaged, or not an ONNX model")
        if size > len(message) - position:
            raise ValueError("it ends too early, or is not an ONNX model")
        yield number, message[position : position + size] if kind == _BYTES else None
        position += size


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift <= _MAX_SHIFT:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("it is damaged, or not an ONNX model")


Activation = Literal["none", "sigmoid", "softmax"]


class ScorerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A model's file, and which of its numbers is the score."""

    path: str
    label: str | None = None
    tokenizer: TokenizerFiles | None = None
    max_tokens: int = 512
    activation: Activation = "none"
