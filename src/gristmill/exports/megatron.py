"""Export to Megatron's indexed dataset: `.bin` (the ids of documents) and `.idx` (where each begins), byte for byte.

`.idx`, little-endian, without gaps, for S documents of one sequence each:

    0   9 bytes  "MMIDIDX" 0 0
    9   u64      version 1
    17  u8       type of the ids: 8 for uint16, 4 for int32 (there is none for uint32)
    18  u64      S
    26  u64      S + 1
    34  i32[S]   tokens of each sequence
        i64[S]   byte in `.bin` at which it begins
        i64[S+1] the first sequence of each document, and S

A document without tokens is a sequence without tokens. The format holds no loss mask and no origins.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS
from gristmill.exports.layout import PlannedFile
from gristmill.exports.streams import TokenStream, TokenStreamFormat
from gristmill.exports.tokens import read_shard_batches
from gristmill.shards.token_rows import document_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets

_HEAD = struct.Struct("<9sQBQQ")
_TYPE_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}
_MAX_DOCUMENTS = 2**31 - 1  # Megatron counts them in int32
_BIN, _IDX = 0, 1


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
    shuffles_documents = True

    def make_layout(self, split: ExportSplit) -> MegatronLayout:
        return MegatronLayout(split.name, split.num_rows, split.num_tokens, split.vocab_size)


@dataclass(frozen=True, slots=True)
class MegatronLayout:
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

    def later_names(self) -> Iterator[str]:
        return iter(())

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
        return f"--data-path {prefix}_{self.split}"
