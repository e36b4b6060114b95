"""New values for columns of a batch, also in the JSON records that it carries.

Columns that a barrier adds to records, also as keys of the JSON records that a batch carries.

The column `source` of documents whose sources are written as one lane: the source that each document is from.

Records that were read from JSON get it as a key, inserted before the last brace: all other bytes stay. If there is a
column or key of this name already, it stays as it is; then only the origin tells the source.

The content of records, by which copies are found and splits are chosen: the text, or the bytes of samples.

Edits of texts: only the documents that need one become Python strings, are edited, and are put back. Chats have no text
before they are rendered: there all strings of a record are edited, at any depth, and JSON inside of strings, too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.json_values import decode_json, encode_json, with_new_value, with_values
from gristmill.core.media import list_byte_columns
from gristmill.core.records import (
    INPUT_IDS,
    ORIGIN,
    RECORD,
    SOURCE,
    SPLIT,
    TEXT,
    TEXT_TYPE,
    QuarantinedRecord,
    StepResult,
)
from gristmill.core.step import LocalStep
from gristmill.steps.column_names import has_text_beside, path_in_record, require_column
from gristmill.steps.record_functions import quarantine_row

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


def with_fields(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema with these fields; a field replaces one of the same name in its place."""
    for field in fields:
        index = schema.get_field_index(field.name)
        schema = schema.append(field) if index < 0 else schema.set(index, field)
    return schema


def put_columns(
    step: LocalStep,
    batch: pa.RecordBatch,
    columns: Mapping[str, pa.Array],
    is_changed: NDArray[np.bool_] | None = None,
) -> tuple[pa.RecordBatch, list[QuarantinedRecord]]:
    """Return the batch with these columns in the step's schema, and the records whose JSON could not be changed.

    A JSON record that has the same values already keeps its bytes, and so does a chat that is kept as it is. With
    `is_changed` the rows that have other values are known, and the batch's own columns are not compared.
    """
    schema = step.output_schema(batch.schema)
    values = {name: columns[name] if name in columns else batch.column(name) for name in schema.names}
    quarantined: list[QuarantinedRecord] = []
    if RECORD in schema.names and not has_text_beside(schema):
        records, quarantined, rows = _update_records(batch, schema, columns, is_changed)
        values[RECORD] = pa.array(records, schema.field(RECORD).type)
        if quarantined:
            indices = pa.array(rows, pa.int64())
            values = {name: array if name == RECORD else array.take(indices) for name, array in values.items()}
    return pa.RecordBatch.from_arrays(list(values.values()), schema=schema), quarantined


def _update_records(
    batch: pa.RecordBatch, schema: pa.Schema, columns: Mapping[str, pa.Array], is_changed: NDArray[np.bool_] | None
) -> tuple[list[bytes], list[QuarantinedRecord], list[int]]:
    paths = {name: path_in_record(schema.field(name)) for name in columns}
    new = {name: values.to_pylist() for name, values in columns.items()}
    changed = {
        name: _find_changed(batch.column(name), values) if is_changed is None else is_changed.tolist()
        for name, values in columns.items()
        if name in batch.schema.names
    }
    records, quarantined, rows = [], [], []
    for row, line in enumerate(_view_records(batch.column(RECORD))):
        changes = [
            (paths[name], values[row]) for name, values in new.items() if name not in changed or changed[name][row]
        ]
        try:
            records.append(with_values(line, changes) if changes else bytes(line))
            rows.append(row)
        except ValueError as error:  # msgspec's errors too: in a part of the record that the reader did not parse
            quarantined.append(quarantine_row(batch, row, "invalid_json", str(error)))
    return records, quarantined, rows


def _view_records(records: pa.LargeBinaryArray) -> Iterator[memoryview]:
    """Yield each record without copying it: a new line is made of it, or it is copied into one."""
    if not len(records):
        return
    _, offsets, data = records.buffers()
    ends = np.frombuffer(offsets, np.int64)[records.offset : records.offset + len(records) + 1].tolist()
    content = memoryview(data if data is not None else b"")
    for start, end in pairwise(ends):
        yield content[start:end]


def _find_changed(old: pa.Array, new: pa.Array) -> list[bool]:
    """For each row whether its value is another one."""
    if old.type == new.type == TEXT_TYPE and not (old.null_count or new.null_count):
        changed: list[bool] = pc.not_equal(old, new).to_pylist()  # no Python string for each page
        return changed
    return [before != after for before, after in zip(old.to_pylist(), new.to_pylist(), strict=True)]


def put_new_columns(step: str, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return the batch with these columns after the others, which JSON records get as keys.

    Raises:
        UsageError: A record has such a key already. Its meaning is not known here, so it is not overwritten.
    """
    if RECORD in batch.schema.names and not has_text_beside(batch.schema):
        index = batch.schema.get_field_index(RECORD)
        lines = batch.column(index).to_pylist()
        for name, values in columns.items():
            try:
                lines = [
                    with_new_value(line, name, value) for line, value in zip(lines, values.to_pylist(), strict=True)
                ]
            except ValueError as error:
                raise UsageError(f"{step}: {error}", help="rename or remove this key before this step") from error
        batch = batch.set_column(index, batch.schema.field(index), pa.array(lines, batch.schema.field(index).type))
    for name, values in columns.items():
        batch = batch.append_column(pa.field(name, values.type), values)
    return batch


_decode_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class NameSource(LocalStep, tag="mix", frozen=True, kw_only=True):
    """A step that changes columns as a barrier that joins sources does, for the sample records of a plan."""

    source: str

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return StepResult(with_source(batch, self.source))


def has_source_column(schema: pa.Schema) -> bool:
    """Whether documents of this schema get the column; tokens have a fixed set of columns."""
    return INPUT_IDS not in schema.names and SOURCE not in schema.names


def with_source_field(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `with_source`."""
    return schema.append(pa.field(SOURCE, pa.string())) if has_source_column(schema) else schema


def with_source(batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
    """Return the records of one source with its name in a column.

    >>> from gristmill.core.records import documents
    >>> with_source(documents(["one", "two"]), "web").column("source").to_pylist()
    ['web', 'web']
    """
    if not has_source_column(batch.schema):
        return batch
    index = batch.schema.get_field_index(RECORD)
    if index >= 0:
        records = pa.array(_add_source_keys(batch.column(index).to_pylist(), source), batch.schema.field(index).type)
        batch = batch.set_column(index, batch.schema.field(index), records)
    names = pa.repeat(pa.scalar(source, pa.string()), batch.num_rows)
    return batch.append_column(pa.field(SOURCE, pa.string()), names)


def _add_source_keys(records: list[bytes | None], source: str) -> Iterator[bytes | None]:
    key = b'"source":' + msgspec.json.encode(source) + b"}"
    for record in records:
        # Only a record that holds the word, or an escape that may hide it, is parsed.
        if record is None or ((b'"source"' in record or b"\\u" in record) and SOURCE in _decode_keys(record)):
            yield record
            continue
        body = record.rstrip().removesuffix(b"}").rstrip()
        yield body + (key if body == b"{" else b"," + key)


def require_content(step: str, schema: pa.Schema) -> None:
    """Raise `UsageError` if records have neither a text nor bytes."""
    if not list_byte_columns(schema):
        require_column(step, TEXT, schema)


def read_content(batch: pa.RecordBatch, columns: Sequence[str] = ()) -> pa.Array:
    """Return the content of each record: its text, or the bytes of a sample; of several columns, their digests."""
    if TEXT in batch.schema.names and not columns:
        return batch.column(TEXT)
    names = columns or list_byte_columns(batch.schema)
    if len(names) == 1:
        return batch.column(names[0]).cast(pa.large_binary())
    digests = [[xxhash.xxh3_128_digest(value or b"") for value in batch.column(name).to_pylist()] for name in names]
    return pa.array([b"".join(row) for row in zip(*digests, strict=True)], pa.large_binary())


def edit_texts(
    step: LocalStep,
    batch: pa.RecordBatch,
    needs_edit: NDArray[np.bool_],
    edit: Callable[[str, Counter[str]], str],
    counters: Counter[str],
) -> StepResult:
    """Edit the texts of some rows. `edit` returns the new text, and counts what it did in `counters`.

    The result says which rows have another text than before.
    """
    texts = batch.column(TEXT)
    is_changed = np.zeros(batch.num_rows, np.bool_)
    new_texts = {}
    for row in np.flatnonzero(needs_edit).tolist():
        text = texts[row].as_py()
        new_text = edit(text, counters)
        if new_text != text:
            is_changed[row] = True
            new_texts[row] = new_text
    if not new_texts:
        return StepResult(batch, counters=dict(counters))
    edited = pc.replace_with_mask(
        texts, pa.array(is_changed), pa.array([new_texts[row] for row in sorted(new_texts)], texts.type)
    )
    changed_batch, quarantined = put_columns(step, batch, {TEXT: edited}, is_changed)
    # A row that is quarantined shifts the others, so that no pair of texts could be shown.
    changed_rows = None if quarantined else is_changed
    return StepResult(changed_batch, quarantined=quarantined, counters=dict(counters), changed_rows=changed_rows)


def has_values(schema: pa.Schema) -> bool:
    """Whether records of this schema have no text yet, but values that it will be made of: chats before `render`."""
    return TEXT not in schema.names and INPUT_IDS not in schema.names and bool(_list_edited(schema))


def edit_records(
    batch: pa.RecordBatch,
    find_candidates: Callable[[pa.Array], NDArray[np.bool_]],
    edit: Callable[[str, Counter[str]], str],
    counters: Counter[str],
) -> StepResult:
    """Edit all strings of records: of the JSON line if there is one, else of all columns."""
    columns = {field.name: batch.column(field.name) for field in batch.schema}
    for name in _list_edited(batch.schema):
        column = columns[name]
        if name != RECORD and column.type not in (TEXT_TYPE, pa.string()):
            values = column.to_pylist()
            edited = [_edit_value(value, edit, counters) for value in values]
            columns[name] = pa.array(edited, column.type) if edited != values else column
            continue
        texts = column.cast(TEXT_TYPE)
        is_candidate = find_candidates(texts) | find_matches(texts, r"\\u")  # an escape can hide anything
        lines = dict(
            zip(np.flatnonzero(is_candidate).tolist(), column.filter(pa.array(is_candidate)).to_pylist(), strict=True)
        )
        new_lines = {row: _edit_line(line, edit, counters) for row, line in lines.items() if line is not None}
        is_changed = np.zeros(batch.num_rows, np.bool_)
        is_changed[[row for row, line in new_lines.items() if line != lines[row]]] = True
        changed = [new_lines[row] for row in np.flatnonzero(is_changed).tolist()]
        columns[name] = pc.replace_with_mask(column, pa.array(is_changed), pa.array(changed, column.type))
    edited_batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)
    return StepResult(edited_batch, counters=dict(counters))


def _list_edited(schema: pa.Schema) -> list[str]:
    if RECORD in schema.names:
        return [RECORD]
    return [field.name for field in schema if field.name not in (ORIGIN, SPLIT) and _holds_strings(field.type)]


def _holds_strings(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_strings(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _edit_line(line: bytes | str, edit: Callable[[str, Counter[str]], str], counters: Counter[str]) -> bytes | str:
    """Edit the strings of a JSON record, whose other values keep their bytes, or a text."""
    if isinstance(line, str):
        new_text: str = _edit_value(line, edit, counters)
        return new_text
    try:
        record = decode_json(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line  # the step that reads it will say what is wrong
    if not isinstance(record, dict):
        return line
    edited = {key: (value, _edit_value(value, edit, counters)) for key, value in record.items()}
    changes = [((key,), msgspec.Raw(encode_json(new))) for key, (old, new) in edited.items() if new != old]
    return with_values(line, changes) if changes else line


def _edit_value(value: Any, edit: Callable[[str, Counter[str]], str], counters: Counter[str]) -> Any:
    if isinstance(value, str):
        text = edit(value, counters)
        return _edit_inner_json(text, edit, counters) if text[:1] in ("{", "[") else text
    if isinstance(value, list):
        return [_edit_value(inner, edit, counters) for inner in value]
    if not isinstance(value, dict):
        return value
    edited: dict[str, Any] = {}
    for key, inner in value.items():
        new_key = edit(key, counters)
        while new_key in edited:  # two keys of an object may become one
            new_key += "_"
        edited[new_key] = _edit_value(inner, edit, counters)
    return edited


def _edit_inner_json(text: str, edit: Callable[[str, Counter[str]], str], counters: Counter[str]) -> str:
    """Edit the strings of JSON in a string: arguments of a call, where escapes hide what a string begins with."""
    try:
        value = decode_json(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    edited = _edit_value(value, edit, counters)
    return encode_json(edited).decode() if edited != value else text


def find_matches(texts: pa.Array, pattern: str) -> NDArray[np.bool_]:
    """For each text whether a pattern of RE2 occurs in it; a missing text has no match."""
    matches: NDArray[np.bool_] = pc.fill_null(pc.match_substring_regex(texts, pattern), False).to_numpy(
        zero_copy_only=False
    )
    return matches
