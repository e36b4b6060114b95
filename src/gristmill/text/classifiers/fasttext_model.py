"""Scores of a supervised fastText model, with the numbers of fastText itself.

The vectors of all known words, pieces of words and runs of words are averaged; the mean times the vectors of the labels
gives their probabilities. Line feeds count as spaces, as in the pipelines that publish such models: a document is one
line. fastText adds 0.00001 to every probability, and so does this, so that a published threshold keeps the same
documents. The sums have 64 bits, and scores 6 digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.runtime.kernels import kernel
from gristmill.text.buffers import get_text_buffers
from gristmill.text.classifiers.fasttext_file import (
    END_OF_LINE,
    HIERARCHICAL_SOFTMAX,
    LABEL_PREFIX,
    SOFTMAX,
    parse_fasttext,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.text.classifiers.fasttext_file import FastTextFile

_SMALL = 1e-5
_DIGITS = 6
_SIGMOID_STEPS, _SIGMOID_LIMIT = 512, 8
_MAX_NAMED = 10


@kernel
def _hash_bytes(data: NDArray[np.uint8], start: int, end: int) -> np.uint32:
    hashed = np.uint32(2166136261)
    for position in range(start, end):
        # fastText hashes signed bytes: those from 0x80 on flip the upper bits, too.
        hashed = np.uint32((hashed ^ np.uint32(np.int8(data[position]))) * np.uint32(16777619))
    return hashed


@kernel
def _find_word(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    hashed: np.uint32,
    content: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    table: NDArray[np.int32],
) -> int:
    """Return the row of a word, or -1."""
    slot = np.int64(hashed) & (len(table) - 1)
    while table[slot] >= 0:
        row = table[slot]
        if ends[row] - starts[row] == end - start:
            offset = 0
            while offset < end - start and data[start + offset] == content[starts[row] + offset]:
                offset += 1
            if offset == end - start:
                return int(row)
        slot = (slot + 1) & (len(table) - 1)
    return -1


@kernel
def _add_row(vectors: NDArray[np.float32], row: int, total: NDArray[np.float64]) -> int:
    for column in range(len(total)):
        total[column] += vectors[row, column]
    return 1


@kernel
def _add_bucket(
    vectors: NDArray[np.float32],
    num_words: int,
    bucket_rows: NDArray[np.int32],
    bucket: int,
    total: NDArray[np.float64],
) -> int:
    """Add the vector of a piece or run of words; returns 0 if it was pruned. An empty `bucket_rows`: none was."""
    row = num_words + bucket
    if len(bucket_rows):
        row = int(bucket_rows[bucket])
        if row < 0:
            return 0
    return _add_row(vectors, row, total)


@kernel
def _add_pieces(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    min_piece: int,
    max_piece: int,
    num_buckets: int,
    vectors: NDArray[np.float32],
    num_words: int,
    bucket_rows: NDArray[np.int32],
    word: NDArray[np.uint8],
    total: NDArray[np.float64],
) -> int:
    """Add the vectors of the runs of characters of `<word>`; returns how many there are."""
    count = 0
    size = end - start + 2
    word[0] = 0x3C
    for offset in range(end - start):
        word[1 + offset] = data[start + offset]
    word[size - 1] = 0x3E
    for first in range(size):
        if word[first] & 0xC0 == 0x80:  # within a character
            continue
        last = first
        for length in range(1, max_piece + 1):
            if last >= size:
                break
            last += 1
            while last < size and word[last] & 0xC0 == 0x80:
                last += 1
            if length >= min_piece and not (length == 1 and (first == 0 or last == size)):
                bucket = int(_hash_bytes(word, first, last) % np.uint32(num_buckets))
                count += _add_bucket(vectors, num_words, bucket_rows, bucket, total)
    return count


@kernel
def _add_text(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    content: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    table: NDArray[np.int32],
    vectors: NDArray[np.float32],
    bucket_rows: NDArray[np.int32],
    has_buckets: bool,  # noqa: FBT001
    num_buckets: int,
    word_ngrams: int,
    min_piece: int,
    max_piece: int,
    prefix: NDArray[np.uint8],
    end_of_line: NDArray[np.uint8],
    word: NDArray[np.uint8],
    hashes: NDArray[np.int32],
    total: NDArray[np.float64],
) -> int:
    """Add up the vectors of a text; returns how many there are."""
    count = 0
    num_hashes = 0
    position = start
    is_open = True
    while is_open:
        while position < end and (data[position] == 0x20 or 0x09 <= data[position] <= 0x0D or data[position] == 0):
            position += 1
        first = position
        while position < end and not (data[position] == 0x20 or 0x09 <= data[position] <= 0x0D or data[position] == 0):
            position += 1
        source, last = data, position
        is_end = position == first
        if not is_end and last - first == len(end_of_line):  # the text itself may say that it ends
            is_end = True
            for offset in range(len(end_of_line)):
                is_end = is_end and data[first + offset] == end_of_line[offset]
        if is_end:
            is_open = False
            source, first, last = end_of_line, 0, len(end_of_line)
        hashed = _hash_bytes(source, first, last)
        row = _find_word(source, first, last, hashed, content, starts, ends, table)
        if row < 0 and last - first >= len(prefix):
            is_label = True
            for offset in range(len(prefix)):
                is_label = is_label and source[first + offset] == prefix[offset]
            if is_label:
                continue
        if row >= 0:
            count += _add_row(vectors, row, total)
        if max_piece > 0 and has_buckets and not is_end:
            count += _add_pieces(
                source, first, last, min_piece, max_piece, num_buckets, vectors, len(starts), bucket_rows, word, total
            )
        hashes[num_hashes] = np.int32(hashed)
        num_hashes += 1
    if has_buckets:
        for first in range(num_hashes):
            # Signed hashes, widened with their sign, as fastText has them.
            run = np.uint64(np.int64(hashes[first]))
            for last in range(first + 1, min(first + word_ngrams, num_hashes)):
                run = run * np.uint64(116049371) + np.uint64(np.int64(hashes[last]))
                bucket = int(run % np.uint64(num_buckets))
                count += _add_bucket(vectors, len(starts), bucket_rows, bucket, total)
    return count


class FastTextModel:
    """A fastText model and the label whose probability is the score."""

    is_probability = True

    def __init__(self, file: FastTextFile, label: int, path: str) -> None:
        self._path = path
        self._file = file
        self._label = label
        self._table = file.build_word_table()
        pruned = file.bucket_rows
        self._bucket_rows = np.empty(0, np.int32) if pruned is None else pruned
        # A model that was pruned of all pieces and runs has neither.
        self._has_buckets = file.arguments.num_buckets > 0 and (pruned is None or bool((pruned >= 0).any()))
        self._outputs = file.outputs.astype(np.float64)
        self._nodes = _find_path(file, label) if file.arguments.loss == HIERARCHICAL_SOFTMAX else []

    def score(self, texts: pa.Array) -> NDArray[np.float64]:
        """Return for each text the probability of the label; 0 for a text of which the model knows nothing."""
        data, offsets = get_text_buffers(texts)
        scores = np.zeros(len(texts))
        longest = int(np.diff(offsets).max(initial=0))
        word, hashes = np.empty(longest + 2, np.uint8), np.empty(longest // 2 + 2, np.int32)
        file, arguments = self._file, self._file.arguments
        prefix, end_of_line = (np.frombuffer(token, np.uint8) for token in (LABEL_PREFIX.encode(), END_OF_LINE))
        total = np.empty(file.vectors.shape[1])
        for row in range(len(texts)):
            total[:] = 0
            count = _add_text(
                data, int(offsets[row]), int(offsets[row + 1]), file.content, file.word_starts, file.word_ends,
                self._table, file.vectors, self._bucket_rows, self._has_buckets, arguments.num_buckets,
                arguments.word_ngrams, arguments.min_piece, arguments.max_piece, prefix, end_of_line, word, hashes,
                total,
            )  # fmt: skip
            if count:
                with np.errstate(over="ignore", invalid="ignore"):  # 1 / (1 + inf) is right; the rest is checked below
                    scores[row] = round(min(self._compute_probability(total / count), 1.0), _DIGITS)
        if not np.isfinite(scores).all():
            raise UsageError(f"{self._path} has weights that are no numbers", help="it is damaged: copy it again")
        return scores

    def _compute_probability(self, mean: NDArray[np.float64]) -> float:
        loss = self._file.arguments.loss
        if loss == HIERARCHICAL_SOFTMAX:
            probability = 1.0
            for node, is_right in self._nodes:
                share = 1 / (1 + np.exp(-_add_products(mean, self._outputs[node])))
                probability *= (share if is_right else 1 - share) + _SMALL
            return probability
        if loss == SOFTMAX:
            values = np.array([_add_products(mean, output) for output in self._outputs])
            powers = np.exp(values - values.max())
            return float(powers[self._label] / powers.sum()) + _SMALL
        return _look_up_sigmoid(_add_products(mean, self._outputs[self._label])) + _SMALL


def _add_products(mean: NDArray[np.float64], output: NDArray[np.float64]) -> float:
    # Not `@`: the order of its sums depends on the processor.
    return float(np.add.accumulate(mean * output)[-1])


def _look_up_sigmoid(value: float) -> float:
    """Compute the sigmoid as fastText does, in 512 steps."""
    if abs(value) > _SIGMOID_LIMIT:
        return float(value > 0)
    step = int((value + _SIGMOID_LIMIT) * _SIGMOID_STEPS / _SIGMOID_LIMIT / 2)
    return float(1 / (1 + np.exp(-(step * 2 * _SIGMOID_LIMIT / _SIGMOID_STEPS - _SIGMOID_LIMIT))))


def _find_path(file: FastTextFile, label: int) -> list[tuple[int, bool]]:
    """Find the nodes above a label, each with whether the way to the label is the right one."""
    left, right = file.build_tree()
    path = []
    child = label
    for node in range(len(left)):
        if child in (left[node], right[node]):
            path.append((node, bool(child == right[node])))
            child = len(file.labels) + node
    return path


def open_fasttext(content: NDArray[np.uint8], path: str, label: str | None) -> FastTextModel:
    """Open a model for one of its labels.

    Raises:
        UsageError: It is no such model or damaged, or it does not have the label.
    """
    try:
        file = parse_fasttext(content)
    except ValueError as error:
        raise UsageError(
            f"{path} cannot be read as a fastText model: {error}",
            help="copy it again, or use a model of `fasttext supervised`",
        ) from error
    labels_text = ", ".join(file.labels[:_MAX_NAMED]) + (" …" if len(file.labels) > _MAX_NAMED else "")
    if label is None:
        raise UsageError(f"{path} has the labels {labels_text}", help="set label to the one whose probability counts")
    name = label.removeprefix(LABEL_PREFIX)
    if name not in file.labels:
        nearest = find_nearest(name, file.labels)
        hint = f'did you mean "{nearest}"?' if nearest else f"it has {labels_text}"
        raise UsageError(f'{path} has no label "{label}"', help=hint)
    return FastTextModel(file, file.labels.index(name), path)
