"""The types of columns read from JSON, fixed before a run from a sample of the records.

The sample is the records in the first 256 KiB of up to 16 files spread over the source. A field's values there must be
of one type: strings, booleans, whole numbers, numbers (which may be whole), or lists of one of these. Nulls fit every
type; a field that is always null becomes text. A field that is in no record, or holds objects, is refused. A record
that does not fit is quarantined in the run as `column_type`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_values import decode_json
from gristmill.core.names import find_nearest
from gristmill.steps.read.json_files.json_fields import NUM_NAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAMES = {str: pa.large_string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


def infer_column_types(columns: Sequence[str], records: Iterable[Any]) -> dict[str, pa.DataType]:
    """Return the type of each column in a sample of decoded records.

    >>> records = [{"id": "a", "meta": {"score": 1}}, {"id": "b", "meta": {"score": 0.5}}]
    >>> infer_column_types(["id", "meta.score"], records)
    {'id': DataType(large_string), 'meta.score': DataType(double)}
    """
    sample = [record for record in records if isinstance(record, dict)]
    return {column: _infer_column_type(column, sample) for column in columns}


def decode_sample(content: bytes) -> Any:
    """Decode a record of a sample; None if it is not valid."""
    try:
        record = decode_json(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(record, dict):
        record.pop(NUM_NAN, None)
    return record


def find_values(path: str, records: Iterable[Any]) -> list[Any]:
    """Return the values of a field in the records that have it."""
    values = list(records)
    for name in path.split("."):
        values = [value[name] for value in values if isinstance(value, dict) and name in value]
    return values


def make_missing_field_error(subject: str, path: str, records: Iterable[Any]) -> UsageError:
    """Make the error for a field that no record of the sample has.

    >>> make_missing_field_error("text", "text", [{"messages": [{"role": "user"}]}]).help
    'chats become texts or tokens with the steps `render` and `tokenize`'
    >>> make_missing_field_error("text", "text", [{"pages": [{"body": "hello"}]}]).help
    'if the records are inside pages: use a .json file with `field: pages`'
    """
    sample = [record for record in records if isinstance(record, dict)]
    names = sorted({name for record in sample for name in record})
    arrays = [name for name in names if all(_holds_objects(record.get(name)) for record in sample)]
    meant = find_nearest(path, names)
    if arrays:
        hint = "chats become texts or tokens with the steps `render` and `tokenize`"
        if not {"messages", "conversations"} & {*arrays}:
            hint = f"if the records are inside {' or '.join(arrays[:5])}: use a .json file with `field: {arrays[0]}`"
        return UsageError(f"{subject}: no record of the sample has a field {path!r}", help=hint)
    hint = f'did you mean "{meant}"?' if meant else f"the fields there are {', '.join(names[:20])}"
    return UsageError(f"{subject}: no record of the sample has a field {path!r}", help=hint if names else None)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(inner, dict) for inner in value)


def _infer_column_type(column: str, sample: Sequence[dict[str, Any]]) -> pa.DataType:
    values = find_values(column, sample)
    if not values and sample:
        raise make_missing_field_error("columns", column, sample)
    return _infer_type(column, values)


def _infer_type(column: str, values: Sequence[Any]) -> pa.DataType:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {list}:
        return pa.large_list(_infer_type(column, [inner for value in values if value is not None for inner in value]))
    kinds.discard(Decimal)  # quarantined in the run, as a number out of range
    if dict in kinds:
        raise UsageError(f"columns: {column!r} holds objects", help=f"name a field in it: {column}.<field>")
    if kinds == {int, float}:
        kinds = {float}
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise UsageError(f"columns: {column!r} holds values of different types: {names}", help="leave it out")
    return _NAMES[kinds.pop()] if kinds else pa.large_string()
