"""Export to the packed Parquet files of Megatron-Bridge and the Nemotron recipes: `*.idx.parquet`.

A row is `input_ids` (without padding), `loss_mask` (1 where the next token of the same document is trained) and
`seq_start_id` (where documents begin). Its reader keeps one row group in memory, so they are small: 500 rows.
If the dataset was packed with `align`, each document is padded to a multiple of it, as context parallelism needs it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.exports.tables import ParquetTables, TablesLayout
from gristmill.exports.tokens import find_align, refuse_unpacked, refuse_untokenized
from gristmill.exports.training import MEGATRON_BRIDGE

if TYPE_CHECKING:
    from gristmill.exports.layout import ExportSplit
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location

_ROW_GROUP_ROWS = 500


class MegatronBridgeFormat(ParquetTables):
    """Parquet files of packed rows for supervised fine-tuning with Megatron-Bridge."""

    name = MEGATRON_BRIDGE
    shard_format = "parquet"
    takes_columns = False
    pads_documents = True

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        refuse_untokenized(manifest, self.name, folder)
        refuse_unpacked(manifest, self.name, folder)

    def make_layout(self, split: ExportSplit) -> TablesLayout:
        rows = split.row_group_rows or _ROW_GROUP_ROWS
        layout = super().make_layout(replace(split, columns=MEGATRON_BRIDGE, row_group_rows=rows))
        tokenizer = split.manifest.tokenizer
        pad_ids = (tokenizer.pad_id, tokenizer.eos_id) if tokenizer is not None else ()
        pad_id = next((pad_id for pad_id in pad_ids if pad_id is not None), 0)
        return replace(layout, infix=".idx", align=find_align(split.manifest), pad_id=pad_id)
