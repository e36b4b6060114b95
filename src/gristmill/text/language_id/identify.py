"""Identification of languages: the model as arrays for the kernels, and the calls of these."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gristmill.text.language_id.kernels import add_texts, choose_labels
from gristmill.text.language_id.model_file import find_model, load_model

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_SCALE = 1 << 20
_NO_COUNT = 10**15
_KNOWN_WORDS = 1 << 14
_MAX_PIECES, _PIECE_BYTES = 64, 512


class LanguageIdentifier:
    """Identifies languages. 8 MB; threads share it, since it is only read."""

    def __init__(self, path: Path) -> None:
        model = load_model(path)
        self.labels = model.labels
        self._min_subword, self._max_subword = model.min_subword, model.max_subword
        # 16 bits instead of 32, so that more of them stay in the processor's caches.
        self._subword_rows = model.subword_rows.astype(np.uint16)
        self._vectors = np.rint(model.vectors.astype(np.float64) * _SCALE).astype(np.int32)
        self._nodes = model.nodes.astype(np.float64)
        self._left, self._right = _build_huffman_tree(model.label_counts)
        self._table, self._words, self._word_ends = _build_word_table(list(model.words))
        self._end_of_line = model.end_of_line

    def identify(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Find the most likely label of each document; returns its index and probability. Long ones are sampled."""
        begins, ends, owners = choose_pieces(offsets)
        count = len(offsets) - 1
        sums = np.zeros((count, self._vectors.shape[1]), np.int64)
        counts = np.zeros(count, np.int64)
        if self._end_of_line >= 0:
            sums += self._vectors[self._end_of_line]
            counts += 1
        known_words = np.zeros(_KNOWN_WORDS + 1, np.uint64)
        known_sums = np.empty((_KNOWN_WORDS + 1, sums.shape[1] + 1), np.int64)
        add_texts(
            data, begins, ends, owners, self._table, self._words, self._word_ends,
            self._min_subword, self._max_subword, self._subword_rows, self._vectors,
            known_words, known_sums, sums, counts,
        )  # fmt: skip
        labels, scores = np.zeros(count, np.int32), np.zeros(count)
        choose_labels(
            sums, np.maximum(counts, 1), float(_SCALE), self._nodes, self._left, self._right,
            np.zeros(sums.shape[1]), np.zeros(2 * len(self.labels)), labels, scores,
        )  # fmt: skip
        return labels, scores


def choose_pieces(offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Choose the pieces that are read: where each begins and ends, and the document it belongs to.

    A document of up to 32 KiB is one piece; a longer one has 64 pieces of 512 bytes at equal distances, which may begin
    or end within a word.

    >>> [part.tolist() for part in choose_pieces(np.array([0, 5, 9]))]
    [[0, 5], [5, 9], [0, 1]]
    """
    sizes = np.diff(offsets)
    is_long = sizes > _MAX_PIECES * _PIECE_BYTES
    owners = np.repeat(np.arange(len(sizes)), np.where(is_long, _MAX_PIECES, 1))
    numbers = np.arange(len(owners)) - np.searchsorted(owners, owners)
    begins = offsets[owners] + np.where(is_long[owners], sizes[owners] * numbers // _MAX_PIECES, 0)
    ends = np.where(is_long[owners], begins + _PIECE_BYTES, offsets[owners + 1])
    return begins, ends, owners


@cache
def load_identifier() -> LanguageIdentifier:
    """Load the installed model; 50 ms at the first call."""
    return LanguageIdentifier(find_model())


def _build_huffman_tree(counts: list[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Build the Huffman tree of the labels like fastText; `counts` go from the most to the least frequent label.

    Returns the left and right children of the nodes above the leaves, in the order in which they are made: the last one
    is the root.
    """
    num_leaves = len(counts)
    times = counts + [_NO_COUNT] * (num_leaves - 1)
    left, right = [], []
    leaf, node = num_leaves - 1, num_leaves
    for parent in range(num_leaves, 2 * num_leaves - 1):
        children = []
        for _ in range(2):
            if leaf >= 0 and times[leaf] < times[node]:
                children.append(leaf)
                leaf -= 1
            else:
                children.append(node)
                node += 1
        left.append(children[0])
        right.append(children[1])
        times[parent] = times[children[0]] + times[children[1]]
    return np.array(left, np.int32), np.array(right, np.int32)


def _build_word_table(words: list[bytes]) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]:
    """Build a hash table of words: rows by slot (-1: empty), all words one after the other, and where each ends."""
    size = 16
    while size < 4 * len(words):
        size *= 2
    table = np.full(size, -1, np.int32)
    for row, word in enumerate(words):
        hashed = 2166136261
        for byte in word:
            hashed = ((hashed ^ (byte if byte < 0x80 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
        slot = hashed & (size - 1)
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = row
    ends = np.cumsum([len(word) for word in words])
    return table, np.frombuffer(b"".join(words), np.uint8), ends
