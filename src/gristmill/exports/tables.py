"""Export to Parquet, JSON Lines and WebDataset: one file for each shard.

Documents and samples are written as the `write` step writes them, with all their columns. Token rows keep all columns
in Parquet; JSON Lines and WebDataset have no good place for origins, so those are left out.

| token rows | a row is |
|---|---|
| parquet | a row of the same columns |
| jsonl | an object of `input_ids`, `lengths` and, for chats, `loss_mask` |
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
from gristmill.core.json_text import JSON_TYPE, NAN_AS_NULL, count_not_finite, is_json
from gristmill.core.json_values import encode_json
from gristmill.core.media import list_byte_columns, list_image_columns
from gristmill.core.records import ORIGIN, ORIGIN_TYPE, OTHER_FIELDS, RECORD, RECORD_TYPE, TEXT
from gristmill.exports.layout import ExportFormat, PlannedFile
from gristmill.exports.tokens import check_shard_batches, read_shard_batches
from gristmill.exports.training import STORED, TRAINING, make_training_rows, training_schema
from gristmill.shards.arrow_stream import ORIGINS_SCHEMA, SAMPLE_BYTES, SAMPLES_SCHEMA, read_mapped_batches
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.image_structs import to_parquet_schema, unwrap_image_columns
from gristmill.shards.formats.jsonl import read_line_chunks
from gristmill.shards.formats.shard_format import ShardFormat, open_shard, write_shard
from gristmill.shards.formats.tar import BLOCK, TarShard, encode_member
from gristmill.shards.formats.tar_members import MemberLayout, build_sample_columns
from gristmill.shards.record_columns import RecordColumns
from gristmill.shards.token_rows import CHATS, ORIGINS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.exports.layout import ExportSplit, ShardSlot, Targets
    from gristmill.shards.formats.base import ByteSink
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location

_PIECE_BYTES = 1 << 20
"""This much of a batch becomes Python objects at a time."""
_PARQUET_ROWS = 1024
_PARQUET_IMAGES = 64


class TableFormat(ExportFormat):
    """A shard format as an export format: it takes any dataset."""

    takes_columns = True
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
        return TablesLayout(
            split.name,
            ShardFormat.of(self.shard_format or self.name),
            len(split.slots),
            split.schema,
            split.manifest.format,
            is_tokens=split.manifest.holds_rows,
            columns=split.columns,
            members=find_members(split.manifest),
            row_group_rows=split.row_group_rows,
        )


def find_members(manifest: Manifest) -> MemberLayout | None:
    """Find the members of a dataset of samples in tars; None: its records are in another form."""
    return MemberLayout.find(manifest.schema.to_arrow()) if manifest.format == "webdataset" else None


class WebdatasetTables(TableFormat):
    """Tars of samples. Trainers that read tars decode the stored members, so chats keep their columns."""

    name = "webdataset"
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
class TablesLayout:
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
    infix: str = ""
    """What precedes the suffix of the files' names."""
    align: int = 1
    """Documents of token rows are padded to multiples of this, with `pad_id`."""
    pad_id: int = 0

    @property
    def files(self) -> Sequence[PlannedFile]:
        return [PlannedFile(self._name(number)) for number in range(self.num_files)]

    def later_names(self) -> Iterator[str]:
        return map(self._name, itertools.count(self.num_files))

    def fill(self, slot: ShardSlot, targets: Targets) -> int:
        """Write the file of a shard; return how many numbers JSON could not hold."""
        counts: Counter[str] = Counter()
        with Path(targets.paths[slot.number]).open("wb") as file:
            if self.is_tokens:
                self._write_tokens(slot, file)
            else:
                documents = self._read_records(slot)
                batches = check_shard_batches(documents, slot.path, slot.rows)
                if self.format.keeps_record:
                    batches = _count_nan(batches, counts)
                write_shard(self.format, self._batch_schema, batches, file, self.row_group_rows)
            file.flush()
            os.fsync(file.fileno())
        return counts[NAN_AS_NULL]

    def _read_records(self, slot: ShardSlot) -> Iterator[pa.RecordBatch]:
        if self.members is not None:
            return _read_samples(slot, self.schema, self.members)
        return _read_documents(slot, self.stored_format, self._batch_schema)

    def usage(self, prefix: str) -> str:
        last = f"00000..{self.num_files - 1:05d}"
        if self.format.name == "webdataset":
            return f'webdataset.WebDataset("{prefix}_{self.split}-{{{last}}}.tar")'
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

    def _write_tokens(self, slot: ShardSlot, file: ByteSink) -> None:
        batches, schema = read_shard_batches(slot), self.schema
        if self.columns != STORED:
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
        row = slot.first_row
        for piece in pieces:
            for values in zip(*(piece.column(name) for name in columns), strict=True):
                for name, value in zip(columns, values, strict=True):
                    for part in encode_member(f"{row:012d}.{name}.npy", _encode_npy(value)):
                        file.write(part)
                row += 1
        file.write(bytes(2 * BLOCK))


def _cut_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        step = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _encode_npy(value: pa.ListScalar) -> bytes:
    content = io.BytesIO()
    np.save(content, value.values.to_numpy(zero_copy_only=False), allow_pickle=False)
    return content.getvalue()


def _read_documents(slot: ShardSlot, stored_format: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if stored_format == "arrow":
        return _cut_batches(read_mapped_batches(Path(slot.path), slot.schema))
    if stored_format == "parquet":
        return _read_parquet(slot)
    return _read_json_records(slot, stored_format, schema)


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
        for piece in _cut_by_bytes(side):
            samples = list(itertools.islice(records, piece.num_rows))
            if len(samples) < piece.num_rows:
                raise make_damage_error(slot.path, "holds fewer records than there are origins")
            columns = {ORIGIN: piece.column(ORIGIN), **build_sample_columns(schema, samples)}
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    if next(records, None) is not None:
        raise make_damage_error(slot.path, "holds more records than there are origins")


def _cut_by_bytes(side: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut the origins of samples where the samples have about as many bytes as a piece."""
    ends = np.cumsum(side.column(SAMPLE_BYTES).to_numpy())
    starts = np.flatnonzero(np.diff(ends // _PIECE_BYTES, prepend=-1))
    for start, stop in itertools.pairwise((*starts.tolist(), side.num_rows)):
        yield side.slice(start, stop - start)


def _count_nan(batches: Iterable[pa.RecordBatch], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        counts[NAN_AS_NULL] += sum(map(count_not_finite, batch.columns))
        yield batch


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
