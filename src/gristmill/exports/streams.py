"""Export to one stream of token ids: nanoGPT's `.bin`, and llm.c's files, each with a header.

Both hold ids and nothing else, as uint16 or, for a vocabulary above 65536, as uint32: a document ends with its
end-of-document token. It may continue in the next file. llm.c tells the two types by the header: 20240520, version 1,
for its GPT-2, and 20240801, version 7, for its Llama 3.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import DamagedDatasetError
from gristmill.exports.layout import ExportFormat, PlannedFile
from gristmill.exports.tokens import (
    read_shard_batches,
    refuse_large_ids,
    refuse_masked,
    refuse_packed,
    refuse_untokenized,
    token_ids,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location

LLMC_TOKENS_A_FILE = 100_000_000
"""The file size of llm.c's own scripts; its header counts tokens in 31 bits."""
_LLMC_HEADER_BYTES = 256 * 4
_LLMC_KINDS = {2: (20240520, 1), 4: (20240801, 7)}
"""Magic and version of the header, by bytes of an id."""
_WRONG_VOCABULARY = "the dataset holds ids that its tokenizer does not have, or --vocab-size is too small"
_NANOGPT_NAMES = {"validation": "val"}


def stream_id_type(vocab_size: int) -> np.dtype[np.integer]:
    """Choose the type of ids: as narrow as the vocabulary allows, whatever ids a split happens to hold.

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
class NanogptLayout:
    """A `Layout` of one split: a file of ids without a header, in a folder: `train.bin`, `val.bin`."""

    split: str
    num_tokens: int
    vocab_size: int

    @property
    def files(self) -> Sequence[PlannedFile]:
        return [PlannedFile(self._name, stream_id_type(self.vocab_size).itemsize * self.num_tokens)]

    def later_names(self) -> Iterator[str]:
        return iter(())

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
class LlmcLayout:
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
