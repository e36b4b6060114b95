"""Export to the memory maps of OLMo-core: ids without a header, document borders, and which tokens are trained.

For local files OLMo-core ignores the stored borders: a document ends at each end token in the array. Chats have end
tokens inside (`<|im_end|>`), and documents that were cut have none. So unless each document ends with the tokenizer's
end token and has no other, all get a last token that occurs nowhere else and is not trained. The usage line names it.

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

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.exports.layout import (
    ExportFormat,
    Layout,
    PlannedFile,
    read_shard_batches,
    refuse_large_ids,
    refuse_packed,
    refuse_untokenized,
    token_ids,
)
from gristmill.shards.token_rows import CHATS, document_lengths
from gristmill.storage.parallel_files import sync_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.exports.layout import ExportSplit, ShardSize, ShardSlot, Targets
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.stored_files import TokenizerIdentity
    from gristmill.storage.locations import Location

_KINDS = ("token_ids", "csv", "labels_mask")


class OlmoCoreFormat(ExportFormat):
    """Memory maps of whole documents for OLMo-core."""

    name = "olmo-core"
    readable_stores = ("s3", "gs")
    counts_tokens = True
    depends_on_ids = True

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)
        refuse_packed(manifest, self.name, folder)

    def make_layout(self, split: ExportSplit) -> OlmoCoreLayout:
        assert split.dataset_size is not None  # the format counts tokens
        end_id, is_stored = choose_end_id(split.dataset_size, split.manifest.tokenizer, split.vocab_size)
        return OlmoCoreLayout(
            split.name,
            tuple(slot.tokens + (0 if is_stored else slot.rows) for slot in split.slots),
            split.vocab_size,
            is_masked=split.manifest.kind == CHATS,
            end_id=end_id,
            appends_end=not is_stored,
            pad_id=next((pad_id for pad_id in _list_special_ids(split.manifest.tokenizer) if pad_id != end_id), end_id),
            longest=split.dataset_size.longest + (not is_stored),
        )


def choose_end_id(size: ShardSize, tokenizer: TokenizerIdentity | None, vocab_size: int) -> tuple[int, bool]:
    """Choose the id that ends documents and occurs nowhere else, and tell whether the documents have it already."""
    special_ids = _list_special_ids(tokenizer)
    inner_ids, last_ids = set(size.inner_ids.tolist()), set(size.last_ids.tolist())
    if len(last_ids) == 1 and last_ids <= {*special_ids} - inner_ids:
        return last_ids.pop(), True
    for end_id in (*special_ids, *range(vocab_size - 1, -1, -1)):
        if end_id not in inner_ids and end_id not in last_ids:
            return end_id, False
    raise UsageError(
        "every id of the vocabulary occurs in the documents, and OLMo-core needs one that ends documents only",
        help="give a larger --vocab-size, if the model has room for another id",
    )


def _list_special_ids(tokenizer: TokenizerIdentity | None) -> list[int]:
    """List the ids of the end, padding and begin tokens that the tokenizer has."""
    ids = (tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_id) if tokenizer is not None else ()
    return [special_id for special_id in ids if special_id is not None]


def map_id_type(vocab_size: int) -> np.dtype[np.integer]:
    """Choose the type of ids as OLMo-core does.

    >>> map_id_type(256), map_id_type(257), map_id_type(100_278)
    (dtype('uint8'), dtype('uint16'), dtype('uint32'))
    """
    return np.dtype(np.uint8 if vocab_size <= 256 else np.uint16 if vocab_size <= 65536 else np.uint32)


@dataclass(frozen=True, slots=True)
class OlmoCoreLayout(Layout):
    """A `Layout` of one split: two or three files for each shard."""

    split: str
    tokens: tuple[int, ...]
    """The number of tokens in each shard."""
    vocab_size: int
    is_masked: bool
    end_id: int
    appends_end: bool
    pad_id: int
    longest: int
    """The number of tokens in the longest document."""

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
            ids, sizes = ids.astype(dtype, copy=False), document_lengths(batch.column(INPUT_IDS))
            ends = np.cumsum(sizes) if self.appends_end else np.empty(0, np.int64)
            targets.write(first, position * dtype.itemsize, np.insert(ids, ends, self.end_id))
            if self.is_masked:
                mask = batch.column(LOSS_MASK).flatten().to_numpy(zero_copy_only=False)
                targets.write(first + 2, position, np.insert(mask.astype(np.uint8), ends, 0))
            position += len(ids) + len(ends)
            lengths.append(sizes + self.appends_end)
        sizes = np.concatenate([np.empty(0, np.int64), *lengths])
        pairs = zip(sizes.tolist(), np.cumsum(sizes).tolist(), strict=True)
        borders = "".join(f"{end - size},{end}\n" for size, end in pairs if size)
        Path(targets.paths[first + 1]).write_bytes(gzip.compress(borders.encode(), mtime=0))
        sync_file(targets.paths[first + 1])

    def usage(self, prefix: str) -> str:
        masks = f', label_mask_paths=["{prefix}_{self.split}_labels_mask_part_*.npy"]' if self.is_masked else ""
        kind = "NumpyPackedFSLDatasetConfig" if self.is_masked else "NumpyFSLDatasetConfig"
        length = max(2048, 1 << (self.longest - 1).bit_length()) if self.is_masked else 2048
        tokenizer = f"vocab_size={self.vocab_size}, eos_token_id={self.end_id}, pad_token_id={self.pad_id}"
        paths = f'paths=["{prefix}_{self.split}_token_ids_part_*.npy"]{masks}, expand_glob=True'
        return f"{kind}(tokenizer=TokenizerConfig({tokenizer}), sequence_length={length}, {paths})"

    @property
    def _files_a_shard(self) -> int:
        return 3 if self.is_masked else 2

    def _name(self, number: int, kind: str) -> str:
        stem, suffix = ("token_ids", ".csv.gz") if kind == "csv" else (kind, ".npy")
        return f"_{self.split}_{stem}_part_{number:04d}{suffix}"
