"""The file of a supervised fastText model (`.bin`, quantized `.ftz`; version 12), read into plain arrays.

The file has, in this order: arguments; the dictionary of words and labels; the hashes of pieces of words that were not
pruned; the vectors of words and pieces, as floats or as codes of product quantization; the vectors of the labels (of
the nodes above them for hierarchical softmax). Floats stay where they are: a mapped file of a gigabyte takes no memory
of the worker. Every size is checked before memory is allocated for it, and every row before it is used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = struct.pack("<i", 793712314)
HIERARCHICAL_SOFTMAX, NEGATIVE_SAMPLING, SOFTMAX, ONE_VERSUS_ALL = 1, 2, 3, 4
LABEL_PREFIX = "__label__"
END_OF_LINE = b"</s>"
_VERSION = 12
_SUPERVISED = 3
_LABEL = 1
_CENTROIDS = 256
_ENTRY_BYTES = 10
_NO_COUNT = 10**15
_MAX_BUCKETS = 1 << 28
_MAX_DECODED_FLOATS = 1 << 30
_MAX_RUN = 64
"""The most words, or characters, that are looked up together: without a limit a long document could take hours."""


@kernel
def _find_entries(
    content: NDArray[np.uint8],
    position: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> int:
    """Find the entries of the dictionary: a text, a zero, a count of 8 bytes and a kind. Returns where they end."""
    for entry in range(len(starts)):
        starts[entry] = position
        while position < len(content) and content[position] != 0:
            position += 1
        ends[entry] = position
        if position + 10 > len(content):
            return -1
        count = 0
        for byte in range(7, -1, -1):
            count = (count << 8) | content[position + 1 + byte]
        counts[entry] = count
        kinds[entry] = content[position + 9]
        position += 10
    return position


@kernel
def _fill_word_table(
    content: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], table: NDArray[np.int32]
) -> None:
    for row in range(len(starts)):
        hashed = np.uint32(2166136261)
        for position in range(starts[row], ends[row]):
            # fastText hashes signed bytes: those from 0x80 on flip the upper bits, too.
            hashed = np.uint32((hashed ^ np.uint32(np.int8(content[position]))) * np.uint32(16777619))
        slot = np.int64(hashed) & (len(table) - 1)
        while table[slot] >= 0:
            slot = (slot + 1) & (len(table) - 1)
        table[slot] = row


@dataclass(frozen=True, slots=True)
class FastTextArguments:
    """The arguments of a model that its answers depend on."""

    word_ngrams: int
    loss: int
    num_buckets: int
    min_piece: int
    max_piece: int


@dataclass(frozen=True, slots=True)
class FastTextFile:
    """A model as arrays."""

    arguments: FastTextArguments
    content: NDArray[np.uint8]
    """The whole file: `word_starts` and `word_ends` are positions in it."""
    word_starts: NDArray[np.int64]
    word_ends: NDArray[np.int64]
    labels: list[str]
    label_counts: list[int]
    bucket_rows: NDArray[np.int32] | None
    """The row of each hash of a piece, -1 for those that were pruned; None if none were."""
    vectors: NDArray[np.float32]
    outputs: NDArray[np.float32]

    @property
    def num_words(self) -> int:
        """The number of words in the dictionary; the rows of `vectors` after them are those of pieces."""
        return len(self.word_starts)

    def list_words(self) -> list[bytes]:
        """List the words of the dictionary."""
        return [self.content[start:end].tobytes() for start, end in zip(self.word_starts, self.word_ends, strict=True)]

    def build_word_table(self) -> NDArray[np.int32]:
        """Build a hash table of the words: the row of a word by its slot, -1 for an empty one."""
        table = np.full(max(16, 1 << (4 * self.num_words - 1).bit_length()), -1, np.int32)
        _fill_word_table(self.content, self.word_starts, self.word_ends, table)
        return table

    def build_tree(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Build the Huffman tree of the labels, which the file has from the most to the least frequent one.

        Returns the left and right children of the nodes above the leaves, in the order in which they are made: the last
        one is the root.
        """
        num_leaves = len(self.label_counts)
        times = self.label_counts + [_NO_COUNT] * (num_leaves - 1)
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


def parse_fasttext(content: NDArray[np.uint8]) -> FastTextFile:
    """Parse the content of a file.

    Raises:
        ValueError: It is not such a model, or damaged.
    """
    try:
        return _Parser(content).parse()
    except struct.error as error:
        raise ValueError("it ends too early") from error
    except (UnicodeDecodeError, IndexError) as error:
        raise ValueError(f"it is damaged: {error}") from error


class _Parser:
    """Reads the parts of a model file, one after the other."""

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self._content = content
        self._position = 0

    def parse(self) -> FastTextFile:
        magic, version = self._read("<4si")
        if magic != MAGIC or version != _VERSION:
            raise ValueError(f"it does not begin like a fastText model of version {_VERSION}")
        dimensions, _, _, _, _, word_ngrams, loss, model, num_buckets, min_piece, max_piece, _, _ = self._read("<12id")
        if model != _SUPERVISED:
            raise ValueError("it is a model of word vectors, not a classifier")
        if not (HIERARCHICAL_SOFTMAX <= loss <= ONE_VERSUS_ALL and 0 <= num_buckets <= _MAX_BUCKETS):
            raise ValueError("it is damaged: its arguments are impossible")
        if max(word_ngrams, max_piece) > _MAX_RUN:
            raise ValueError(
                f"it looks up {max(word_ngrams, max_piece)} words or characters together, not up to {_MAX_RUN}"
            )
        size, num_words, num_labels, _, num_pruned = self._read("<iiiqq")
        starts, ends, label_entries, counts = self._read_dictionary(size, num_words, num_labels)
        bucket_rows = self._read_bucket_rows(num_pruned, num_buckets, num_words)
        is_quantized = self._read("<?")[0]
        vectors = self._read_codes() if is_quantized else self._read_matrix()
        outputs = self._read_codes() if self._read("<?")[0] and is_quantized else self._read_matrix()
        needed_rows = 1 + int(bucket_rows.max(initial=-1)) if bucket_rows is not None else num_words + num_buckets
        is_using_pieces = max_piece > 0 or word_ngrams > 1
        if len(vectors) < max(num_words, needed_rows if is_using_pieces else 0):
            raise ValueError("it is damaged: it has fewer vectors than words and pieces")
        num_outputs = num_labels  # the tree of hierarchical softmax has one node less, and the file a spare row
        if vectors.shape[1] != dimensions or outputs.shape != (num_outputs, dimensions):
            raise ValueError("it is damaged: the shapes of its vectors disagree")
        labels = [bytes(entry).decode().removeprefix(LABEL_PREFIX) for entry in label_entries]
        arguments = FastTextArguments(word_ngrams, loss, num_buckets, min_piece, max_piece)
        return FastTextFile(arguments, self._content, starts, ends, labels, counts, bucket_rows, vectors, outputs)

    def _read_dictionary(
        self, size: int, num_words: int, num_labels: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.uint8]], list[int]]:
        """Read where words begin and end, the labels, and how often each label occurs."""
        is_possible = num_words >= 0 < num_labels and num_words + num_labels == size
        if not is_possible or size > len(self._content) // _ENTRY_BYTES:
            raise ValueError("it is damaged: the size of its dictionary is impossible")
        starts, ends, counts = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
        kinds = np.empty(size, np.uint8)
        self._position = _find_entries(self._content, self._position, starts, ends, counts, kinds)
        if self._position < 0 or (kinds[:num_words] == _LABEL).any() or (kinds[num_words:] != _LABEL).any():
            raise ValueError("it is damaged: its dictionary cannot be read")
        entries = [self._content[starts[row] : ends[row]] for row in range(num_words, size)]
        return starts[:num_words], ends[:num_words], entries, counts[num_words:].tolist()

    def _read_bucket_rows(self, num_pruned: int, num_buckets: int, num_words: int) -> NDArray[np.int32] | None:
        if num_pruned < 0:
            return None
        remaining = self._read_array("<i4", 2 * num_pruned).reshape(-1, 2)
        if num_pruned and not (remaining.min() >= 0 and remaining[:, 0].max() < num_buckets):
            raise ValueError("it is damaged: its pieces of words are impossible")
        rows = np.full(num_buckets, -1, np.int32)
        rows[remaining[:, 0]] = remaining[:, 1] + num_words
        return rows

    def _read_matrix(self) -> NDArray[np.float32]:
        rows, columns = self._read("<qq")
        self._check_shape(rows, columns)
        return self._read_array("<f4", rows * columns).reshape(rows, columns)

    def _read_codes(self) -> NDArray[np.float32]:
        """Read vectors that are quantized: each row is a concatenation of centroids, times its norm."""
        has_norms, rows, columns, num_codes = self._read("<?qqi")
        self._check_shape(rows, columns)
        if rows * columns > _MAX_DECODED_FLOATS or num_codes % max(rows, 1):
            raise ValueError("it is damaged: the number of its codes is impossible")
        codes = self._read_array("u1", num_codes).reshape(rows, -1)
        vectors = self._decode_codes(codes, columns)
        if has_norms:
            vectors = vectors * self._decode_codes(self._read_array("u1", rows).reshape(rows, 1), 1)
        return vectors

    def _decode_codes(self, codes: NDArray[np.uint8], columns: int) -> NDArray[np.float32]:
        total, num_parts, part, last_part = self._read("<iiii")
        if total != columns or codes.shape[1] != num_parts or (num_parts - 1) * part + last_part != columns:
            raise ValueError("it is damaged: its parts of vectors do not add up")
        if part <= 0 or last_part <= 0:
            raise ValueError("it is damaged: its parts of vectors are impossible")
        centroids = self._read_array("<f4", columns * _CENTROIDS)
        pieces = []
        for number in range(num_parts):
            width = last_part if number == num_parts - 1 else part
            begin = number * _CENTROIDS * part
            table = centroids[begin : begin + _CENTROIDS * width].reshape(_CENTROIDS, width)
            pieces.append(table[codes[:, number]])
        return np.concatenate(pieces, axis=1)

    @staticmethod
    def _check_shape(rows: int, columns: int) -> None:
        if rows <= 0 or columns <= 0:
            raise ValueError("it is damaged: a matrix has an impossible shape")

    def _read(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._content.data, self._position)
        self._position += struct.calcsize(layout)
        return values

    def _read_array(self, kind: str, count: int) -> NDArray[Any]:
        # A negative count would mean "all the rest" to NumPy.
        if count < 0 or count * np.dtype(kind).itemsize > len(self._content) - self._position:
            raise ValueError("it ends too early")
        values = np.frombuffer(self._content, kind, count, self._position)
        self._position += values.nbytes
        return values
