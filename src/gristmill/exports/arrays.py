"""Export to plain arrays: NumPy arrays of packed rows, and one stream of token ids for nanoGPT and llm.c.

NumPy arrays are input, target and mask, each of shape `(rows, row_length - 1)`:

    input  = ids[:, :-1]
    target = ids[:, 1:]
    mask   = the target is a token of the same document as the input (and trained, where there is a loss mask)

So neither padding nor the first token of a document is ever trained.

A stream holds ids and nothing else, as uint16 or, for a vocabulary above 65536, as uint32: a document ends with its
end-of-document token. It may continue in the next file. llm.c distinguishes the two types by the header: 20240520,
version 1, for its GPT-2, and 20240801, version 7, for its Llama 3.
"""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.exports.layout import (
    ExportFormat,
    Layout,
    PlannedFile,
    read_shard_batches,
    refuse_large_ids,
    refuse_masked,
    refuse_packed,
    refuse_untokenized,
    token_ids,
)
from gristmill.shards.token_rows import CHATS, LENGTHS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location


LLMC_TOKENS_A_FILE = 100_000_000
"""The file size of llm.c's own scripts; its header counts tokens in 31 bits."""
_LLMC_HEADER_BYTES = 256 * 4
_LLMC_KINDS = {2: (20240520, 1), 4: (20240801, 7)}
"""Magic and version of the header, by bytes of an id."""
_WRONG_VOCABULARY = "the dataset holds ids that its tokenizer does not have, or --vocab-size is too small"
_NANOGPT_NAMES = {"validation": "val"}
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
class ArraysLayout(Layout):
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


def stream_id_type(vocab_size: int) -> np.dtype[np.integer]:
    """Choose the type of ids: as narrow as the vocabulary allows. The ids of a split do not matter.

    >>> stream_id_type(65536), stream_id_type(65537)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype(np.uint16 if vocab_size <= 65536 else np.uint32)


@dataclass(frozen=True, slots=True)
class TokenStream:
    """The tokens of a split: `tokens_a_file` in each file, after `head_bytes`."""

    dtype: np.dtype[np.integer]
    tokens_a_file: int
    head_bytes: int = 0
    help: str = _WRONG_VOCABULARY

    def write(self, slot: ShardSlot, targets: Targets) -> None:
        """Write the tokens of one shard."""
        position = slot.first_token
        for batch in read_shard_batches(slot):
            ids = token_ids(batch)
            refuse_large_ids(ids, self.dtype, slot.path, self.help)
            ids = ids.astype(self.dtype.newbyteorder("<"), copy=False)
            while len(ids):
                number, start = divmod(position, self.tokens_a_file)
                piece = ids[: self.tokens_a_file - start]
                targets.write(number, self.head_bytes + start * self.dtype.itemsize, piece)
                position += len(piece)
                ids = ids[len(piece) :]
        if position != slot.first_token + slot.tokens:
            raise DamagedDatasetError(f"{slot.path} changed while it was exported", help="export it again")


class TokenStreamFormat(ExportFormat):
    """A format that takes whole documents in order and stores nothing but their ids."""

    counts_tokens = True

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)
        refuse_masked(manifest, self.name, folder)
        refuse_packed(manifest, self.name, folder)


class NanogptFormat(TokenStreamFormat):
    """nanoGPT's folder of `train.bin` and `val.bin`."""

    name = "nanogpt"
    folder_suffixes = (".bin",)

    def make_layout(self, split: ExportSplit) -> NanogptLayout:
        return NanogptLayout(split.name, split.num_tokens, split.vocab_size)


class LlmcFormat(TokenStreamFormat):
    """llm.c's numbered files of up to 100 million ids."""

    name = "llmc"

    def make_layout(self, split: ExportSplit) -> LlmcLayout:
        return LlmcLayout(split.name, split.num_tokens, split.vocab_size)


@dataclass(frozen=True, slots=True)
class NanogptLayout(Layout):
    """A `Layout` of one split: a file of ids without a header, in a folder: `train.bin`, `val.bin`."""

    split: str
    num_tokens: int
    vocab_size: int

    @property
    def files(self) -> Sequence[PlannedFile]:
        return [PlannedFile(self._name, stream_id_type(self.vocab_size).itemsize * self.num_tokens)]

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        TokenStream(stream_id_type(self.vocab_size), self.num_tokens).write(slot, targets)

    def usage(self, prefix: str) -> str:
        kind = stream_id_type(self.vocab_size)
        note = "  # nanoGPT's train.py expects uint16: change it there" if kind.itemsize > 2 else ""
        return f'np.memmap("{prefix}{self._name}", dtype=np.{kind}, mode="r"){note}'

    @property
    def _name(self) -> str:
        return f"{_NANOGPT_NAMES.get(self.split, self.split)}.bin"


@dataclass(frozen=True, slots=True)
class LlmcLayout(Layout):
    """A `Layout` of one split: files of 100 million ids.

    Each begins with a header of 256 numbers, the first of which are magic, version and count.
    """

    split: str
    num_tokens: int
    vocab_size: int
    tokens_a_file: int = LLMC_TOKENS_A_FILE

    @property
    def files(self) -> Sequence[PlannedFile]:
        id_bytes = stream_id_type(self.vocab_size).itemsize
        magic, version = _LLMC_KINDS[id_bytes]
        planned = []
        for number, first in enumerate(range(0, self.num_tokens, self.tokens_a_file)):
            count = min(self.tokens_a_file, self.num_tokens - first)
            header = np.zeros(256, dtype="<i4")
            header[:3] = magic, version, count
            planned.append(PlannedFile(self._name(number), _LLMC_HEADER_BYTES + id_bytes * count, header.tobytes()))
        return planned

    def later_names(self) -> Iterator[str]:
        return map(self._name, itertools.count(len(self.files)))

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        TokenStream(stream_id_type(self.vocab_size), self.tokens_a_file, _LLMC_HEADER_BYTES).write(slot, targets)

    def usage(self, prefix: str) -> str:
        program, train_option, other_option = "train_gpt2cu", "-i", "-j"
        if stream_id_type(self.vocab_size).itemsize > 2:
            program, train_option, other_option = "python train_llama3.py", "--input_bin", "--input_val_bin"
        option = train_option if self.split == "train" else other_option
        return f'{program} {option} "{prefix}_{self.split}_*.bin"'

    def _name(self, number: int) -> str:
        return f"_{self.split}_{number:06d}.bin"
