"""One stream of token ids without gaps: nanoGPT's `.bin` and, behind a header and cut into files, llm.c's.

Both hold uint16 and nothing else: documents end where their end-of-document token says so. A document may go on in the
next file.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import DamagedDatasetError
from gristmill.exports.layout import PlannedFile
from gristmill.exports.tokens import refuse_large_ids, shard_batches, token_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.exports.layout import Place, Targets

LLMC_TOKENS_A_FILE = 100_000_000
"""As llm.c's own scripts cut theirs; its header counts tokens in 31 bits."""
_LLMC_HEADER_BYTES = 256 * 4
_LLMC_MAGIC, _LLMC_VERSION = 20240520, 1
_USE_WIDER = "these files hold uint16: use --to megatron or --to numpy, or a tokenizer of at most 65536 tokens"


@dataclass(frozen=True, slots=True)
class TokenStream:
    """Where the tokens of a split stand: `tokens_a_file` in each file, behind `head_bytes`."""

    dtype: np.dtype[np.integer]
    tokens_a_file: int
    head_bytes: int = 0
    help: str = _USE_WIDER

    def write(self, place: Place, targets: Targets) -> None:
        """Write the tokens of one shard."""
        position = place.first_token
        for batch in shard_batches(place):
            ids = token_ids(batch)
            refuse_large_ids(ids, self.dtype, place.path, self.help)
            ids = ids.astype(self.dtype.newbyteorder("<"), copy=False)
            while len(ids):
                number, start = divmod(position, self.tokens_a_file)
                part = ids[: self.tokens_a_file - start]
                targets.write(number, self.head_bytes + start * self.dtype.itemsize, part)
                position += len(part)
                ids = ids[len(part) :]
        if position != place.first_token + place.tokens:
            raise DamagedDatasetError(f"{place.path} has changed while it was exported", help="export it again")


@dataclass(frozen=True, slots=True)
class NanogptLayout:
    """One file of ids without a header."""

    split: str
    num_tokens: int

    @property
    def files(self) -> Sequence[PlannedFile]:
        return [PlannedFile(f"_{self.split}.bin", 2 * self.num_tokens)]

    def later_names(self) -> Iterator[str]:
        return iter(())

    def fill(self, place: Place, targets: Targets) -> None:
        TokenStream(np.dtype(np.uint16), self.num_tokens).write(place, targets)

    def usage(self, prefix: str) -> str:
        return f'np.memmap("{prefix}_{self.split}.bin", dtype=np.uint16, mode="r")'


@dataclass(frozen=True, slots=True)
class LlmcLayout:
    """Files of 100 million ids, each behind a header of 256 numbers that begins with magic, version and count."""

    split: str
    num_tokens: int
    tokens_a_file: int = LLMC_TOKENS_A_FILE

    @property
    def files(self) -> Sequence[PlannedFile]:
        planned = []
        for number, first in enumerate(range(0, self.num_tokens, self.tokens_a_file)):
            count = min(self.tokens_a_file, self.num_tokens - first)
            header = np.zeros(256, dtype="<i4")
            header[:3] = _LLMC_MAGIC, _LLMC_VERSION, count
            planned.append(PlannedFile(self._name(number), _LLMC_HEADER_BYTES + 2 * count, header.tobytes()))
        return planned

    def later_names(self) -> Iterator[str]:
        return map(self._name, itertools.count(len(self.files)))

    def fill(self, place: Place, targets: Targets) -> None:
        TokenStream(np.dtype(np.uint16), self.tokens_a_file, _LLMC_HEADER_BYTES).write(place, targets)

    def usage(self, prefix: str) -> str:
        option = "-i" if self.split == "train" else "-j"
        return f'train_gpt2cu {option} "{prefix}_{self.split}_*.bin"'

    def _name(self, number: int) -> str:
        return f"_{self.split}_{number:06d}.bin"
