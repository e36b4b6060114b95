"""Export of rows as they are: Parquet, JSON lines and WebDataset, one file for each shard.

Documents are written as the `write` step writes them, with all their columns. Token rows keep all columns in Parquet;
in JSON lines and WebDataset, which have no good place for them, origins are left out.

| token rows | a row is |
|---|---|
| parquet | a row of the same columns |
| jsonl | an object of `input_ids`, `lengths` and, for chats, `loss_mask` |
| webdataset | the members `N.input_ids.npy`, `N.lengths.npy` … where N is the row's number in the split |

Or the same with other `columns`: see `exports.training`.
"""

from __future__ import annotations

import io
import itertools
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.core.errors import UsageError
from gristmill.core.json_values import encode_json
from gristmill.core.records import (
    ORIGIN,
    ORIGIN_TYPE,
    OTHER_FIELDS,
    RECORD,
    RECORD_TYPE,
    TEXT,
    TEXT_TYPE,
    SourceFile,
)
from gristmill.exports.layout import PlannedFile
from gristmill.exports.tokens import counted, damaged, shard_batches
from gristmill.exports.training import STORED, training_rows, training_schema
from gristmill.shards.arrow_stream import ORIGINS_SCHEMA, mapped_batches
from gristmill.shards.readers import line_chunks, open_shard
from gristmill.shards.token_rows import ORIGINS
from gristmill.steps.read import Read, sample_record_types
from gristmill.steps.unite.field_types import without_nulls
from gristmill.steps.unite.json_text import JSON_TYPE, NAN_AS_NULL, count_not_finite, is_json, make_field
from gristmill.steps.unite.record_columns import RecordColumns
from gristmill.steps.write import Write, encode_whole
from gristmill.steps.write.tar import BLOCK, encode_member

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.exports.layout import Place, Targets
    from gristmill.steps.write.encoder import ByteSink

JSON_FORMATS = ("jsonl", "webdataset")
"""Shards of these hold JSON records."""
_PIECE_BYTES = 1 << 20
"""So much of a batch becomes Python objects at a time."""


@dataclass(frozen=True, slots=True)
class TablesLayout:
    """One split as files of rows."""

    split: str
    write: Write
    num_files: int
    schema: pa.Schema
    stored: str
    """The format of the dataset's shards."""
    is_tokens: bool
    columns: str = STORED
    """Which ones token rows get."""

    @property
    def files(self) -> Sequence[PlannedFile]:
        return [PlannedFile(self._name(number)) for number in range(self.num_files)]

    def later_names(self) -> Iterator[str]:
        return map(self._name, itertools.count(self.num_files))

    def fill(self, place: Place, targets: Targets) -> int:
        """The file of a shard; gives how many numbers JSON could not hold."""
        counts: Counter[str] = Counter()
        with Path(targets.paths[place.number]).open("wb") as file:
            if self.is_tokens:
                self._write_tokens(place, file)
            else:
                batches = counted(_read_documents(place, self.stored, self._batch_schema), place.path, place.rows)
                if self.write.keeps_record:
                    batches = _count_nan(batches, counts)
                encode_whole(self.write, self._batch_schema, batches, file)
            file.flush()
            os.fsync(file.fileno())
        return counts[NAN_AS_NULL]

    def usage(self, prefix: str) -> str:
        last = f"00000..{self.num_files - 1:05d}"
        if self.write.format == "webdataset":
            return f'webdataset.WebDataset("{prefix}_{self.split}-{{{last}}}.tar")'
        kind = "json" if self.write.format == "jsonl" else "parquet"
        return f'datasets.load_dataset("{kind}", data_files="{prefix}_{self.split}-*{self.write.suffix}")'

    def _name(self, number: int) -> str:
        return f"_{self.split}-{number:05d}{self.write.suffix}"

    @property
    def _batch_schema(self) -> pa.Schema:
        """Of documents in flight: their columns, or where they come from JSON and become JSON, what they were."""
        if self.stored in {"arrow", "parquet"}:
            return self.schema
        if not self.write.keeps_record:
            return self.schema
        text = [field for field in self.schema if field.name == TEXT]
        return pa.schema([pa.field(ORIGIN, ORIGIN_TYPE), *text, pa.field(RECORD, RECORD_TYPE)])

    def _write_tokens(self, place: Place, file: ByteSink) -> None:
        batches, schema = shard_batches(place), self.schema
        if self.columns != STORED:
            batches = (training_rows(batch, self.columns) for batch in batches)
            schema = training_schema(self.columns)
        if self.write.format == "parquet":
            encode_whole(self.write, schema, batches, file)
            return
        columns = [name for name in schema.names if name != ORIGINS]
        pieces = (batch.select(columns) for batch in _cut_batches(batches))
        if self.write.format == "jsonl":
            encode_whole(self.write, pa.schema([schema.field(name) for name in columns]), pieces, file)
            return
        row = place.first_row
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


def _read_documents(place: Place, stored: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if stored == "arrow":
        return _cut_batches(mapped_batches(Path(place.path), place.schema))
    if stored == "parquet":
        return _read_parquet(place)
    return _read_json_records(place, stored, schema)


def _read_parquet(place: Place) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(place.path, buffer_size=1 << 20) as file:
        if place.schema is not None and not file.schema_arrow.equals(place.schema):
            raise damaged(place.path, "has other columns than the manifest says")
        yield from file.iter_batches(1024)


def _count_nan(batches: Iterable[pa.RecordBatch], counts: Counter[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        counts[NAN_AS_NULL] += sum(map(count_not_finite, batch.columns))
        yield batch


def sample_schema(places: Sequence[Place], stored: str) -> pa.Schema:
    """The columns of a split of JSON records: all keys of a sample of them, and `other_fields` if that is not all."""
    shards = [SourceFile(place.path, place.path, Path(place.path).stat().st_size, "", 0) for place in places]
    read = Read(read=[place.path for place in places], format="gristmill")
    types, sees_all = sample_record_types(read, shards)
    columns = [pa.field(ORIGIN, ORIGIN_TYPE), pa.field(TEXT, TEXT_TYPE)]
    columns += [make_field(name, without_nulls(kind), why) for name, (kind, why) in types.items()]
    if not sees_all or stored != "jsonl":
        columns.append(make_field(OTHER_FIELDS, JSON_TYPE))
    return pa.schema(columns)


def _read_json_records(place: Place, stored: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Records of JSON lines or tars. Their origins are in the side file; its batches set the pace."""
    lines: Iterator[bytes]
    if stored == "jsonl":
        lines = (line for chunk in line_chunks(Path(place.path)) for line in chunk)
    else:
        lines = map(encode_json, open_shard(Path(place.path), stored).rows())
    fields = [field for field in schema if field.name not in (ORIGIN, RECORD, OTHER_FIELDS)]
    decoder = RecordColumns({field.name: JSON_TYPE if is_json(field) else field.type for field in fields})
    for side in mapped_batches(Path(str(place.origins)), ORIGINS_SCHEMA):
        raw = list(itertools.islice(lines, side.num_rows))
        if len(raw) < side.num_rows:
            raise damaged(place.path, "holds fewer records than there are origins")
        columns = {ORIGIN: side.column(ORIGIN), RECORD: pa.array(raw, RECORD_TYPE), **decoder.decode(raw)}
        if not {OTHER_FIELDS, RECORD} & {*schema.names} and columns[OTHER_FIELDS].null_count < side.num_rows:
            raise UsageError(
                f"{place.path} has records that fit no column: {columns[OTHER_FIELDS].drop_null()[0]}",
                help="export to jsonl, or make the dataset with `write: {format: parquet}`",
            )
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    if next(lines, None) is not None:
        raise damaged(place.path, "holds more records than there are origins")
