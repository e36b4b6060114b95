"""Export for Megatron: its indexed dataset of documents, and the packed Parquet files of Megatron-Bridge.

The indexed dataset is `.bin` (the ids of documents) and `.idx` (where each begins), byte for byte as Megatron writes
it. `.idx`, little-endian, without gaps, for S documents of one sequence each:

    0   9 bytes  "MMIDIDX" 0 0
    9   u64      version 1
    17  u8       type of the ids: 8 for uint16, 4 for int32 (there is none for uint32)
    18  u64      S
    26  u64      S + 1
    34  i32[S]   tokens of each sequence
        i64[S]   byte in `.bin` at which it begins
        i64[S+1] the first sequence of each document, and S

A document without tokens is a sequence without tokens. The format holds no loss mask and no origins.

Megatron-Bridge and the Nemotron recipes read `*.idx.parquet`. A row is `input_ids` (without padding), `loss_mask` (1
where the next token of the same document is trained) and `seq_start_id` (where documents begin). The reader keeps one
row group in memory, so they are small: 500 rows.

It shifts the labels in each document, so the inputs of a document are one token shorter than what is stored.
If the dataset was packed with `align`, the inputs are padded to a multiple of it, as context parallelism needs it: with
the end token, because the reader takes end tokens at the end of a document for padding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS
from gristmill.exports.arrays import TokenStream, TokenStreamFormat
from gristmill.exports.layout import (
    Layout,
    PlannedFile,
    find_align,
    read_shard_batches,
    refuse_unpacked,
    refuse_untokenized,
)
from gristmill.exports.tables import ParquetTables, TablesLayout
from gristmill.exports.training import MEGATRON_BRIDGE
from gristmill.shards.formats.shard_format import ShardFormat
from gristmill.shards.token_rows import document_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location


_HEAD = struct.Struct("<9sQBQQ")
_TYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}
_MAX_DOCUMENTS = 2**31 - 1  # Megatron counts them in int32
_IDX = 1
"""The number of the index among the files of a split."""
_ROW_GROUP_ROWS = 500


def id_type(vocab_size: int) -> np.dtype[np.integer]:
    """Megatron's own rule: uint16 for a vocabulary of less than 65500, else int32.

    Its reader takes the type from the file; but with `--per-dataset-sequences-path` it uses int32 above 65536:
    from 65500 to 65536 Megatron misreads what Megatron has written.

    >>> id_type(65499), id_type(65500)
    (dtype('uint16'), dtype('int32'))
    """
    return np.dtype(np.uint16 if vocab_size < 65500 else np.int32)


class MegatronFormat(TokenStreamFormat):
    """Megatron's indexed dataset, one for each split. Megatron shuffles documents when it loads them."""

    name = "megatron"
    readable_stores = ("s3",)
    shuffles_documents = True

    def make_layout(self, split: ExportSplit) -> MegatronLayout:
        return MegatronLayout(split.name, split.num_rows, split.num_tokens, split.vocab_size)


@dataclass(frozen=True, slots=True)
class MegatronLayout(Layout):
    """A `Layout` of one split. The index is the last file: without it, Megatron ignores the data."""

    split: str
    num_documents: int
    num_tokens: int
    vocab_size: int
    """The vocabulary size with added tokens."""

    def __post_init__(self) -> None:
        if self.num_documents > _MAX_DOCUMENTS:
            raise UsageError(
                f"{self.split} has {self.num_documents} documents; Megatron takes {_MAX_DOCUMENTS} a prefix",
                help="export its sources one by one, with --source, to several prefixes",
            )

    @property
    def files(self) -> Sequence[PlannedFile]:
        kind, count = id_type(self.vocab_size), self.num_documents
        head = _HEAD.pack(b"MMIDIDX\0\0", 1, _TYPE_CODES[kind], count, count + 1)
        return [
            PlannedFile(f"_{self.split}.bin", kind.itemsize * self.num_tokens),
            PlannedFile(f"_{self.split}.idx", _HEAD.size + 20 * count + 8, head),
        ]

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        kind = id_type(self.vocab_size)
        advice = f"a vocabulary of {self.vocab_size} makes Megatron use {kind}: give the right --vocab-size"
        TokenStream(kind, self.num_tokens, help=advice).write(slot, targets)
        row, token = slot.first_row, slot.first_token
        starts_at = _HEAD.size + 4 * self.num_documents
        documents_at = starts_at + 8 * self.num_documents
        for batch in read_shard_batches(slot):
            lengths = document_lengths(batch.column(INPUT_IDS))
            starts = (token + np.cumsum(lengths) - lengths) * kind.itemsize
            targets.write(_IDX, _HEAD.size + 4 * row, lengths.astype("<i4"))
            targets.write(_IDX, starts_at + 8 * row, starts.astype("<i8"))
            # Each shard also writes the entry after its last document: the next shard's first, or S itself.
            targets.write(_IDX, documents_at + 8 * row, np.arange(row, row + len(lengths) + 1, dtype="<i8"))
            row, token = row + len(lengths), token + int(lengths.sum())

    def usage(self, prefix: str) -> str:
        stored = " --object-storage-cache-path CACHE --no-mmap-bin-files" if "://" in prefix else ""
        return f"--data-path {prefix}_{self.split}{stored}"


class MegatronBridgeFormat(ParquetTables):
    """Parquet files of packed rows for supervised fine-tuning with Megatron-Bridge."""

    name = MEGATRON_BRIDGE
    takes_columns = False
    readable_stores = ()
    pads_documents = True

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)
        refuse_unpacked(manifest, self.name, folder)
        if find_align(manifest) > 1 and _find_end_id(manifest) is None:
            raise UsageError(
                f"{folder} was packed with align, but its tokenizer has no end token: Megatron-Bridge recognizes "
                "padding by it",
                help="run the recipe with a tokenizer that names its end token, or without align",
            )

    def make_layout(self, split: ExportSplit) -> MegatronBridgeLayout:
        return MegatronBridgeLayout(
            split.name,
            ShardFormat.of("parquet"),
            len(split.slots),
            split.schema,
            split.manifest.format,
            is_tokens=True,
            columns=MEGATRON_BRIDGE,
            row_group_rows=split.row_group_rows or _ROW_GROUP_ROWS,
            infix=".idx",
            align=find_align(split.manifest),
            pad_id=_find_end_id(split.manifest) or 0,
            row_length=split.manifest.row_length or 0,
        )


@dataclass(frozen=True, slots=True)
class MegatronBridgeLayout(TablesLayout):
    """A `Layout` of one split: tables that Megatron-Bridge reads as rows that were packed before training."""

    row_length: int = 0

    def usage(self, prefix: str) -> str:
        key = "packed_train_data_path" if self.split == "train" else "packed_val_data_path"
        padding = f", pad_seq_to_mult={self.align}" if self.align > 1 else ""
        paths = f'{key}="{prefix}_{self.split}-*.idx.parquet"'
        return f"PackedSequenceSpecs(packed_sequence_size={self.row_length}{padding}, {paths})"


def _find_end_id(manifest: Manifest) -> int | None:
    return manifest.tokenizer.eos_id if manifest.tokenizer is not None else None
