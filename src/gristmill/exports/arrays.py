"""Export to NumPy arrays of packed rows: input, target and mask, each of shape `(rows, row_length - 1)`.

    input  = ids[:, :-1]
    target = ids[:, 1:]
    mask   = the target is a token of the same document as the input (and trained, where there is a loss mask)

So neither padding nor the first token of a document is ever trained.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.exports.layout import ExportFormat, PlannedFile
from gristmill.exports.tokens import read_shard_batches, refuse_untokenized, token_ids
from gristmill.shards.token_rows import CHATS, LENGTHS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location

_NAMES = ("input", "target", "mask")
_BYTES_AT_A_TIME = 8 << 20


class ArraysFormat(ExportFormat):
    """NumPy arrays of packed rows."""

    name = "numpy"

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)
        if not pa.types.is_fixed_size_list(manifest.schema.to_arrow().field(INPUT_IDS).type):
            alternatives = "parquet or jsonl" if manifest.kind == CHATS else "megatron, nanogpt or llmc"
            raise UsageError(
                f"{folder} is not packed: its rows differ in length, and an array has rows of one length",
                help=f"add `- pack: {{row_length: 2048}}` to the recipe, or export to {alternatives}",
            )

    def make_layout(self, split: ExportSplit) -> ArraysLayout:
        ids = split.schema.field(INPUT_IDS).type
        return ArraysLayout(split.name, split.num_rows, ids.list_size, str(ids.value_type))


@dataclass(frozen=True, slots=True)
class ArraysLayout:
    """A `Layout` of one split: three `.npy` files, in which ids keep their type."""

    split: str
    num_rows: int
    row_length: int
    id_type: str

    @property
    def files(self) -> Sequence[PlannedFile]:
        planned = []
        for name, dtype in zip(_NAMES, self._dtypes, strict=True):
            head = self._make_head(dtype)
            num_bytes = len(head) + self.num_rows * (self.row_length - 1) * dtype.itemsize
            planned.append(PlannedFile(f"_{self.split}_{name}.npy", num_bytes, head))
        return planned

    def later_names(self) -> Iterator[str]:
        return iter(())

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        row = slot.first_row
        step = max(1, _BYTES_AT_A_TIME // (4 * self.row_length))
        for batch in read_shard_batches(slot):
            for start in range(0, batch.num_rows, step):
                rows = batch.slice(start, step)
                ids = token_ids(rows).reshape(-1, self.row_length)
                for number, values in enumerate((ids[:, :-1], ids[:, 1:], find_trained_targets(rows, self.row_length))):
                    dtype = self._dtypes[number]
                    offset = len(self._make_head(dtype)) + row * (self.row_length - 1) * dtype.itemsize
                    targets.write(number, offset, values.astype(dtype, copy=False))
                row += rows.num_rows

    def usage(self, prefix: str) -> str:
        return f'np.load("{prefix}_{self.split}_input.npy", mmap_mode="r")  # and _target, _mask'

    @property
    def _dtypes(self) -> tuple[np.dtype[np.generic], ...]:
        ids = np.dtype(self.id_type).newbyteorder("<")
        return ids, ids, np.dtype(np.bool_)

    def _make_head(self, dtype: np.dtype[np.generic]) -> bytes:
        head = io.BytesIO()
        shape = (self.num_rows, self.row_length - 1)
        description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(head, description)
        return head.getvalue()


def find_trained_targets(batch: pa.RecordBatch, row_length: int) -> NDArray[np.bool_]:
    """Tell for each target of packed rows whether it is trained."""
    lengths = batch.column(LENGTHS)
    documents_a_row = np.diff(lengths.offsets.to_numpy())
    sizes = lengths.flatten().to_numpy().astype(np.int64)
    ends = np.cumsum(sizes)
    rows = np.repeat(np.arange(batch.num_rows), documents_a_row)
    num_filled = np.bincount(rows, weights=sizes, minlength=batch.num_rows).astype(np.int64)
    mask: NDArray[np.bool_] = np.arange(row_length) < num_filled[:, None]
    row_starts = np.cumsum(num_filled) - num_filled
    mask[rows, ends - sizes - row_starts[rows]] = False  # the first token of each document
    if LOSS_MASK in batch.schema.names:
        loss_mask = batch.column(LOSS_MASK).flatten().to_numpy(zero_copy_only=False)
        mask &= loss_mask.reshape(-1, row_length)
    return mask[:, 1:]
