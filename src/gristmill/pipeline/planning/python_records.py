"""Records from Python as files, so that they can be cut, read again and compared like any others.

A run writes them to its work folder first, in one pass: dicts or texts as JSON lines, tables as Arrow. They are
known by their content, so an equal list is up to date and a stopped run goes on with a new generator of the same
records. A plan writes nothing: it looks at the first records only, kept in memory.
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
from gristmill.core.python_records import PythonRecords
from gristmill.core.splits import ALL_AS_TRAIN, choose_splits
from gristmill.pipeline.work_folder import WORK_FOLDER, remove_files
from gristmill.shards.arrow_stream import STREAM_END, stream_block, stream_header
from gristmill.shards.canonical import canonical_schema
from gristmill.steps.read import encode_json_line, schema_without_views, without_views
from gristmill.storage.commit import PendingFile
from gristmill.storage.remote_files import keep_in_memory
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gristmill.core.python_records import RecordIterable
    from gristmill.core.recipe import Recipe
    from gristmill.steps.read import Read
    from gristmill.storage.paths import ListedFile

_SAMPLE_RECORDS = 100
_ROWS_PER_BATCH = 100
_SAMPLE_URL = re.compile(r"memory://+gristmill/[0-9a-f]{16}/[^\s:]+")


class _ByteWriter(Protocol):
    def write(self, data: bytes, /) -> object: ...


def has_python_records(recipe: Recipe) -> bool:
    return any(isinstance(source.read.read, PythonRecords) for source in recipe.sources.values())


def sample_python_records(recipe: Recipe) -> dict[str, Read]:
    """For each source of records: how to read its first ones."""
    reads = {}
    for name, read in _find_python_reads(recipe):
        urls = []
        num_records = 0
        for part_name, part in _choose_parts(name, read).items():
            sink = io.BytesIO()
            with _add_source_note(name):
                num_records += _write_part(part, read.text, sink, _SAMPLE_RECORDS)
            content = sink.getvalue()
            digest = xxhash.xxh3_64_hexdigest(content)  # one place for equal samples, however often they are planned
            urls.append(keep_in_memory(f"{digest}/{_make_file_name(part_name, part)}", content))
        if not num_records and not recipe.allow_empty:  # before its columns are judged, which then have no types
            raise UsageError(
                f"source {name}: {read.read} holds no record",
                help="check what it was made of, or write allow_empty: true to make an empty dataset",
            )
        reads[name] = _make_read(name, read, urls)
    return reads


def remove_sample_urls(message: str) -> str:
    """A message about sampled records, without the name of the place where only this process keeps them.

    >>> remove_sample_urls("memory:///gristmill/4d2159a55348fa60/records.arrow: there is no column 'text'")
    "records from Python: there is no column 'text'"
    """
    return _SAMPLE_URL.sub("records from Python", message)


@contextmanager
def spool_python_records(recipe: Recipe, output: Path, run_id: str, *, keep: bool) -> Iterator[dict[str, Read]]:
    """Write all records to the work folder; gives how to read them. They go at the end, unless they are to be kept."""
    reads = {}
    written: list[str] = []
    try:
        for name, read in _find_python_reads(recipe):
            paths = []
            for part_name, part in _choose_parts(name, read).items():
                place = f"{WORK_FOLDER}/records/{name}/{_make_file_name(part_name, part)}"
                with _add_source_note(name), PendingFile(path_below(output, place), run_id) as file:
                    _write_part(part, read.text, file)
                    file.commit()
                written.append(place)
                paths.append(str(output / place))
            reads[name] = _make_read(name, read, paths)
        yield reads
    finally:
        if not keep:
            remove_files(output, written)


def _find_python_reads(recipe: Recipe) -> Iterator[tuple[str, Read]]:
    for name, source in recipe.sources.items():
        if isinstance(source.read.read, PythonRecords):
            yield name, source.read


@contextmanager
def _add_source_note(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of the user's own generator, too
        error.add_note(f"in source {name}")
        raise


def _choose_splits(name: str, read: Read) -> dict[str, str]:
    """The splits that are read, with their names in the output; none where the records have no splits."""
    records: PythonRecords = read.read
    if not records.has_splits:
        if read.split not in (None, ALL_AS_TRAIN):
            raise UsageError("split: these records have no splits", help="leave it out")
        return {}
    return choose_splits(list(records.parts), read.split, f"{records} in source {name}")


def _choose_parts(name: str, read: Read) -> dict[str, RecordIterable]:
    splits = _choose_splits(name, read)
    return {part_name: part for part_name, part in read.read.parts.items() if part_name in splits or not splits}


def find_spooled_split(read: Read, file: ListedFile) -> str:
    """The split of a file that this module has written; empty where there are no splits."""
    if not isinstance(read.split, Mapping):
        return ""
    stem = unquote(posixpath.splitext(posixpath.basename(file.relative))[0])
    return next(name for name, split in read.split.items() if split == stem)


def _make_read(name: str, read: Read, paths: list[str]) -> Read:
    splits = _choose_splits(name, read)
    # Of `all_as_train` nothing is left to say; else names in the output, each with the name of its file.
    choice = {new: old for old, new in splits.items()} if len(set(splits.values())) == len(splits) else None
    return msgspec.structs.replace(read, read=paths, split=choice or None)


def _make_file_name(part_name: str, part: RecordIterable) -> str:
    kind = "arrow" if part.is_table or part.dataset is not None else "jsonl"
    return f"{quote(part_name, safe=' ')}.{kind}"


def _write_part(part: RecordIterable, text: str, sink: _ByteWriter, count: int | None = None) -> int:
    """Write all records, or the first, and say how many; `text` is the field of those that are texts alone."""
    if part.dataset is not None:
        return _write_dataset(part.dataset, sink, count)
    if part.is_table:
        return _write_table(part.as_iterator(_read_table_batches), sink, count)
    records: Iterable[Any]
    if count is None:
        records = part.take_all()
    else:
        records = part.peek(count)
        _refuse_unusable_records(records)
    num_records = 0
    for num_records, record in enumerate(records, 1):  # noqa: B007  (the last one counts)
        sink.write(encode_json_line(_make_record(record, text)))
    return num_records


def _make_record(record: Any, text: str) -> Any:
    """A text as a record: `payload.body` is a field inside of an object."""
    if isinstance(record, str):
        for name in reversed(text.split(".")):
            record = {name: record}
    return record


def _refuse_unusable_records(records: list[Any]) -> None:
    """One wrong record among others is set aside; if all are wrong, something else was meant."""
    if records and not any(isinstance(record, (Mapping, str)) for record in records):
        raise UsageError(
            f"read: the records must be dicts or texts, but the first is {records[0]!r:.100}",
            help='make each one a dict: {"text": ...}',
        )


def _read_table_batches(table: Any) -> Iterator[pa.RecordBatch]:
    """The rows of whatever hands out an Arrow stream, 100 at a time whatever its own batches: equal rows, equal bytes.

    The first batch is empty: it tells the columns.
    """
    try:
        stream = pa.RecordBatchReader.from_stream(table)
        schema = schema_without_views(stream.schema)
        yield pa.RecordBatch.from_pylist([], schema)
        waiting = schema.empty_table()
        for batch in stream:
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([without_views(batch)])])
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
            help="give each column one type, or make a list of dicts of it",
        ) from error


def _combine_batches(table: pa.Table) -> pa.RecordBatch:
    [batch] = table.combine_chunks().to_batches()
    return batch


def _write_table(batches: RecordIterable, sink: _ByteWriter, count: int | None) -> int:
    schema: pa.Schema | None = None
    num_rows = 0
    for batch in batches.take_all() if count is None else batches.peek(1 + -(-count // _ROWS_PER_BATCH)):
        if schema is None:
            # pandas keeps the numbers of chosen rows in a column; that is no field of theirs.
            names = [name for name in batch.schema.names if not re.fullmatch(r"__index_level_\d+__", name)]
            schema = canonical_schema(batch.select(names).schema)
            sink.write(stream_header(schema))
        sink.write(stream_block(batch, schema))
        num_rows += batch.num_rows
    sink.write(STREAM_END)
    return num_rows


def _write_dataset(dataset: Any, sink: _ByteWriter, count: int | None) -> int:
    """A Dataset of `datasets`, rows in its own order, in canonical batches: equal rows give equal bytes."""
    schema = canonical_schema(dataset.data.schema)
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
