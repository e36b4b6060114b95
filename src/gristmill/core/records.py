"""Records in flight: Arrow batches with an `origin` column, and what is set aside on the way.

`origin` is a record's identity: which file, where in it, and which piece of what was there. Adding, removing or moving
other files never changes it, so every random choice and every trace back to the source hangs on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.splits import TRAIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

ORIGIN = "origin"
TEXT = "text"
RECORD = "record"
"""The record as it was read (a JSON line), carried along so that it can be written out again unchanged."""
KEY = "__key__"
"""The name of a WebDataset sample, without its extensions."""
SPLIT = "__split__"
"""The split of each record, where some are held out; without it all are for training. No name that files would use."""
INPUT_IDS = "input_ids"
"""A document's token ids: `list<uint16>` or `list<uint32>`."""
LOSS_MASK = "loss_mask"
"""Of a chat, for each of its token ids whether it is trained: `list<bool>`. Documents have none: all are."""
TRAINED = "trained"
"""Of a rendered chat: which bytes of its text are trained on; from, to, from, to."""
LITERALS = "literals"
"""Of a rendered chat: where its text holds special tokens that somebody wrote; from, to, from, to."""
NUM_TOKENS = "num_tokens"
"""Of a rendered chat that is kept as a chat: how many tokens its text has."""
OTHER_FIELDS = "other_fields"
"""A JSON object of what has no column: keys that the plan did not see, and values that do not fit their column."""
JSON_TEXT = b"json"
"""Metadata of a field: its texts are JSON values."""
TYPE_REASON = b"why"
"""Metadata of such a field, for the plan: why it has no other type."""
BESIDE_RECORD = b"beside"
"""Metadata of the field `text` of chats that are written as chats: it stands beside the record, not in it."""
PATH = b"path"
"""Metadata of a field: where its value stands in the JSON record, `payload.body`. Without it, where its name says."""
CARRIES_ALL = b"carries_all"
"""Metadata of a schema: all columns of the files are in it, and what has none is in `other_fields`."""

ORIGIN_TYPE = pa.struct([("file", pa.uint64()), ("position", pa.uint64()), ("part", pa.uint32())])
TEXT_TYPE = pa.large_string()
RECORD_TYPE = pa.large_binary()


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that was set aside, and why."""

    file: int
    position: int
    part: int
    reason: str
    """A word for counting: `invalid_json`, `missing_text`, `exception`, `worker_died`."""
    message: str
    raw: bytes | None = None
    """The record itself; None when it is too large, and then only its origin and size are kept."""
    num_bytes: int = 0
    traceback: str = ""
    num_records: int = 1
    """How many it stands for: of rows that cannot be read, nothing but their number is known."""


@dataclass(frozen=True, slots=True)
class RuleValues:
    """A value for each row that came in, and the threshold of a rule for it."""

    values: NDArray[Any] | pa.Array
    thresholds: NDArray[np.float64] | float | str | None = None
    """One for each row, or for all; None: the rule has none."""

    def at(self, row: int) -> tuple[float | str, float | str | None]:
        """The value and the threshold of one row; whole thresholds as integers."""
        value = self.values[row]
        threshold = self.thresholds[row].item() if isinstance(self.thresholds, np.ndarray) else self.thresholds
        if isinstance(threshold, float) and threshold.is_integer():
            threshold = int(threshold)
        return value.as_py() if isinstance(value, pa.Scalar) else value.item(), threshold


@dataclass(slots=True)
class StepResult:
    """What a step made of a batch. For each step and batch: rows in + created = rows out + dropped + bad."""

    batch: pa.RecordBatch
    dropped: Mapping[str, int] = field(default_factory=dict)
    """How many records were dropped, by reason."""
    created: int = 0
    quarantined: list[QuarantinedRecord] = field(default_factory=list)
    counters: Mapping[str, int] = field(default_factory=dict)
    """What else the step has counted: tokens, literal special tokens."""
    codes: NDArray[np.uint8] | None = None
    """For each row that came in 0, or 1 + the index of the reason for which it was dropped: where the step can tell."""
    reasons: tuple[str, ...] = ()
    failed: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """For each rule the rows that break it, where the step tries all of them."""
    rule_values: Mapping[str, RuleValues] = field(default_factory=dict)
    """By rule what was compared with what, where the step compares numbers: says why a record was dropped."""


class SourceFile(msgspec.Struct, frozen=True, gc=False):
    """One input file, as it was when the job was planned.

    A struct, because there may be a million: a dataclass takes five times as long to make and seven times to pickle.
    """

    path: str
    """Where to open it: a local path or an fsspec URL."""
    relative: str
    """Its path below the source's root, with forward slashes: part of every record's identity."""
    num_bytes: int
    version: str
    """Changes when the content does: modification time, or the store's etag."""
    id: int
    """xxh3 of the source's name and `relative`: the `file` of its records' origins."""
    content: str = ""
    """xxh3 of its content, where the recipe says `identity: content`."""
    is_scanned: bool = False
    """Of a plain file of several units: it is CSV or a JSON array, so where to cut it is found in one pass over it."""
    split: str = ""
    """The split that its records are in; empty where the source has no splits."""

    @property
    def is_held_out(self) -> bool:
        return self.split not in ("", TRAIN)

    @property
    def identity(self) -> tuple[int, str, int, str, str]:
        """What decides whether work that was done on it still holds."""
        return self.id, self.relative, self.num_bytes, self.content or self.version, self.split


def make_origins(file: int | pa.Array, positions: pa.Array, parts: pa.Array | None = None) -> pa.StructArray:
    """The origin column of records of one file, or of the file that is given for each."""
    count = len(positions)
    files = pa.repeat(pa.scalar(file, pa.uint64()), count) if isinstance(file, int) else file
    if parts is None:
        parts = pa.repeat(pa.scalar(0, pa.uint32()), count)
    return pa.StructArray.from_arrays([files, positions.cast(pa.uint64()), parts], fields=list(ORIGIN_TYPE))


def is_for_training(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Whether each record is for training, and not held out."""
    if SPLIT not in batch.schema.names:
        return np.ones(batch.num_rows, dtype=np.bool_)
    found: NDArray[np.bool_] = pc.equal(batch.column(SPLIT), TRAIN).to_numpy(zero_copy_only=False)
    return found


def count_values(column: pa.Array) -> int:
    """Bytes of a column of texts, or values of a column of lists.

    >>> count_values(pa.array(["ab", "", "c"], pa.large_string())), count_values(pa.array([[1, 2], [3]]))
    (3, 3)
    """
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_list(column.type)
    offsets = column.buffers()[1]
    if not len(column) or offsets is None:
        return 0
    values = memoryview(offsets).cast("q" if wide else "i")
    return int(values[column.offset + len(column)] - values[column.offset])
