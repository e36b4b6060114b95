"""Export to Parquet, JSON Lines and WebDataset: one file for each shard.

In Parquet, a split other than `train` is one file: nanochat takes the last file of a folder for validation.

Documents and samples are written as the `write` step writes them, with all their columns. Token rows keep all columns
in Parquet; JSON Lines and WebDataset have no good place for origins, so those are left out.

| token rows | a row is |
|---|---|
| parquet | a row of the same columns |
| jsonl | an object of `input_ids`, `lengths` and, for chats, `loss_mask`, `kinds` and `weights`, one for each token |
| webdataset | the members `N.input_ids.npy`, `N.lengths.npy` … where N is the row's number in the split |

With other `columns`, a row has those instead: see `exports.training`.
"""

from __future__ import annotations

import io
import itertools
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.core.errors import UsageError
from gristmill.core.json_values import JSON_TYPE, NAN_AS_NULL, count_not_finite, encode_json, is_json
from gristmill.core.media import list_byte_columns, list_image_columns
from gristmill.core.records import ORIGIN, ORIGIN_TYPE, OTHER_FIELDS, RECORD, RECORD_TYPE, TEXT
from gristmill.exports.layout import ExportFormat, Layout, PlannedFile, check_shard_batches, read_shard_batches
from gristmill.exports.training import STORED, TRAINING, make_training_rows, training_schema
from gristmill.shards.canonical import (
    ORIGINS_SCHEMA,
    SAMPLE_BYTES,
    SAMPLES_SCHEMA,
    make_damage_error,
    read_mapped_batches,
)
from gristmill.shards.formats.jsonl import read_line_chunks
from gristmill.shards.formats.parquet import to_parquet_schema, unwrap_image_columns
from gristmill.shards.formats.shard_format import ShardFormat, open_shard, write_shard
from gristmill.shards.formats.tar import BLOCK, TarShard, encode_member
from gristmill.shards.formats.tar_members import MemberLayout, build_sample_columns
from gristmill.shards.record_columns import RecordColumns
from gristmill.shards.token_rows import CHATS, ORIGINS, has_kinds, plain_schema, without_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.formats.base import ByteSink
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location

_PIECE_BYTES = 1 << 20
"""This much of a batch becomes Python objects at a time."""
_PARQUET_ROWS = 1024
_PARQUET_IMAGES = 64


class TableFormat(ExportFormat):
    """A shard format as an export format: it takes any dataset."""

    takes_columns = True
    readable_stores: ClassVar[tuple[str, ...]] = ("s3", "gs", "az")
    shard_format: ClassVar[str] = ""
    """The format of the files, if it has another name."""
    chat_columns: ClassVar[str] = TRAINING
    """The default columns for chats: what trainers expect."""

    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        """Accept every dataset, since tables hold any columns, except bytes that are texts in JSON."""
        has_bytes = not manifest.holds_rows and list_byte_columns(manifest.schema.to_arrow())
        if has_bytes and manifest.format == "jsonl" and self.name != "jsonl":
            raise UsageError(
                f"{folder} holds {', '.join(has_bytes)} as base64 in JSON lines, which {self.name} would not decode",
                help=f"run its recipe with `write: {{format: {self.name}}}` into another folder",
            )

    def default_columns(self, manifest: Manifest) -> str:
        return self.chat_columns if manifest.kind == CHATS else STORED

    def make_layout(self, split: ExportSplit) -> TablesLayout:
        joined_slots = tuple(split.slots) if self.name == "parquet" and split.name != "train" else ()
        return TablesLayout(
            split.name,
            ShardFormat.of(self.shard_format or self.name),
            1 if joined_slots else len(split.slots),
            split.schema,
            split.manifest.format,
            is_tokens=split.manifest.holds_rows,
            columns=split.columns,
            members=find_members(split.manifest),
            row_group_rows=split.row_group_rows,
            joined_slots=joined_slots,
        )


def find_members(manifest: Manifest) -> MemberLayout | None:
    """Find the members of a dataset of samples in tars; None: its records are in another form."""
    return MemberLayout.find(manifest.schema.to_arrow()) if manifest.format == "webdataset" else None


class WebdatasetTables(TableFormat):
    """Tars of samples. Trainers that read tars decode the stored members, so chats keep their columns."""

    name = "webdataset"
    readable_stores = ("s3", "gs")
    chat_columns = STORED


class ParquetTables(TableFormat):
    """Parquet files, whose columns have one type each."""

    name = "parquet"
    needs_typed_columns = True
    has_row_groups = True


class JsonlTables(TableFormat):
    """Files of JSON lines."""

    name = "jsonl"


@dataclass(frozen=True, slots=True)
class TablesLayout(Layout):
    """A `Layout` of one split: a file of rows for each shard."""

    split: str
    format: ShardFormat
    num_files: int
    schema: pa.Schema
    stored_format: str
    """The format of the dataset's shards."""
    is_tokens: bool
    columns: str = STORED
    """The columns of token rows, a choice of `exports.training.COLUMNS`."""
    members: MemberLayout | None = None
    """The members of samples in the dataset's tars."""
    row_group_rows: int | None = None
    """The rows in a row group of Parquet; None: as many as 32 MiB hold."""
    joined_slots: tuple[ShardSlot, ...] = ()
    """All shards of the split, if they are written to one file."""
    infix: str = ""
    """What precedes the suffix of the files' names."""
    align: int = 1
    """Documents of token rows are padded with `pad_id`, so that the inputs of each are a multiple of this."""
    pad_id: int = 0

    @property
    def files(self) -> Sequence[PlannedFile]:
        return [PlannedFile(self._name(number)) for number in range(self.num_files)]

    def later_names(self) -> Iterator[str]:
        return map(self._name, itertools.count(self.num_files))

    def fill(self, slot: ShardSlot, targets: Targets) -> int:
        """Write the file of a shard; return how many numbers JSON could not hold."""
        counts: Counter[str] = Counter()
        if self.joined_slots and slot.number:
            return 0  # the first shard's task writes them all
        slots = self.joined_slots or (slot,)
        with Path(targets.paths[slot.number]).open("wb") as file:
            if self.is_tokens:
                self._write_tokens(slots, file)
            else:
                batches = self._read_records(slots, counts)
                write_shard(self.format, self._batch_schema, batches, file, self.row_group_rows)
            file.flush()
            os.fsync(file.fileno())
        return counts[NAN_AS_NULL]

    def _read_records(self, slots: Sequence[ShardSlot], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        for slot in slots:
            if self.members is not None:
                batches = _read_samples(slot, self.schema, self.members)
            elif self.stored_format == "arrow":
                batches = _cut_batches(read_mapped_batches(Path(slot.path), slot.schema))
            elif self.stored_format == "parquet":
                batches = _read_parquet(slot)
            else:
                batches = _read_json_records(slot, self.stored_format, self._batch_schema)
            for batch in check_shard_batches(batches, slot.path, slot.rows):
                if self.format.keeps_record:
                    counts[NAN_AS_NULL] += sum(map(count_not_finite, batch.columns))
                yield batch

    def usage(self, prefix: str) -> str:
        last = f"00000..{self.num_files - 1:05d}"
        if self.format.name == "webdataset":
            urls = f"{prefix}_{self.split}-{{{last}}}.tar"
            return f'webdataset.WebDataset("{f"pipe:aws s3 cp {urls} -" if urls.startswith("s3:") else urls}")'
        kind = "json" if self.format.name == "jsonl" else "parquet"
        return f'datasets.load_dataset("{kind}", data_files="{prefix}_{self.split}-*{self.format.suffix}")'

    def _name(self, number: int) -> str:
        return f"_{self.split}-{number:05d}{self.infix}{self.format.suffix}"

    @property
    def _batch_schema(self) -> pa.Schema:
        """The columns of documents on their way: those that are written, or, from JSON to JSON, the whole record."""
        if self.stored_format in {"arrow", "parquet"} or self.members is not None or not self.format.keeps_record:
            return self.schema
        text = [field for field in self.schema if field.name == TEXT]
        return pa.schema([pa.field(ORIGIN, ORIGIN_TYPE), *text, pa.field(RECORD, RECORD_TYPE)])

    def _write_tokens(self, slots: Sequence[ShardSlot], file: ByteSink) -> None:
        batches: Iterator[pa.RecordBatch] = itertools.chain.from_iterable(map(read_shard_batches, slots))
        schema = self.schema
        if self.columns == STORED and has_kinds(schema):
            batches, schema = map(without_runs, batches), plain_schema(schema)
        elif self.columns != STORED:
            batches = (make_training_rows(batch, self.columns, self.align, self.pad_id) for batch in batches)
            schema = training_schema(self.columns)
        if self.format.name == "parquet":
            write_shard(self.format, schema, batches, file, self.row_group_rows)
            return
        columns = [name for name in schema.names if name != ORIGINS]
        pieces = (batch.select(columns) for batch in _cut_batches(batches))
        if self.format.name == "jsonl":
            write_shard(self.format, pa.schema([schema.field(name) for name in columns]), pieces, file)
            return
        row = slots[0].first_row
        for piece in pieces:
            for values in zip(*(piece.column(name) for name in columns), strict=True):
                for name, value in zip(columns, values, strict=True):
                    content = io.BytesIO()
                    np.save(content, value.values.to_numpy(zero_copy_only=False), allow_pickle=False)
                    for part in encode_member(f"{row:012d}.{name}.npy", content.getvalue()):
                        file.write(part)
                row += 1
        file.write(bytes(2 * BLOCK))


def _cut_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        step = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _read_parquet(slot: ShardSlot) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(slot.path, buffer_size=1 << 20) as file:
        if slot.schema is None:
            yield from file.iter_batches(_PARQUET_ROWS)
            return
        if not file.schema_arrow.equals(to_parquet_schema(slot.schema)):
            raise make_damage_error(slot.path, "has columns other than those in the manifest")
        num_rows = _PARQUET_ROWS if not list_image_columns(slot.schema) else _PARQUET_IMAGES
        for batch in file.iter_batches(num_rows):
            yield unwrap_image_columns(batch, slot.schema)


def _read_samples(slot: ShardSlot, schema: pa.Schema, members: MemberLayout) -> Iterator[pa.RecordBatch]:
    """Read the samples of a tar, in pieces of the batches of the side file that holds their origins."""
    records = TarShard(Path(slot.path), members).rows()
    for side in read_mapped_batches(Path(str(slot.origins)), SAMPLES_SCHEMA):
        # A piece ends where its samples have about as many bytes as a piece of rows.
        ends = np.cumsum(side.column(SAMPLE_BYTES).to_numpy())
        starts = np.flatnonzero(np.diff(ends // _PIECE_BYTES, prepend=-1))
        for start, stop in itertools.pairwise((*starts.tolist(), side.num_rows)):
            piece = side.slice(start, stop - start)
            samples = list(itertools.islice(records, piece.num_rows))
            if len(samples) < piece.num_rows:
                raise make_damage_error(slot.path, "holds fewer records than there are origins")
            columns = {ORIGIN: piece.column(ORIGIN), **build_sample_columns(schema, samples)}
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    if next(records, None) is not None:
        raise make_damage_error(slot.path, "holds more records than there are origins")


def _read_json_records(slot: ShardSlot, stored_format: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read records of JSON lines or tars, in the batches of the side file that holds their origins."""
    lines: Iterator[bytes]
    if stored_format == "jsonl":
        lines = (line for chunk in read_line_chunks(Path(slot.path)) for line in chunk)
    else:
        lines = map(encode_json, open_shard(Path(slot.path), stored_format).rows())
    fields = [field for field in schema if field.name not in (ORIGIN, RECORD, OTHER_FIELDS)]
    decoder = RecordColumns({field.name: JSON_TYPE if is_json(field) else field.type for field in fields})
    for side in read_mapped_batches(Path(str(slot.origins)), ORIGINS_SCHEMA):
        raw = list(itertools.islice(lines, side.num_rows))
        if len(raw) < side.num_rows:
            raise make_damage_error(slot.path, "holds fewer records than there are origins")
        columns = {ORIGIN: side.column(ORIGIN), RECORD: pa.array(raw, RECORD_TYPE), **decoder.decode(raw)}
        if not {OTHER_FIELDS, RECORD} & {*schema.names} and columns[OTHER_FIELDS].null_count < side.num_rows:
            raise UsageError(
                f"{slot.path} has a record that fits no column: {columns[OTHER_FIELDS].drop_null()[0]}",
                help="export to jsonl, or make the dataset with `write: {format: parquet}`",
            )
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    if next(lines, None) is not None:
        raise make_damage_error(slot.path, "holds more records than there are origins")
