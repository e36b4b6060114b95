"""Export to the memory maps of OLMo-core: ids without a header, document borders, and which tokens are trained.

| file of each shard | |
|---|---|
| `_train_token_ids_part_0000.npy` | ids, as narrow as the vocabulary allows, without NumPy's header |
| `_train_token_ids_part_0000.csv.gz` | `start,end` of each document, counted in tokens of its file |
| `_train_labels_mask_part_0000.npy` | for chats, a byte for each token: whether it is trained |
"""

from __future__ import annotations

import gzip
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.exports.layout import ExportFormat, PlannedFile
from gristmill.exports.tokens import (
    read_shard_batches,
    refuse_large_ids,
    refuse_packed,
    refuse_untokenized,
    token_ids,
)
from gristmill.shards.token_rows import CHATS, document_lengths
from gristmill.storage.preallocated import sync_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location

_KINDS = ("token_ids", "csv", "labels_mask")


class OlmoCoreFormat(ExportFormat):
    """Memory maps of whole documents for OLMo-core."""

    name = "olmo-core"
    counts_tokens = True

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)
        refuse_packed(manifest, self.name, folder)

    def make_layout(self, split: ExportSplit) -> OlmoCoreLayout:
        tokens = tuple(slot.tokens for slot in split.slots)
        return OlmoCoreLayout(split.name, tokens, split.vocab_size, is_masked=split.manifest.kind == CHATS)


def map_id_type(vocab_size: int) -> np.dtype[np.integer]:
    """Choose the type of ids as OLMo-core does.

    >>> map_id_type(256), map_id_type(257), map_id_type(100_278)
    (dtype('uint8'), dtype('uint16'), dtype('uint32'))
    """
    return np.dtype(np.uint8 if vocab_size <= 256 else np.uint16 if vocab_size <= 65536 else np.uint32)


@dataclass(frozen=True, slots=True)
class OlmoCoreLayout:
    """A `Layout` of one split: two or three files for each shard."""

    split: str
    tokens: tuple[int, ...]
    """The number of tokens in each shard."""
    vocab_size: int
    is_masked: bool

    @property
    def files(self) -> Sequence[PlannedFile]:
        id_bytes = map_id_type(self.vocab_size).itemsize
        planned = []
        for number, tokens in enumerate(self.tokens):
            sizes = (id_bytes * tokens, None, tokens)[: self._files_a_shard]
            planned += [PlannedFile(self._name(number, kind), size) for kind, size in zip(_KINDS, sizes, strict=False)]
        return planned

    def later_names(self) -> Iterator[str]:
        return (self._name(number, kind) for number in itertools.count(len(self.tokens)) for kind in _KINDS)

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        first = slot.number * self._files_a_shard
        dtype = map_id_type(self.vocab_size).newbyteorder("<")
        position, lengths = 0, []
        for batch in read_shard_batches(slot):
            ids = token_ids(batch)
            refuse_large_ids(ids, dtype, slot.path, "the dataset holds ids that its vocabulary does not have")
            targets.write(first, position * dtype.itemsize, ids.astype(dtype, copy=False))
            if self.is_masked:
                mask = batch.column(LOSS_MASK).flatten().to_numpy(zero_copy_only=False)
                targets.write(first + 2, position, mask.astype(np.uint8))
            position += len(ids)
            lengths.append(document_lengths(batch.column(INPUT_IDS)))
        _write_borders(targets.paths[first + 1], np.concatenate([np.empty(0, np.int64), *lengths]))

    def usage(self, prefix: str) -> str:
        masks = f', label_mask_paths=["{prefix}_{self.split}_labels_mask_part_*.npy"]' if self.is_masked else ""
        return f'NumpyFSLDatasetConfig(paths=["{prefix}_{self.split}_token_ids_part_*.npy"]{masks}, expand_glob=True)'

    @property
    def _files_a_shard(self) -> int:
        return 3 if self.is_masked else 2

    def _name(self, number: int, kind: str) -> str:
        stem, suffix = ("token_ids", ".csv.gz") if kind == "csv" else (kind, ".npy")
        return f"_{self.split}_{stem}_part_{number:04d}{suffix}"


def _write_borders(path: str, lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    ends = np.cumsum(lengths)
    lines = "".join(f"{end - size},{end}\n" for size, end in zip(lengths.tolist(), ends.tolist(), strict=True) if size)
    Path(path).write_bytes(gzip.compress(lines.encode(), mtime=0))
    sync_file(path)
