"""Export to the folder that LLaMA-Factory takes as `tokenized_path`: a `DatasetDict` of `datasets.save_to_disk`.

The columns are those of its own tokenizing: `input_ids`, `attention_mask`, `labels`, and empty `images`, `videos` and
`audios`. In packed rows `attention_mask` holds the number of each token's document, from 1, and 0 on padding, as with
its `neat_packing: true`, which must be set: it keeps tokens from seeing other documents.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.exports.layout import ExportFormat, PlannedFile
from gristmill.exports.tokens import find_row_length, read_shard_batches, refuse_untokenized
from gristmill.exports.training import LLAMAFACTORY, make_training_rows, training_schema
from gristmill.shards.hugging_face import make_info, make_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location

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
class LlamafactoryLayout:
    """A `Layout` of one split: an Arrow file for each shard, and the two files that name them."""

    split: str
    num_files: int
    dataset_hash: str
    is_packed: bool

    @property
    def files(self) -> Sequence[PlannedFile]:
        names = [self._name(number) for number in range(self.num_files)]
        state = make_state(self.split, names, self.dataset_hash)
        side_files = {f"{self.split}/state.json": state, f"{self.split}/dataset_info.json": make_info()}
        return [
            *(PlannedFile(f"{self.split}/{name}") for name in names),
            *(PlannedFile(name, len(content), content) for name, content in side_files.items()),
        ]

    def later_names(self) -> Iterator[str]:
        return iter(())

    def fill(self, slot: ShardSlot, targets: Targets) -> None:
        schema = training_schema(LLAMAFACTORY)
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

    def _name(self, number: int) -> str:
        return f"data-{number:05d}-of-{self.num_files:05d}.arrow"
