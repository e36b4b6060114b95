"""From the columns of a Parquet or Arrow file to the columns of its source.

Types are those of the files, without encodings: dictionaries and views become plain values. The text becomes
`large_string`; a record whose text is null, too large or not UTF-8 is quarantined.

A column that the recipe names must have one type in all files. Other columns that the plan has seen stay columns, of
JSON text if files disagree; the rest goes to `other_fields`.

Images and sounds of Hugging Face datasets are structs with the fields `bytes` and `path`. Here their bytes are the
column, and the name of the file that they were read from is the column `<name>_path`. A row with a path and no bytes
refers to a file elsewhere: it is quarantined.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.json_values import JSON_TYPE, NAN_AS_NULL, count_not_finite, is_json, to_json_text, to_json_values
from gristmill.core.media import (
    ANY_IMAGE,
    EXTENSION_NAME,
    IMAGE,
    PATH_SUFFIX,
    find_member,
    is_bytes,
    is_media,
    list_image_structs,
)
from gristmill.core.records import (
    CARRIES_ALL,
    KEY,
    ORIGIN,
    ORIGIN_TYPE,
    OTHER_FIELDS,
    TEXT,
    TEXT_TYPE,
    QuarantinedRecord,
)
from gristmill.readers.cells import build_batch, extra_columns
from gristmill.readers.field_types import FieldType, is_column_name, is_storable, join_types, plain_type, unite_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.core.records import SourceFile
    from gristmill.readers.read import Read


def is_textual(arrow_type: pa.DataType) -> bool:
    kind = plain_type(arrow_type)
    types = pa.types
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def find_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    """Return the type of a column, or of a field in it: `payload.body`. A column's own name may have dots too."""
    if path in schema.names:
        if len(schema.get_all_field_indices(path)) > 1:
            raise UsageError(f"two columns are called {path!r}", help="give one of them another name")
        kind = plain_type(schema.field(path).type)
        return pa.large_binary() if is_media(kind) else kind
    name, *inner = path.split(".")
    if name not in schema.names:
        return None
    kind = schema.field(name).type
    for step in inner:
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            return None
        kind = kind.field(step).type
    return plain_type(kind)


def make_missing_column_error(schema: pa.Schema, path: str, where: str) -> UsageError:
    meant = find_nearest(path, schema.names)
    from gristmill.text.chats.shapes import suggest_render  # noqa: PLC0415  (only for an error)

    render = suggest_render({field.name: _make_example(field.type) for field in schema})
    ids = [field.name for field in schema if field.name.endswith("ids") and _holds_ids(field.type)]
    if ids:
        hint = f"the records look like token ids: `ids: {ids[0]}`, and their tokenizer or `vocab_size`"
    elif render:
        hint = f"the records look like chats: add the step `{render}`, and `tokenize` for tokens"
    else:
        hint = f'did you mean "{meant}"?' if meant else f"its columns are {', '.join(schema.names)}"
    return UsageError(f"{where}: there is no column {path!r}", help=hint)


def _holds_ids(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_integer(kind.value_type))


def _make_example(kind: pa.DataType) -> object:
    """Make a value of a column of texts or of objects; None for other columns."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        is_objects = types.is_struct(kind.value_type)
        return [{kind.value_type.field(n).name: "" for n in range(kind.value_type.num_fields)}] if is_objects else None
    return "" if is_textual(kind) else None


def check_text_column(schema: pa.Schema, path: str, where: str) -> None:
    kind = find_type(schema, path)
    if kind is None:
        raise make_missing_column_error(schema, path, where)
    holds_media = path in schema.names and is_media(schema.field(path).type)
    if holds_media or not is_textual(kind):
        content = "images or sounds" if holds_media else kind
        raise UsageError(
            f"{where}: column {path!r} holds {content}, not text",
            help="name the column that holds the text: `text: ...`",
        )


def find_unnamed_columns(schema: pa.Schema, read: Read, *, has_text: bool) -> dict[str, pa.DataType | None]:
    """Return the columns of a file that the recipe does not name, with their types; None if it cannot be a column."""
    unnamed: dict[str, pa.DataType | None] = {}
    for field in schema:
        name = field.name
        if (
            (has_text and name == read.text)
            or name in read.columns
            or is_own_origin(field)
            or is_own_other_fields(field)
        ):
            continue
        if not is_column_name(name) or len(schema.get_all_field_indices(name)) > 1:
            unnamed[name] = None
        elif is_json(field) or not is_storable(plain_type(field.type)):
            unnamed[name] = JSON_TYPE
        else:
            unnamed[name] = pa.large_binary() if is_media(field.type) else plain_type(field.type)
    unnamed |= {name: TEXT_TYPE for name, _ in list_path_columns(schema) if is_column_name(name)}
    return unnamed


def is_own_origin(field: pa.Field) -> bool:
    """Whether a field holds the origins of a finished dataset: they are left out, because records get new ones."""
    return bool(field.name == ORIGIN and field.type.equals(ORIGIN_TYPE))


def is_own_other_fields(field: pa.Field) -> bool:
    """Whether a field is the `other_fields` of a finished dataset: its content stays in `other_fields`."""
    return bool(field.name == OTHER_FIELDS and is_json(field))


class ColumnMapper:
    """A mapper of rows of one file to batches of the planned schema."""

    def __init__(self, read: Read, file: SourceFile, stored_schema: pa.Schema, planned: pa.Schema) -> None:
        self._read = read
        self._file = file
        self.planned = planned
        self._extra = extra_columns(planned)
        self._has_text = TEXT in planned.names
        if self._has_text:
            check_text_column(stored_schema, read.text, file.path)
        named = [name for name in self._extra if name in read.columns]
        kinds = {name: find_type(stored_schema, name) for name in named}
        for name, kind in kinds.items():
            if kind is not None and join_types(kind, self._extra[name]) != self._extra[name]:
                raise UsageError(
                    f"{file.path}: column {name!r} holds {kind}, but {self._extra[name]} in other files",
                    help="give it one type in all files, or read them as two sources",
                )
        self._present = {name for name, kind in kinds.items() if kind is not None}
        """The planned columns that this file has; the others are null, like a field that a JSON record lacks."""
        self._rest: list[str] = []
        """The columns that go to `other_fields`."""
        self._has_own_rest = False
        if CARRIES_ALL in (planned.metadata or {}):
            self._sort_unnamed(stored_schema)
        paths = [*([read.text] if self._has_text else []), *sorted(self._present), *self._rest]
        paths += [OTHER_FIELDS] if self._has_own_rest else []
        self._paths_of_media = dict(list_path_columns(stored_schema))
        """The columns of file names, with the columns of the images and sounds they belong to."""
        paths += [self._paths_of_media[name] for name in paths if name in self._paths_of_media]
        self.top_level = [
            name for name in stored_schema.names if any(f"{path}.".startswith(f"{name}.") for path in paths)
        ]
        """The file's columns that must be read."""

    def _sort_unnamed(self, stored_schema: pa.Schema) -> None:
        for name, kind in find_unnamed_columns(stored_schema, self._read, has_text=self._has_text).items():
            if kind is not None and name in self._extra and self._takes(name, kind):
                self._present.add(name)
            else:
                self._rest.append(name)
        self._has_own_rest = any(map(is_own_other_fields, stored_schema))
        if (self._rest or self._has_own_rest) and OTHER_FIELDS not in self._extra:
            raise UsageError(
                f"{self._file.path}: its columns {', '.join(self._rest)} did not exist when the run was planned",
                help="run the same command again: it makes a new plan",
            )

    def _takes(self, name: str, kind: pa.DataType) -> bool:
        planned = self._extra[name]
        if is_json(self.planned.field(name)):
            return True
        return not kind.equals(JSON_TYPE) and unite_types(kind, planned) == planned

    def batch(
        self, rows: pa.RecordBatch, first_row: int
    ) -> tuple[pa.RecordBatch, list[QuarantinedRecord], Counter[str]]:
        """Return the batch, the quarantined rows, and counters (see `UniteColumns`)."""
        arrays: dict[str, pa.Array] = {}
        reasons: Reasons = {}
        counters: Counter[str] = Counter()
        if self._has_text:
            raw = _map_column(rows, self._read.text)
            arrays[TEXT], reasons = _check_texts(raw, self._read.max_record_bytes)
        for name, planned in self._extra.items():
            if name == OTHER_FIELDS:
                arrays[name] = self._collect_other_fields(rows, counters)
            elif name not in self._present:
                arrays[name] = pa.nulls(len(rows), planned)
            elif is_json(self.planned.field(name)):
                arrays[name] = _encode_json_texts(rows, name, counters)
            elif name in self._paths_of_media:
                arrays[name] = _map_column(rows, f"{self._paths_of_media[name]}.path").cast(planned)
            elif is_media(rows.schema.field(name).type if name in rows.schema.names else planned):
                arrays[name] = _map_column(rows, f"{name}.bytes").cast(planned)
                reasons |= self._find_missing_media(rows.column(name), name)
            else:
                arrays[name] = _map_column(rows, name).cast(planned)
                reasons |= self._find_large_values(arrays[name], name)
        positions = np.arange(first_row, first_row + len(rows))
        if not reasons:
            return build_batch(self.planned, self._file.id, positions, arrays), [], counters
        good_rows = np.setdiff1d(np.arange(len(rows)), list(reasons))
        quarantined = [
            QuarantinedRecord(self._file.id, first_row + row, 0, reason, message, raw_text, num_bytes)
            for row, (reason, message, raw_text, num_bytes) in sorted(reasons.items())
        ]
        arrays = {name: array.take(pa.array(good_rows)) for name, array in arrays.items()}
        return build_batch(self.planned, self._file.id, positions[good_rows], arrays), quarantined, counters

    def _find_missing_media(self, values: pa.Array, name: str) -> Reasons:
        content, paths = values.field("bytes"), values.field("path")
        rows = _rows(pc.and_(pc.is_null(content), pc.is_valid(paths)))
        message = f"{name} names a file and does not hold its content"
        missing: Reasons = {row: ("image_not_embedded", f"{message}: {paths[row]}", None, 0) for row in rows}
        return missing | self._find_large_values(content, name)

    def _find_large_values(self, values: pa.Array, name: str) -> Reasons:
        """Find the values of a column of bytes that are larger than a record may be."""
        if not is_bytes(values.type):
            return {}
        sizes, most = pc.fill_null(pc.binary_length(values), 0), self._read.max_record_bytes
        message = f"more than max_record_bytes ({most})"
        large = _rows(pc.greater(sizes, most))
        return {
            row: ("too_large", f"{name} has {sizes[row]} bytes, {message}", None, sizes[row].as_py()) for row in large
        }

    def _collect_other_fields(self, rows: pa.RecordBatch, counters: Counter[str]) -> pa.Array:
        earlier = _encode_json_texts(rows, OTHER_FIELDS, counters) if self._has_own_rest else None
        if not self._rest:
            return pa.nulls(len(rows), TEXT_TYPE) if earlier is None else earlier
        row_fields: list[dict[str, Any]] = [{} for _ in range(len(rows))]
        for name in dict.fromkeys(self._rest):
            for other, value in zip(row_fields, _read_named_values(rows, name, counters), strict=True):
                if value is not None:
                    other[name] = value
        if earlier is not None:
            row_fields = [
                _merge_objects(text, other) for text, other in zip(earlier.to_pylist(), row_fields, strict=True)
            ]
        counters[OTHER_FIELDS] += sum(map(bool, row_fields))
        return to_json_text([other or None for other in row_fields])


def _read_named_values(rows: pa.RecordBatch, name: str, counters: Counter[str]) -> list[Any]:
    """Return the values of the column with this name; if several have it, a list of those that are not null."""
    columns = []
    for index in rows.schema.get_all_field_indices(name):
        array = _cast_to_plain_array(rows.column(index))
        counters[NAN_AS_NULL] += count_not_finite(array)
        columns.append(to_json_values(array, holds_json=is_json(rows.schema.field(index))))
    if len(columns) == 1:
        return columns[0]
    lists = [[value for value in row if value is not None] for row in zip(*columns, strict=True)]
    return [values or None for values in lists]


def _encode_json_texts(rows: pa.RecordBatch, name: str, counters: Counter[str]) -> pa.Array:
    array = _cast_to_plain_array(rows.column(name))
    counters[NAN_AS_NULL] += count_not_finite(array)
    return to_json_text(to_json_values(array, holds_json=is_json(rows.schema.field(name))))


def _merge_objects(earlier: str | None, other: dict[str, Any]) -> dict[str, Any]:
    """Merge the `other_fields` of a finished dataset with further fields; where keys clash, they stay one value."""
    if earlier is None:
        return other
    fields: dict[str, Any]
    try:
        fields = msgspec.json.decode(earlier, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        fields = {OTHER_FIELDS: earlier}
    if fields.keys() & other.keys():
        return {OTHER_FIELDS: msgspec.Raw(earlier.encode()), **other}
    return {**fields, **other}


def unite_file_columns(files: Iterable[dict[str, pa.DataType]]) -> dict[str, FieldType]:
    """Unite the unnamed columns of several files; a column is JSON text if no type holds the values of all files."""
    united: dict[str, FieldType] = {}
    for columns in files:
        for name, kind in columns.items():
            earlier = united.get(name, FieldType(kind, "JSON in the files" if kind.equals(JSON_TYPE) else ""))
            both = unite_types(earlier.type, kind)
            united[name] = earlier if both == earlier.type else _merge_field_types(earlier, kind, both)
    return united


def _merge_field_types(earlier: FieldType, kind: pa.DataType, both: pa.DataType | None) -> FieldType:
    if both is not None:
        return FieldType(both)
    return earlier if earlier.type.equals(JSON_TYPE) else FieldType(JSON_TYPE, f"{earlier.type} and {kind}")


def join_file_columns(schemas: Iterable[tuple[str, dict[str, pa.DataType]]]) -> dict[str, pa.DataType]:
    """Join the named columns of several files; a column must have one type in all of them."""
    joined: dict[str, tuple[str, pa.DataType]] = {}
    for path, columns in schemas:
        for name, kind in columns.items():
            first_path, first_kind = joined.get(name, (path, kind))
            both = join_types(first_kind, kind)
            if both is None:
                raise UsageError(
                    f"column {name!r} holds {first_kind} in {first_path}, but {kind} in {path}",
                    help="give it one type in all files, or read them as two sources",
                )
            joined[name] = first_path, both
    return {name: kind for name, (_, kind) in joined.items()}


def _map_column(rows: pa.RecordBatch, path: str) -> pa.Array:
    """Return a column or a field in it, without its encoding."""
    name, *inner = [path] if path in rows.schema.names else path.split(".")
    array = rows.column(name)
    for step in inner:
        array = pc.struct_field(array, step)
    return _cast_to_plain_array(array)


def _cast_to_plain_array(array: pa.Array) -> pa.Array:
    if isinstance(array.type, pa.JsonType):
        array = array.storage
    kind = plain_type(array.type)
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if array.type == kind:
        return array
    if pa.types.is_nested(array.type):
        # Arrow casts all values below a slice: of a column of lists that is cut into pieces, the whole column for each.
        array = array.take(pa.array(range(len(array)), pa.int64()))
    return array.cast(kind)


Reasons = dict[int, tuple[str, str, bytes | None, int]]
"""By row, why it is quarantined: the reason, the message, the raw bytes and their number."""


def _check_texts(raw: pa.Array, most: int) -> tuple[pa.Array, Reasons]:
    """Return the texts, with nulls in the place of bad ones, and the reasons of the bad ones by row."""
    reasons: Reasons = {}
    for row in _rows(pc.is_null(raw)):
        reasons[row] = "null_text", "the text is null", None, 0
    sizes = pc.fill_null(pc.binary_length(raw), 0)
    for row in _rows(pc.greater(sizes, most)):
        size = sizes[row].as_py()
        reasons[row] = "too_large", f"{size} bytes, more than max_record_bytes ({most})", None, size
    if raw.type in (pa.string(), pa.large_string()):
        raw = raw.cast(pa.large_binary())
    try:
        return raw.cast(TEXT_TYPE), reasons
    except pa.ArrowInvalid:
        values = raw.to_pylist()
    for row, value in enumerate(values):
        try:
            values[row] = None if value is None else value.decode()
        except UnicodeDecodeError as error:
            reasons.setdefault(row, ("invalid_utf8", str(error), value, len(value)))
            values[row] = None
    return pa.array(values, TEXT_TYPE), reasons


def _rows(mask: pa.Array) -> list[int]:
    rows: list[int] = np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()
    return rows


def holds_bytes(schema: pa.Schema) -> bool:
    """Whether a file has a column of bytes."""
    return any(is_bytes(plain_type(field.type)) or is_media(field.type) for field in schema)


def find_media_members(schema: pa.Schema) -> dict[str, str]:
    """Find the extensions of the columns of bytes that are members of samples."""
    members = dict.fromkeys(list_image_structs(schema), ANY_IMAGE)
    for field in schema:
        member = (find_member(field) or _name_member(field.name)) if is_bytes(plain_type(field.type)) else None
        if member is not None:
            members[field.name] = member
    return members


def _name_member(name: str) -> str | None:
    """Name the member of a column of plain bytes by the column; None if it cannot be an extension."""
    if name == IMAGE:
        return ANY_IMAGE
    return name if EXTENSION_NAME.fullmatch(name) else None


def list_path_columns(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """List the columns of file names for images and sounds, and the column that each belongs to.

    Samples with a key need none: the names were made of it.
    """
    if KEY in schema.names:
        return
    for field in schema:
        name = field.name + PATH_SUFFIX
        if is_media(field.type) and name not in schema.names:
            yield name, field.name
