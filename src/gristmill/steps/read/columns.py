"""What Parquet and Arrow readers share: from a file's columns to a source's columns.

Types are those of the files, without encodings: dictionaries and views become plain values. The text becomes
`large_string`; a null, too large or not UTF-8 text is set aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.names import nearest
from gristmill.core.records import CARRIES_ALL, ORIGIN, RECORD, SPLIT, TEXT, TEXT_TYPE, BadRecord
from gristmill.steps.read.batches import build_batch, extra_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.core.records import SourceFile
    from gristmill.steps.read.read import Read


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """A type without its encoding. Texts have one type, wherever they come from: sources must go together."""
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        return plain_type(arrow_type.value_type)
    if pa.types.is_string(arrow_type) or pa.types.is_string_view(arrow_type):
        return pa.large_string()
    if pa.types.is_binary(arrow_type) or pa.types.is_binary_view(arrow_type):
        return pa.large_binary()
    if pa.types.is_list(arrow_type):
        return pa.list_(plain_type(arrow_type.value_type))
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(plain_type(arrow_type.value_type))
    if pa.types.is_struct(arrow_type):
        return pa.struct([(field.name, plain_type(field.type)) for field in arrow_type])
    return arrow_type


def is_textual(arrow_type: pa.DataType) -> bool:
    kind = plain_type(arrow_type)
    types = pa.types
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def find_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of a column, or of a field in it: `payload.body`. A column may also have dots in its own name."""
    if path in schema.names:
        return plain_type(schema.field(path).type)
    name, *inner = path.split(".")
    if name not in schema.names:
        return None
    found = schema.field(name).type
    for step in inner:
        if not pa.types.is_struct(found) or found.get_field_index(step) < 0:
            return None
        found = found.field(step).type
    return plain_type(found)


def no_such_column(schema: pa.Schema, path: str, where: str) -> UsageError:
    meant = nearest(path, schema.names)
    hint = f'did you mean "{meant}"?' if meant else f"its columns are {', '.join(schema.names)}"
    return UsageError(f"{where}: there is no column {path!r}", help=hint)


def check_text_column(schema: pa.Schema, path: str, where: str) -> None:
    found = find_type(schema, path)
    if found is None:
        raise no_such_column(schema, path, where)
    if not is_textual(found):
        raise UsageError(
            f"{where}: column {path!r} holds {found}, not text", help="name the column that holds the text: `text: ...`"
        )


def carried_columns(schema: pa.Schema, read: Read) -> list[str]:
    """All columns of a file but its text; `origin` is left out because records get a new one.

    Who has named columns has chosen: of the others those are left out that would hide one of ours.
    """
    hidden = (ORIGIN, SPLIT, TEXT, RECORD) if read.columns else (ORIGIN, SPLIT)
    return [name for name in schema.names if name != read.text and name not in hidden]


class ColumnMapper:
    """Turns rows of one file into batches of the planned schema."""

    def __init__(self, read: Read, file: SourceFile, found: pa.Schema, planned: pa.Schema) -> None:
        self._read = read
        self._file = file
        self.planned = planned
        self._extra = extra_columns(planned)
        self._has_text = TEXT in planned.names
        if self._has_text:
            check_text_column(found, read.text, file.path)
        carries_all = CARRIES_ALL in (planned.metadata or {})
        if carries_all and (surplus := set(carried_columns(found, read)) - set(self._extra)):
            raise UsageError(
                f"{file.path}: columns {', '.join(sorted(surplus))} are not in the files that the plan was made from",
                help="name the columns you want: `columns: [...]`",
            )
        kinds = {name: find_type(found, name) for name in self._extra}
        self._absent = {name for name, kind in kinds.items() if kind is None}
        """They are null in this file, as a field that a JSON record lacks."""
        for name, kind in kinds.items():
            if kind is not None and joined_type(kind, self._extra[name]) != self._extra[name]:
                raise UsageError(
                    f"{file.path}: column {name!r} holds {kind}, but {self._extra[name]} in other files",
                    help="give it one type in all files, or read them as two sources",
                )
        paths = [*([read.text] if self._has_text else []), *sorted(set(self._extra) - self._absent)]
        self.top_level = [name for name in found.names if any(_lies_in(path, name) for path in paths)]
        """The file's columns that must be read."""

    def batch(self, rows: pa.RecordBatch, first_row: int) -> tuple[pa.RecordBatch, list[BadRecord]]:
        arrays: dict[str, pa.Array] = {}
        reasons: Reasons = {}
        if self._has_text:
            raw = _column(rows, self._read.text)
            arrays[TEXT], reasons = _checked_text(raw, self._read.max_record_bytes)
        for name, planned in self._extra.items():
            is_absent = name in self._absent
            arrays[name] = pa.nulls(len(rows), planned) if is_absent else _column(rows, name).cast(planned)
        positions = np.arange(first_row, first_row + len(rows))
        if not reasons:
            return build_batch(self.planned, self._file.id, positions, arrays), []
        kept = np.setdiff1d(np.arange(len(rows)), list(reasons))
        bad = [
            BadRecord(self._file.id, first_row + row, 0, reason, message, raw_text, num_bytes)
            for row, (reason, message, raw_text, num_bytes) in sorted(reasons.items())
        ]
        arrays = {name: array.take(pa.array(kept)) for name, array in arrays.items()}
        return build_batch(self.planned, self._file.id, positions[kept], arrays), bad


def joined_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds every value of both exactly; None if there is none.

    >>> joined_type(pa.int32(), pa.int64()), joined_type(pa.uint32(), pa.int32()), joined_type(pa.int64(), pa.float64())
    (DataType(int64), DataType(int64), None)
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    for wider in _WIDER:
        if one in wider and other in wider:
            return max(one, other, key=wider.index)
    types = pa.types
    if types.is_integer(one) and types.is_integer(other):  # one with a sign, one without
        signed, unsigned = (one, other) if types.is_signed_integer(one) else (other, one)
        width = max(signed.bit_width, 2 * unsigned.bit_width)
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(width)
    for test, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if test(one) and test(other):
            inner = joined_type(one.value_type, other.value_type)
            return None if inner is None else make(inner)
    return None


_WIDER = (
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    (pa.float16(), pa.float32(), pa.float64()),
)
"""Each holds the values of those before it."""


def joined_schema(schemas: Iterable[tuple[str, dict[str, pa.DataType]]]) -> dict[str, pa.DataType]:
    """The columns of several files; a column must have one type in all of them."""
    joined: dict[str, tuple[str, pa.DataType]] = {}
    for path, columns in schemas:
        for name, kind in columns.items():
            first_path, first_kind = joined.get(name, (path, kind))
            both = joined_type(first_kind, kind)
            if both is None:
                raise UsageError(
                    f"column {name!r} holds {first_kind} in {first_path}, but {kind} in {path}",
                    help="give it one type in all files, or read them as two sources",
                )
            joined[name] = first_path, both
    return {name: kind for name, (_, kind) in joined.items()}


def _lies_in(path: str, column: str) -> bool:
    return path == column or path.startswith(f"{column}.")


def _column(rows: pa.RecordBatch, path: str) -> pa.Array:
    """A column or a field in it, without its encoding."""
    name, *inner = [path] if path in rows.schema.names else path.split(".")
    array = rows.column(name)
    for step in inner:
        array = pc.struct_field(array, step)
    kind = plain_type(array.type)
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return array if array.type == kind else array.cast(kind)


Reasons = dict[int, tuple[str, str, bytes | None, int]]


def _checked_text(raw: pa.Array, most: int) -> tuple[pa.Array, Reasons]:
    """The text, with empty strings in place of what is bad; and why, by row."""
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
