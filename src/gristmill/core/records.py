"""Records in flight: Arrow batches with an `origin` column, and the records that are quarantined on the way.

`origin` is a record's identity: which file, which position in it, and which part of the record there. Adding, removing
or moving other files never changes it, so every random choice and every trace back to the source depends on it.

Between steps the texts of records are Python strings or an Arrow column (`Records`); one is made from the other only
when it is needed. A JSON decoder makes strings and a tokenizer takes strings. An Arrow column between them would cost
two copies and their memory: 4 to 9 ns a byte, half of what the fast tokenizer itself takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.scores import RowScores


ORIGIN = "origin"
TEXT = "text"
RECORD = "record"
"""The record as it was read (a JSON line), so that it can be written out unchanged."""
KEY = "__key__"
"""The name of a WebDataset sample, without its extensions."""
SPLIT = "__split__"
"""The split of each record. Without this column all records are for training. No file would use this name."""
SOURCE = "source"
"""The source of each record, in a lane of several."""
INPUT_IDS = "input_ids"
"""A document's token ids: `list<uint16>` or `list<uint32>`."""
LOSS_MASK = "loss_mask"
"""For each token id of a chat whether it is trained: `list<bool>`. Documents have no mask: all ids are trained."""
LOSS_WEIGHTS = "loss_weights"
"""For each token id its weight in the loss, where records bring weights: `list<float32>`."""
FIM = "fim"
"""Where a document is cut for filling in the middle, in characters: begin and end of the middle, and 1 if its suffix
comes first; empty for a document that is not cut."""
KINDS = "kinds"
"""The kinds of a chat's tokens (`core/token_kinds.py`): of rendered text the bytes at which the code changes, each with
the new code; of tokens a byte each; of rows runs (`shards/token_rows.py`)."""
WEIGHTS = "weights"
"""The weights of a chat's tokens in the loss, where messages have any: of rendered text the bytes at which the weight
changes, each with the new one; of tokens and rows runs, each a number of tokens and their weight. Empty: all are 1."""
LITERALS = "literals"
"""The byte ranges of a rendered chat in which an author wrote a special token: from, to, from, to."""
IMAGES = "images"
"""The images of a chat, or of all chats in a row, in order: the tar and the member (of a folder, the empty name and the
path), and how many tokens each has."""
NUM_TOKENS = "num_tokens"
"""The number of tokens of a rendered chat that is kept as a chat."""
OTHER_FIELDS = "other_fields"
"""A JSON object with everything that has no column: keys that the plan did not see, values that do not fit."""
JSON_TEXT = b"json"
"""Metadata of a field whose texts are JSON values."""
TYPE_REASON = b"why"
"""Metadata of such a field, for the plan: the reason why it has no other type."""
BESIDE_RECORD = b"beside"
"""Metadata of the field `text` of chats that are written as chats: the text comes next to the record, not in it."""
PATH = b"path"
"""Metadata of a field: the path of its value in the JSON record, `payload.body`. Without it, the name is the path."""
CARRIES_ALL = b"carries_all"
"""Metadata of a schema that has all columns of the files; everything else is in `other_fields`."""

ORIGIN_TYPE = pa.struct([("file", pa.uint64()), ("position", pa.uint64()), ("part", pa.uint32())])
IMAGES_TYPE = pa.list_(pa.struct([("shard", pa.string()), ("member", pa.string()), ("tokens", pa.int32())]))
TEXT_TYPE = pa.large_string()
RECORD_TYPE = pa.large_binary()
_MIN_RUN_ROWS = 4
"""How many rows the kept runs of a batch must have for each of them, on average, to be copied one by one."""


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that was quarantined, and the reason."""

    file: int
    position: int
    part: int
    reason: str
    """The word it is counted under: `invalid_json`, `missing_text`, `exception`, `worker_died`."""
    message: str
    raw: bytes | None = None
    """The record itself; None when it is too large: then only its origin and size are kept."""
    num_bytes: int = 0
    traceback: str = ""
    num_records: int = 1
    """The number of records it represents: of rows that cannot be read, only the number is known."""
    is_unread: bool = False
    """Whether it is a part of the file that could not be read: how many records were in its bytes is not known."""
    is_malformed: bool = False
    """Whether it was cut out by separators and is no record: damage may have joined several in its bytes."""


@dataclass(frozen=True, slots=True)
class RuleValues:
    """The measured value of each input row, and the threshold of its rule."""

    values: NDArray[Any] | pa.Array
    thresholds: NDArray[np.float64] | float | str | None = None
    """One threshold for each row, or one for all; None if the rule has none."""

    def at(self, row: int) -> tuple[float | str, float | str | None]:
        """Return the value and the threshold of one row; whole thresholds as integers."""
        value = self.values[row]
        threshold = self.thresholds[row].item() if isinstance(self.thresholds, np.ndarray) else self.thresholds
        if isinstance(threshold, float) and threshold.is_integer():
            threshold = int(threshold)
        return value.as_py() if isinstance(value, pa.Scalar) else value.item(), threshold


class Texts:
    """The texts of some records, none of them null.

    >>> texts = Texts(["Grüße", "a"])
    >>> len(texts), texts.sizes.tolist(), texts.num_bytes
    (2, [7, 1], 8)
    """

    def __init__(self, texts: Sequence[str] | pa.Array, schema: pa.Schema | None = None) -> None:
        self.schema = schema
        """The schema from which a reader left their column out."""
        self._column = texts if isinstance(texts, pa.Array) else None
        self._strings = None if isinstance(texts, pa.Array) else list(texts)
        self._chosen_from: tuple[Texts, NDArray[np.bool_]] | None = None

    def __len__(self) -> int:
        return len(self.strings if self._column is None else self._column)

    @property
    def column(self) -> pa.Array | None:
        """The texts as a column, if they came as one."""
        return self._column

    @cached_property
    def strings(self) -> list[str]:
        if self._strings is not None:
            return self._strings
        assert self._column is not None
        strings: list[str] = self._column.to_pylist()
        return strings

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each text in UTF-8. Of strings this is cheap once a tokenizer has read them.

        Python keeps the UTF-8 form of a string after native code has asked for it, so that `encode` only copies it.
        """
        if self._column is not None:
            sizes: NDArray[np.int64] = pc.binary_length(self._column).to_numpy(zero_copy_only=False).astype(np.int64)
            return sizes
        if self._chosen_from is not None:  # all texts are measured once
            texts, is_kept = self._chosen_from
            return texts.sizes[is_kept]
        return np.array([len(text) if text.isascii() else len(text.encode()) for text in self.strings], np.int64)

    @property
    def num_bytes(self) -> int:
        return int(self.sizes.sum())

    def filter(self, is_kept: NDArray[np.bool_]) -> Texts:
        """Return the texts that are kept."""
        if self._column is not None:
            return Texts(self._column.filter(pa.array(is_kept)), self.schema)
        texts = Texts(list(compress(self.strings, is_kept.tolist())), self.schema)
        texts._chosen_from = self, is_kept
        return texts


class Records:
    """Records between two steps of a slice: their columns, their texts, and what was counted in these.

    >>> records = documents(["Größe", "a"])
    >>> Records(records).texts.strings
    ['Größe', 'a']
    """

    def __init__(
        self,
        rows: pa.RecordBatch,
        texts: Texts | None = None,
        counts: Mapping[str, NDArray[np.int64]] | None = None,
    ) -> None:
        self.rows = rows
        """Their columns, without the text where that is strings."""
        self.counts = counts or {}
        """What the step before has counted in the text of each row (`StepResult.counts`)."""
        self._given_texts = texts

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)

    @property
    def has_strings(self) -> bool:
        """Whether the texts are strings, and not among the columns."""
        return self._given_texts is not None

    @property
    def texts(self) -> Texts:
        """The texts, as whatever they are."""
        return self._given_texts if self._given_texts is not None else Texts(self.rows.column(TEXT))

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """All columns, the text among them."""
        if self._given_texts is None:
            return self.rows
        return self.with_text(pa.array(self._given_texts.strings, TEXT_TYPE))

    def with_text(self, column: pa.Array) -> pa.RecordBatch:
        """Return all columns with this one for the texts, which are strings."""
        assert self._given_texts is not None
        schema = self._given_texts.schema
        assert schema is not None
        index = schema.get_field_index(TEXT)
        return self.rows.add_column(index, schema.field(index), column)


@dataclass(slots=True)
class StepResult:
    """The result of a step on a batch. Always: rows in + created = rows out + dropped + quarantined."""

    batch: pa.RecordBatch
    dropped: Mapping[str, int] = field(default_factory=dict)
    """The number of dropped records, by reason."""
    created: int = 0
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    counters: Mapping[str, int] = field(default_factory=dict)
    """Other things that the step counted: tokens, literal special tokens."""
    codes: NDArray[np.uint8] | None = None
    """For each input row 0, or 1 + the index of the reason why it was dropped; None if the step does not record it."""
    reasons: tuple[str, ...] = ()
    failed: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """For each rule the rows that break it, if the step checks all rules."""
    rule_values: Mapping[str, RuleValues] = field(default_factory=dict)
    """For each rule the compared numbers, if the step compares any: they explain why a record was dropped."""
    changed_rows: NDArray[np.bool_] | None = None
    """For each row whether the step has edited its text; None if it edits none, or rows are gone."""
    counts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """What was counted in the text of each row of `batch`: a filter right after this step need not count it."""
    texts: Texts | None = None
    """The texts of `batch`, if they are not in it."""
    scores: RowScores | None = None
    """What the step has measured in each input row, if it describes any scores."""

    @property
    def records(self) -> Records:
        """The records for the next step."""
        return Records(self.batch, self.texts, self.counts)


def find_first_failures(failed: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.uint8]:
    """For each row 0, or 1 + the index of the first rule that it breaks: the `codes` of a `StepResult`.

    >>> find_first_failures({"short": np.array([True, False, True]), "loud": np.array([True, True, False])}).tolist()
    [1, 2, 1]
    """
    masks = list(failed.values())
    codes = np.zeros(len(masks[0]), np.uint8)
    for code in range(len(masks), 0, -1):  # backwards, so that the first rule has the last word
        codes[masks[code - 1]] = code
    return codes


def count_dropped(codes: NDArray[np.uint8], reasons: Sequence[str]) -> dict[str, int]:
    """Count the dropped rows by reason; reasons without rows are left out.

    >>> count_dropped(np.array([0, 2, 2], np.uint8), ("short", "loud"))
    {'loud': 2}
    """
    counts = np.bincount(codes, minlength=len(reasons) + 1)[1:]
    return {reason: int(count) for reason, count in zip(reasons, counts, strict=True) if count}


def count_failures(failed: Mapping[str, NDArray[np.bool_]]) -> dict[str, int]:
    """Count the rows that break each rule, no matter which others they break: counters such as `failed:min_words`."""
    counts = {rule: int(np.count_nonzero(rows)) for rule, rows in failed.items()}
    return {f"failed:{rule}": count for rule, count in counts.items() if count}


class SideFile(msgspec.Struct, frozen=True, gc=False):
    """A file that describes another one: a caption, a JSON object, or the table of its folder."""

    extension: str
    """Its extension; for the table of a folder `*table`, which no file has."""
    path: str
    num_bytes: int
    version: str


class SourceFile(msgspec.Struct, frozen=True, gc=False):
    """An input file, as it was when the job was planned.

    A struct, because there may be a million: a dataclass takes five times as long to create and seven times to pickle.
    """

    path: str
    """The local path or fsspec URL to open it by."""
    relative: str
    """The path below the source's root, with forward slashes: part of every record's identity."""
    num_bytes: int
    version: str
    """A text that changes with the content: modification time, or the store's etag."""
    id: int
    """xxh3 of the source's name and `relative`: the `file` of its records' origins."""
    content: str = ""
    """xxh3 of the content, if the recipe says `identity: content`."""
    is_scanned: bool = False
    """Whether it must be scanned for positions to cut at: a plain CSV file or JSON array of several units."""
    split: str = ""
    """The split of its records; empty if the source has no splits."""
    side_files: tuple[SideFile, ...] = ()
    """The files that describe it, for a file that is one sample."""

    @property
    def is_held_out(self) -> bool:
        """Whether its records belong to a split other than `train`."""
        return self.split not in ("", TRAIN)

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that decides whether earlier work on the file is still valid."""
        side_files = [(file.extension, file.version) for file in self.side_files]
        return self.id, self.relative, self.num_bytes, self.content or self.version, self.split, *side_files


def make_origins(file: int | pa.Array, positions: pa.Array, parts: pa.Array | None = None) -> pa.StructArray:
    """Make the origin column of records of one file, or of one file for each record."""
    count = len(positions)
    files = pa.repeat(pa.scalar(file, pa.uint64()), count) if isinstance(file, int) else file
    if parts is None:
        parts = pa.repeat(pa.scalar(0, pa.uint32()), count)
    return pa.StructArray.from_arrays([files, positions.cast(pa.uint64()), parts], fields=list(ORIGIN_TYPE))


def describe_origin(origin: Mapping[str, int]) -> str:
    """Describe where a record came from, for messages.

    >>> describe_origin({"file": 255, "position": 7, "part": 0})
    'file 00000000000000ff, position 7, part 0'
    """
    return f"file {origin['file']:016x}, position {origin['position']}, part {origin['part']}"


def is_for_training(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """For each record whether it is for training, not held out."""
    if SPLIT not in batch.schema.names:
        return np.ones(batch.num_rows, dtype=np.bool_)
    mask: NDArray[np.bool_] = pc.equal(batch.column(SPLIT), TRAIN).to_numpy(zero_copy_only=False)
    return mask


def select_rows(batch: pa.RecordBatch, is_kept: NDArray[np.bool_]) -> pa.RecordBatch:
    """Return a batch of some rows.

    Texts are copied in runs of rows, into memory of the right size. Arrow's own filter lets it grow, which takes twice
    as long or more, but is as good where runs are short.

    >>> select_rows(pa.record_batch({"n": [1, 2, 3]}), np.array([True, False, True])).column("n").to_pylist()
    [1, 3]
    """
    if is_kept.all():
        return batch
    runs = np.flatnonzero(np.diff(is_kept, prepend=False, append=False)).reshape(-1, 2)
    mask = pa.array(is_kept)
    if len(runs) * _MIN_RUN_ROWS > batch.num_rows:
        return batch.filter(mask)
    texts = [
        index
        for index, column in enumerate(batch.columns)
        if column.type in (TEXT_TYPE, RECORD_TYPE) and not column.null_count and column.buffers()[2] is not None
    ]
    rest = batch.select([index for index in range(batch.num_columns) if index not in texts]).filter(mask)
    columns = rest.columns
    for index in texts:
        columns.insert(index, _copy_runs(batch.column(index), is_kept, runs))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _copy_runs(column: pa.Array, is_kept: NDArray[np.bool_], runs: NDArray[np.int64]) -> pa.Array:
    """Copy the texts of runs of rows, each a first row and the one after its last."""
    _, ends, data = column.buffers()
    offsets = np.frombuffer(ends, np.int64, len(column) + 1, column.offset * 8)
    kept_offsets = np.zeros(np.count_nonzero(is_kept) + 1, np.int64)
    np.cumsum(np.diff(offsets)[is_kept], out=kept_offsets[1:])
    texts = pa.allocate_buffer(int(kept_offsets[-1]))
    source, target = memoryview(data), memoryview(texts)
    stop = 0
    for first_byte, end in offsets[runs].tolist():
        start, stop = stop, stop + end - first_byte
        target[start:stop] = source[first_byte:end]
    num_rows = len(kept_offsets) - 1
    # Arrow's filter gives its result a bitmap, too; the size of a record in samples of dropped ones counts it.
    validity = pa.py_buffer(b"\xff" * (-(-num_rows // 8)))
    return pa.Array.from_buffers(column.type, num_rows, [validity, pa.py_buffer(kept_offsets), texts])


def count_values(column: pa.Array) -> int:
    """Count the bytes of a column of texts, or the values of a column of lists.

    >>> count_values(pa.array(["ab", "", "c"], pa.large_string())), count_values(pa.array([[1, 2], [3]]))
    (3, 3)
    """
    is_wide = pa.types.is_large_string(column.type) or pa.types.is_large_list(column.type)
    offsets = column.buffers()[1]
    if not len(column) or offsets is None:
        return 0
    values = memoryview(offsets).cast("q" if is_wide else "i")
    return int(values[column.offset + len(column)] - values[column.offset])


def documents(texts: Sequence[str], *, first: int = 0, **columns: Sequence[object] | pa.Array) -> pa.RecordBatch:
    """Make a batch of these texts and columns, numbered from `first` in one file.

    >>> documents(["hi", "hello"], url=["a.org", "b.org"]).column_names
    ['origin', 'text', 'url']
    """
    arrays = {name: pa.array(values) for name, values in columns.items()}
    positions = pa.array(range(first, first + len(texts)), pa.uint64())
    return pa.RecordBatch.from_pydict({ORIGIN: make_origins(1, positions), TEXT: pa.array(texts, TEXT_TYPE), **arrays})


def texts(batch: pa.RecordBatch) -> list[str]:
    """Return the texts of a batch as a list."""
    values: list[str] = batch.column(TEXT).to_pylist()
    return values
