r"""A linear classifier over the words and pairs of words of a text, as fastText has it with two classes.

Each word and each pair of neighbours is hashed to one of 2^18 weights. The score is the sigmoid of a bias and the mean
of the weights: the probability that the text is like the good examples. Sums are made in the order of the words, and
scores rounded, so that all machines agree. About 200 MB/s a core; 1 MiB.

The file holds numbers only, so that a third-party file can do no harm:

    gristmill linear model 1\n
    {"bits": 18, "bias": 0.5, "num_good": …, "num_bad": …, "xxh3": …}\n
    2^18 weights of 4 bytes
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT_TYPE
from gristmill.core.seeds import derive_key
from gristmill.runtime.kernels import kernel
from gristmill.text.buffers import get_text_buffers
from gristmill.text.comparison_words import make_character_table
from gristmill.text.shingle_kernels import hash_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAGIC = b"gristmill linear model 1\n"
BITS = 18
_MAX_BITS = 26
_PAIR = np.uint64(0x9E3779B97F4A7C13)
_DIGITS = 4
_MAX_WORDS = 20_000
"""Words after these do not count: a book is judged by its beginning."""


@kernel
def _score_words(words: NDArray[np.uint64], weights: NDArray[np.float32], shift: np.uint64, bias: float) -> float:
    total = 0.0
    for index in range(len(words)):
        total += weights[words[index] >> shift]
        if index + 1 < len(words):
            total += weights[(words[index] * _PAIR + words[index + 1]) >> shift]
    return bias + total / max(2 * len(words) - 1, 1)


@kernel
def _train_on(words: NDArray[np.uint64], weights: NDArray[np.float32], shift: np.uint64, gradient: float) -> None:
    step = np.float32(gradient / max(2 * len(words) - 1, 1))
    for index in range(len(words)):
        weights[words[index] >> shift] += step
        if index + 1 < len(words):
            weights[(words[index] * _PAIR + words[index + 1]) >> shift] += step


class _ModelHead(msgspec.Struct, frozen=True, kw_only=True):
    """The second line of a model file."""

    bits: int
    bias: float
    num_good: int
    num_bad: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class LinearModel:
    """The weights of a classifier."""

    is_probability: ClassVar[bool] = True

    weights: NDArray[np.float32]
    bias: float
    num_good: int
    num_bad: int

    def score(self, texts: pa.Array) -> NDArray[np.float64]:
        """Return for each text the probability that it is like the good examples; 0 for a text without a word."""
        data, offsets = get_text_buffers(texts)
        scores = np.zeros(len(texts))
        shift = _find_shift(self.weights)
        for row in range(len(texts)):
            words = _hash_text(data, int(offsets[row]), int(offsets[row + 1]))
            if len(words):
                value = _score_words(words, self.weights, shift, self.bias)
                scores[row] = round(_sigmoid(value), _DIGITS)
        return scores

    def to_bytes(self) -> bytes:
        """Return the content of the model file."""
        data = self.weights.astype("<f4").tobytes()
        head = _ModelHead(
            bits=len(self.weights).bit_length() - 1,
            bias=self.bias,
            num_good=self.num_good,
            num_bad=self.num_bad,
            xxh3=xxhash.xxh3_64_hexdigest(data),
        )
        return MAGIC + msgspec.json.encode(head) + b"\n" + data


def parse_model(content: bytes, path: str) -> LinearModel:
    """Parse a model file; every number in it is checked.

    Raises:
        UsageError: It is not a model, or damaged.
    """
    if not content.startswith(MAGIC):
        raise UsageError(f"{path} is no linear model of Gristmill", help="gristmill classifier train makes one")
    line, _, data = content[len(MAGIC) :].partition(b"\n")
    try:
        head = msgspec.json.decode(line, type=_ModelHead)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}", help="train it again, or copy it again") from error
    is_whole = 1 <= head.bits <= _MAX_BITS and len(data) == 4 << head.bits
    if not is_whole or xxhash.xxh3_64_hexdigest(data) != head.xxh3 or not math.isfinite(head.bias):
        raise UsageError(f"{path} is damaged: its content is not what its head says", help="copy it again")
    weights = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(weights).all():
        raise UsageError(f"{path} is damaged: it has weights that are no numbers", help="train it again")
    return LinearModel(weights, head.bias, head.num_good, head.num_bad)


def train_model(good: Sequence[str], bad: Sequence[str], *, epochs: int = 10, rate: float = 60.0) -> LinearModel:
    """Train a classifier on two lists of texts. The same texts always give the same model.

    Both classes count equally, however many examples each has.

    >>> model = train_model(["fresh bread", "good bread"], ["cheap watches", "cheap pills"])
    >>> scores = model.score(pa.array(["bread", "pills"], TEXT_TYPE))
    >>> bool(scores[0] > 0.5 > scores[1])
    True
    """
    if not good or not bad:
        raise UsageError("both classes need examples", help="name a file of good texts and one of bad ones")
    data, offsets = get_text_buffers(pa.array([*good, *bad], TEXT_TYPE))
    examples = [_hash_text(data, int(offsets[row]), int(offsets[row + 1])) for row in range(len(offsets) - 1)]
    weights = np.zeros(1 << BITS, np.float32)
    shift = _find_shift(weights)
    bias = 0.0
    class_weights = len(examples) / (2 * len(good)), len(examples) / (2 * len(bad))
    num_steps = epochs * len(examples)
    for epoch in range(epochs):
        order = np.argsort([derive_key(row, f"epoch {epoch}") for row in range(len(examples))], kind="stable")
        for number, row in enumerate(order.tolist()):
            words = examples[row]
            if not len(words):
                continue
            is_good = row < len(good)
            decay = 1 - (epoch * len(examples) + number) / num_steps
            error = is_good - _sigmoid(_score_words(words, weights, shift, bias))
            gradient = rate * decay * error * class_weights[0 if is_good else 1]
            _train_on(words, weights, shift, gradient * len(words) ** 0.5)
            bias += 0.01 * gradient
    return LinearModel(weights, bias, len(good), len(bad))


def _hash_text(data: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.uint64]:
    words = np.empty(min(stop - start, _MAX_WORDS) + 3, np.uint64)
    _, count = hash_words(data, start, stop, make_character_table(), words, 0)
    return words[:count]


def _find_shift(weights: NDArray[np.float32]) -> np.uint64:
    return np.uint64(64 - (len(weights).bit_length() - 1))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-max(min(value, 500.0), -500.0)))
