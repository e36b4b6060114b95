"""Records from Python as files, so that they can be cut, read again and compared like any others.

A run first writes them to its work folder ("spools" them), in one pass: dicts or texts as JSON lines, tables as Arrow.
The files are identified by their content, so a dataset from an equal list is up to date, and a stopped run resumes with
a new generator of the same records. A plan writes nothing: it reads the first records only and keeps them in memory.
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.recipe import PythonRecords
from gristmill.core.splits import ALL_AS_TRAIN, choose_splits
from gristmill.pipeline.work_folder import spool_path
from gristmill.readers.tables.arrow import remove_views, remove_views_from_schema
from gristmill.readers.texts.json_fields import encode_json_line
from gristmill.shards.canonical import STREAM_END, canonicalize_schema, stream_block, stream_header
from gristmill.storage.commit import PendingFile
from gristmill.storage.folders import open_folder
from gristmill.storage.listing import keep_in_memory
from gristmill.storage.locations import path_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.core.recipe import Recipe, RecordIterable
    from gristmill.readers.read import Read
    from gristmill.storage.locations import Location
    from gristmill.storage.paths import ListedFile


_SAMPLE_RECORDS = 100
_ROWS_PER_BATCH = 100
_SAMPLE_URL = re.compile(r"memory://+gristmill/[0-9a-f]{16}/[^\s:]+")


class _ByteWriter(Protocol):
    def write(self, data: bytes, /) -> object: ...


def has_python_records(recipe: Recipe) -> bool:
    return any(isinstance(source.read.read, PythonRecords) for source in recipe.sources.values())


def sample_python_records(recipe: Recipe) -> dict[str, Read]:
    """Keep the first records of each source from Python in memory; returns how to read them, by source."""
    reads = {}
    for name, read in _find_python_reads(recipe):
        urls = []
        num_records = 0
        for part_name, records_of_split in _choose_parts(name, read).items():
            sink = io.BytesIO()
            with _add_source_note(name):
                num_records += _write_part(records_of_split, read.text, sink, _SAMPLE_RECORDS)
            content = sink.getvalue()
            digest = xxhash.xxh3_64_hexdigest(content)  # equal samples are kept once, however often they are planned
            urls.append(keep_in_memory(f"{digest}/{_make_file_name(part_name, records_of_split)}", content))
        # Without a record the columns have no types, and any later message would be about those.
        if not num_records and not recipe.allow_empty:
            raise UsageError(
                f"source {name}: {read.read} holds no record",
                help="check what it was made of, or write allow_empty: true to make an empty dataset",
            )
        reads[name] = _make_read(name, read, urls)
    return reads


def remove_sample_urls(message: str) -> str:
    """Replace the address of sampled records, which means something in this process only, in a message.

    >>> remove_sample_urls("memory:///gristmill/4d2159a55348fa60/records.arrow: there is no column 'text'")
    "records from Python: there is no column 'text'"
    """
    return _SAMPLE_URL.sub("records from Python", message)


@contextmanager
def spool_python_records(recipe: Recipe, output: Location, run_id: str, *, keep: bool) -> Iterator[dict[str, Read]]:
    """Write all records to the work folder; gives how to read them, by source. Removed at the end, without `keep`."""
    reads = {}
    spooled_paths: list[str] = []
    try:
        for name, read in _find_python_reads(recipe):
            paths = []
            for part_name, records_of_split in _choose_parts(name, read).items():
                path = spool_path(name, _make_file_name(part_name, records_of_split))
                with _add_source_note(name), PendingFile(path_below(output, path), run_id) as file:
                    _write_part(records_of_split, read.text, file)
                    file.commit()
                spooled_paths.append(path)
                paths.append(str(output / path))
            reads[name] = _make_read(name, read, paths)
        yield reads
    finally:
        if not keep:
            open_folder(output).remove(spooled_paths)


def _find_python_reads(recipe: Recipe) -> Iterator[tuple[str, Read]]:
    for name, source in recipe.sources.items():
        if isinstance(source.read.read, PythonRecords):
            yield name, source.read


@contextmanager
def _add_source_note(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # also one that the user's own generator raises
        error.add_note(f"in source {name}")
        raise


def _choose_splits(name: str, read: Read) -> dict[str, str]:
    """Choose the splits that are read, with their names in the output; none where the records have no splits."""
    records: PythonRecords = read.read
    if not records.has_splits:
        if read.splits not in (None, ALL_AS_TRAIN):
            raise UsageError("splits: these records have no splits", help="remove the key")
        return {}
    return choose_splits(list(records.parts), read.splits, f"{records} in source {name}")


def _choose_parts(name: str, read: Read) -> dict[str, RecordIterable]:
    splits = _choose_splits(name, read)
    return {
        part_name: records_of_split
        for part_name, records_of_split in read.read.parts.items()
        if part_name in splits or not splits
    }


def find_spooled_split(read: Read, file: ListedFile) -> str:
    """Find the split of a file that this module has written; empty where there are no splits."""
    if not isinstance(read.splits, Mapping):
        return ""
    stem = unquote(posixpath.splitext(posixpath.basename(file.relative))[0])
    return next(name for name, split in read.splits.items() if split == stem)


def _make_read(name: str, read: Read, paths: list[str]) -> Read:
    splits = _choose_splits(name, read)
    # `all_as_train` gives several splits one name: then none is needed. Else new name -> name of its file.
    choice = {new: old for old, new in splits.items()} if len(set(splits.values())) == len(splits) else None
    return msgspec.structs.replace(read, read=paths, splits=choice or None)


def _make_file_name(part_name: str, records_of_split: RecordIterable) -> str:
    kind = "arrow" if records_of_split.is_table or records_of_split.dataset is not None else "jsonl"
    return f"{quote(part_name, safe=' ')}.{kind}"


def _write_part(records_of_split: RecordIterable, text: str, sink: _ByteWriter, count: int | None = None) -> int:
    """Write all records, or the first `count`; returns how many. `text` is the field for records that are strings."""
    if records_of_split.dataset is not None:
        return _write_dataset(records_of_split.dataset, sink, count)
    if records_of_split.is_table:
        return _write_table(records_of_split.as_iterator(_read_table_batches), sink, count)
    records: Iterable[Any]
    if count is None:
        records = records_of_split.take_all()
    else:
        records = records_of_split.peek(count)
        _refuse_unusable_records(records)
    num_records = 0
    for num_records, record in enumerate(records, 1):  # noqa: B007  (the last number is returned)
        sink.write(encode_json_line(_make_record(record, text)))
    return num_records


def _make_record(record: Any, text: str) -> Any:
    """Make a record of a string. With the field `payload.body` it is `{"payload": {"body": ...}}`."""
    if isinstance(record, str):
        for name in reversed(text.split(".")):
            record = {name: record}
    return record


def _refuse_unusable_records(records: list[Any]) -> None:
    """Refuse records if all are of a wrong type. The run quarantines single wrong ones."""
    if records and not any(isinstance(record, (Mapping, str)) for record in records):
        raise UsageError(
            f"read: the records must be dicts or texts, but the first is {records[0]!r:.100}",
            help='make each one a dict: {"text": ...}',
        )


def _read_table_batches(table: Any) -> Iterator[pa.RecordBatch]:
    """Read the rows of any object that has an Arrow stream, 100 at a time.

    The object's own batches do not matter, so equal rows give equal bytes. The first batch is empty and has the schema.
    """
    try:
        stream = pa.RecordBatchReader.from_stream(table)
        schema = remove_views_from_schema(stream.schema)
        yield pa.RecordBatch.from_pylist([], schema)
        waiting = schema.empty_table()
        for batch in stream:
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([remove_views(batch)])])
            num_full = len(waiting) // _ROWS_PER_BATCH * _ROWS_PER_BATCH
            for start in range(0, num_full, _ROWS_PER_BATCH):
                yield _combine_batches(waiting.slice(start, _ROWS_PER_BATCH))
            waiting = waiting.slice(num_full)
        if len(waiting):
            yield _combine_batches(waiting)
    except (pa.ArrowException, TypeError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise UsageError(
            f"read: the {type(table).__name__} cannot be read as an Arrow table: {problem:.300}",
            help="give each column one type, or pass a list of dicts",
        ) from error


def _combine_batches(table: pa.Table) -> pa.RecordBatch:
    [batch] = table.combine_chunks().to_batches()
    return batch


def _write_table(batches: RecordIterable, sink: _ByteWriter, count: int | None) -> int:
    schema: pa.Schema | None = None
    num_rows = 0
    for batch in batches.take_all() if count is None else batches.peek(1 + -(-count // _ROWS_PER_BATCH)):
        if schema is None:
            # A filtered pandas frame brings its index as a column, which is no field of the records.
            names = [name for name in batch.schema.names if not re.fullmatch(r"__index_level_\d+__", name)]
            schema = canonicalize_schema(batch.select(names).schema)
            sink.write(stream_header(schema))
        sink.write(stream_block(batch, schema))
        num_rows += batch.num_rows
    sink.write(STREAM_END)
    return num_rows


def _write_dataset(dataset: Any, sink: _ByteWriter, count: int | None) -> int:
    """Write a `datasets.Dataset` in its own order, in canonical batches: equal rows give equal bytes."""
    schema = canonicalize_schema(dataset.data.schema)
    sink.write(stream_header(schema))
    num_rows = 0
    for table in dataset.with_format("arrow").iter(batch_size=_ROWS_PER_BATCH):
        for batch in table.combine_chunks().to_batches():
            sink.write(stream_block(batch, schema))
            num_rows += batch.num_rows
        if count is not None and num_rows >= count:
            break
    sink.write(STREAM_END)
    return num_rows
