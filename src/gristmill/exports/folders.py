"""Export to folders of numbered files and an index: for mosaicml-streaming, litdata and LLaMA-Factory.

| `--to` | a sample is |
|---|---|
| `mds` | a packed row: `input_ids`, `labels` (-100 where a token is not trained) and `position_ids` as int32 |
| `litdata` | a row, or a document if the dataset is not packed, as uint16 or int32, for `TokensLoader(block_size=…)` |
| `llamafactory` | a row with the columns that LLaMA-Factory makes, in a `DatasetDict` of `datasets.save_to_disk` |

MDS and litdata begin a file with uint32 numbers: how many samples it holds, where each begins, and where the last one
ends. In MDS a description of the columns follows. So a file holds less than 4 GiB.

LLaMA-Factory takes the folder as `tokenized_path`. Its columns are `input_ids`, `attention_mask`, `labels`, and empty
`images`, `videos` and `audios`. In packed rows `attention_mask` holds the number of each token's document, from 1, and
0 on padding, as with its `neat_packing: true`, which must be set: it keeps tokens from seeing other documents.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS
from gristmill.exports.layout import (
    ExportFormat,
    Layout,
    PlannedFile,
    find_row_length,
    read_shard_batches,
    refuse_large_ids,
    refuse_masked,
    refuse_unpacked,
    refuse_untokenized,
    token_ids,
)
from gristmill.exports.training import LLAMAFACTORY, TRANSFORMERS, make_training_rows, training_schema
from gristmill.shards.derived_files import make_info, make_state
from gristmill.shards.token_rows import LENGTHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location


_FILE_LIMIT = 1 << 32
_SIZE_LIMIT = 1 << 26
"""What both tools note as the limit of a file by default. Readers ignore it."""
_MDS_COLUMNS = (INPUT_IDS, "labels", "position_ids")


class MdsFormat(ExportFormat):
    """MDS shards of packed rows, for mosaicml-streaming."""

    name = "mds"
    readable_stores = ("s3", "gs")
    folder_suffixes = (".mds", ".json")

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)
        refuse_unpacked(manifest, self.name, folder)

    def make_layout(self, split: ExportSplit) -> MdsLayout:
        return MdsLayout(split.name, tuple(slot.rows for slot in split.slots), find_row_length(split.manifest) or 0)


@dataclass(frozen=True, slots=True)
class MdsLayout(Layout):
    """A `Layout` of one split: a file for each shard, and the index."""

    split: str
    rows: tuple[int, ...]
    """The number of rows in each shard."""
    row_length: int

    @property
    def files(self) -> Sequence[PlannedFile]:
        shards = []
        planned = []
        for number, rows in enumerate(self.rows):
            head = self._make_head(rows)
            num_bytes = _check_size(len(head) + rows * self._row_bytes)
            name = f"shard.{number:05d}.mds"
            planned.append(PlannedFile(f"{self.split}/{name}", num_bytes, head))
            file = {"basename": name, "bytes": num_bytes, "hashes": {}}
            shards.append({**self._describe_columns(), "raw_data": file, "samples": rows, "zip_data": None})
        return [*planned, _plan_index(self.split, {"shards": shards, "version": 2})]

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        offset = len(self._make_head(slot.rows))
        for batch in read_shard_batches(slot):
            stored, shape = make_training_rows(batch, TRANSFORMERS), (batch.num_rows, self.row_length)
            ids, labels = (stored.column(name).flatten().to_numpy().reshape(shape) for name in (INPUT_IDS, "labels"))
            # A row's columns follow one another.
            rows = np.stack([ids, labels, _find_positions(batch, self.row_length)], axis=1)
            targets.write(slot.number, offset, rows)
            offset += rows.nbytes

    def usage(self, prefix: str) -> str:
        place = "remote" if "://" in prefix else "local"
        return f'streaming.StreamingDataset({place}="{prefix}{self.split}", batch_size=8)'

    @property
    def _row_bytes(self) -> int:
        return 4 * self.row_length * len(_MDS_COLUMNS)

    def _make_head(self, rows: int) -> bytes:
        description = json.dumps(self._describe_columns(), sort_keys=True).encode()
        first = 4 * (rows + 2) + len(description)
        numbers = np.concatenate([[rows], first + self._row_bytes * np.arange(rows + 1)])
        return numbers.astype("<u4").tobytes() + description

    def _describe_columns(self) -> dict[str, Any]:
        return {
            "column_encodings": [f"ndarray:int32:{self.row_length}"] * len(_MDS_COLUMNS),
            "column_names": list(_MDS_COLUMNS),
            "column_sizes": [4 * self.row_length] * len(_MDS_COLUMNS),
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": _SIZE_LIMIT,
            "version": 2,
        }


class LitdataFormat(ExportFormat):
    """Chunks of tokens for litdata's `TokensLoader`."""

    name = "litdata"
    readable_stores = ("s3", "gs")
    folder_suffixes = (".bin", ".json")
    counts_tokens = True

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)
        refuse_masked(manifest, self.name, folder)

    def make_layout(self, split: ExportSplit) -> LitdataLayout:
        sizes = tuple((slot.rows, slot.tokens) for slot in split.slots)
        return LitdataLayout(split.name, sizes, split.vocab_size, find_row_length(split.manifest))


@dataclass(frozen=True, slots=True)
class LitdataLayout(Layout):
    """A `Layout` of one split: a file for each shard, and the index."""

    split: str
    sizes: tuple[tuple[int, int], ...]
    """The rows and the tokens of each shard."""
    vocab_size: int
    row_length: int | None

    @property
    def files(self) -> Sequence[PlannedFile]:
        chunks, planned = [], []
        for number, (rows, tokens) in enumerate(self.sizes):
            num_bytes = _check_size(4 * (rows + 2) + self._dtype.itemsize * tokens)
            name = f"chunk-0-{number}.bin"
            planned.append(PlannedFile(f"{self.split}/{name}", num_bytes))
            chunks.append({"chunk_bytes": num_bytes, "chunk_size": rows, "dim": tokens, "filename": name})
        config = {
            "chunk_bytes": _SIZE_LIMIT,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_tensor:{20 if self._dtype.itemsize == 2 else 15}"],
            "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
            "encryption": None,
            "item_loader": "TokensLoader",
        }
        return [*planned, _plan_index(self.split, {"chunks": chunks, "config": config, "updated_at": "0"})]

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        first = 4 * (slot.rows + 2)
        position, lengths = 0, [np.empty(0, np.int64)]
        for batch in read_shard_batches(slot):
            ids = token_ids(batch)
            refuse_large_ids(ids, self._dtype, slot.path, "the dataset holds ids that its vocabulary does not have")
            targets.write(slot.number, first + position * self._dtype.itemsize, ids.astype(self._dtype, copy=False))
            position += len(ids)
            lengths.append(batch.column(INPUT_IDS).value_lengths().to_numpy().astype(np.int64))
        ends = np.cumsum(np.concatenate(lengths)) * self._dtype.itemsize
        targets.write(slot.number, 0, np.concatenate([[slot.rows, first], first + ends]).astype("<u4"))

    def usage(self, prefix: str) -> str:
        block = self.row_length or 2049
        return f'litdata.StreamingDataset("{prefix}{self.split}", item_loader=litdata.TokensLoader(block_size={block}))'

    @property
    def _dtype(self) -> np.dtype[np.integer]:
        return np.dtype("<u2" if self.vocab_size <= 65536 else "<i4")


def _find_positions(batch: pa.RecordBatch, row_length: int) -> NDArray[np.int32]:
    """Return the position of each token in its document; padding counts as another document."""
    lengths = batch.column(LENGTHS)
    starts = np.zeros((batch.num_rows, row_length), dtype=np.int64)
    rows = np.repeat(np.arange(batch.num_rows), lengths.value_lengths().to_numpy())
    sizes = lengths.flatten().to_numpy().astype(np.int64)
    ends = np.cumsum(sizes)
    filled = np.bincount(rows, weights=sizes, minlength=batch.num_rows).astype(np.int64)
    ends -= (np.cumsum(filled) - filled)[rows]
    is_inside = ends < row_length  # the end of one document is the start of the next, or of the padding
    starts[rows[is_inside], ends[is_inside]] = ends[is_inside]
    positions: NDArray[np.int64] = np.arange(row_length) - np.maximum.accumulate(starts, axis=1)
    return positions.astype(np.int32)


def _plan_index(split: str, index: dict[str, Any]) -> PlannedFile:
    content = json.dumps(index).encode()
    return PlannedFile(f"{split}/index.json", len(content), content)


def _check_size(num_bytes: int) -> int:
    if num_bytes >= _FILE_LIMIT:
        raise UsageError(
            f"a shard would become a file of {num_bytes:,} bytes, and the format counts them in 32 bits",
            help="make the dataset with a smaller unit_bytes",
        )
    return num_bytes


_EMPTY = ("images", "videos", "audios")


class LlamafactoryFormat(ExportFormat):
    """A `DatasetDict` on disk with the columns of LLaMA-Factory."""

    name = LLAMAFACTORY
    folder_suffixes = (".arrow", ".json")

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)

    def make_layout(self, split: ExportSplit) -> LlamafactoryLayout:
        manifest = split.manifest
        is_packed = find_row_length(manifest) is not None
        return LlamafactoryLayout(split.name, len(split.slots), manifest.dataset_hash, is_packed=is_packed)

    def make_common_files(self, splits: Sequence[ExportSplit]) -> Sequence[PlannedFile]:
        content = json.dumps({"splits": [split.name for split in splits]}).encode()
        return [PlannedFile("dataset_dict.json", len(content), content)]


@dataclass(frozen=True, slots=True)
class LlamafactoryLayout(Layout):
    """A `Layout` of one split: an Arrow file for each shard, and the two files that name them."""

    split: str
    num_files: int
    dataset_hash: str
    is_packed: bool

    @property
    def files(self) -> Sequence[PlannedFile]:
        names = [f"data-{number:05d}-of-{self.num_files:05d}.arrow" for number in range(self.num_files)]
        state = make_state(self.split, names, self.dataset_hash)
        side_files = {f"{self.split}/state.json": state, f"{self.split}/dataset_info.json": make_info()}
        return [
            *(PlannedFile(f"{self.split}/{name}") for name in names),
            *(PlannedFile(name, len(content), content) for name, content in side_files.items()),
        ]

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        schema = training_schema(LLAMAFACTORY, slot.schema)
        for name in _EMPTY:
            schema = schema.append(pa.field(name, pa.null()))
        with Path(targets.paths[slot.number]).open("wb") as file:
            with pa.ipc.new_stream(file, schema) as writer:
                for batch in read_shard_batches(slot):
                    rows = make_training_rows(batch, LLAMAFACTORY)
                    empty = [pa.nulls(rows.num_rows)] * len(_EMPTY)
                    writer.write_batch(pa.RecordBatch.from_arrays([*rows.columns, *empty], schema=schema))
            file.flush()
            os.fsync(file.fileno())

    def usage(self, prefix: str) -> str:
        packed = "  # with neat_packing: true" if self.is_packed else ""
        return f"tokenized_path: {prefix.rstrip('/')}{packed}"
