"""A decoder of the needed fields of JSON objects, with the reasons for objects that cannot be decoded.

msgspec alone decides whether a record is valid: one grammar (RFC 8259, UTF-8, no lone surrogates), typed fields,
everything else checked but not built. Only records that it refuses are parsed a second time, to find the reason.

Types of columns are fixed before a run from a sample: the records in the first 256 KiB of up to 16 files spread over
the source. A field's values there must be of one type: strings, booleans, whole numbers, numbers (which may be whole),
or lists of one of these. Nulls fit every type; a field that is always null becomes text. A field that is in no record,
or holds objects, is refused. A record that does not fit is quarantined in the run as `column_type`.

Python dicts become lines of JSON, or lines that say why this is not possible. Numbers and arrays of numpy become plain
ones, times become ISO 8601 text, bytes base64, and numbers that JSON does not have (NaN, infinity) null; the line says
how many these are. Values that JSON cannot hold (sets, objects) are never changed to fit: the record is quarantined
when its line is read. Cost: about 1 µs a value.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import operator
import re
import threading
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.json_values import decode_json, encode_json, is_huge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


REFUSED = "\0refused"
"""The key of an object in the place of a Python record that is not JSON; its value is the reason and the message."""
NUM_NAN = "\0nan"
"""The last key of an object from Python in which numbers became null; its value is how many."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_SCALARS: dict[pa.DataType, Any] = {
    pa.large_string(): str,
    pa.int64(): Int64,
    pa.float64(): float,
    pa.bool_(): bool,
}
_UNREADABLE = re.compile(r'["\\\x00-\x1f]')
"""Characters that msgspec takes in no name of a field."""
_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class JsonFields:
    """A decoder of some fields of an object. Dots in a path step into objects.

    >>> fields = JsonFields("payload.body", {"id": pa.int64()})
    >>> row = fields.decode(b'{"id": 7, "payload": {"body": "hello", "more": []}}')
    >>> fields.texts([row]), fields.values("id", [row])
    (['hello'], [7])
    """

    def __init__(self, text: str | None, columns: Mapping[str, pa.DataType]) -> None:
        self.text = text
        self._columns = dict(columns)
        tree: dict[str, Any] = {}
        for path, arrow_type in columns.items():
            _insert(tree, path, python_type(arrow_type) | None)
        if text is not None:
            _insert(tree, text, str)
        self._attributes: dict[str, str] = {}
        struct = self._struct(tree, "", "")
        decoder = msgspec.json.Decoder(struct)
        self.decode: Callable[[bytes | memoryview], Any] = decoder.decode
        self.decode_lines: Callable[[bytes | memoryview], list[Any]] = decoder.decode_lines
        self.decode_array: Callable[[bytes | memoryview], list[Any]] = msgspec.json.Decoder(list[struct]).decode  # type: ignore[valid-type]
        self._get_text = operator.attrgetter(self._attributes[text]) if text is not None else None

    def texts(self, rows: Sequence[Any]) -> list[str]:
        assert self._get_text is not None
        return list(map(self._get_text, rows))

    def values(self, path: str, rows: Sequence[Any]) -> list[Any]:
        """Return a column's value in each row; None if it is null or missing."""
        values = list(rows)
        for name in self._attributes[path].split("."):
            values = [None if value is None else getattr(value, name) for value in values]
        return values

    def retry(self, line: bytes) -> Any:
        """Decode in a new thread: how deep objects may nest must not depend on the caller's stack."""
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(_try_decode(self.decode, line)))
        thread.start()
        thread.join()
        if isinstance(result[0], Exception):
            raise result[0]
        return result[0]

    def refusal(self, line: bytes, error: Exception) -> tuple[str, str]:
        """Return the reason and the message for a record that could not be decoded."""
        if isinstance(error, UnicodeDecodeError):
            return "invalid_utf8", str(error)
        if isinstance(error, RecursionError):
            return "invalid_json", "objects or arrays nest too deeply"
        try:
            record = decode_json(line)
            if not isinstance(error, msgspec.ValidationError):
                raise error
        except _REFUSALS as fault:
            is_surrogate = isinstance(fault, msgspec.DecodeError) and _has_lone_surrogate(line)
            return (
                ("lone_surrogate", "a surrogate without its partner") if is_surrogate else ("invalid_json", str(fault))
            )
        return self._find_mismatch(record, str(error))

    def _find_mismatch(self, value: Any, message: str) -> tuple[str, str]:
        if not isinstance(value, dict):
            return "not_an_object", message
        if REFUSED in value:
            reason, explanation = value[REFUSED]
            return str(reason), str(explanation)
        record = value
        if self.text is None:
            return self._find_column_mismatch(record, message)
        for name in self.text.split("."):
            if not isinstance(value, dict) or name not in value:
                return "missing_text", f"no field {self.text!r}"
            value = value[name]
        if value is None:
            return "null_text", f"{self.text!r} is null"
        if not isinstance(value, str):
            return "text_not_a_string", message
        return self._find_column_mismatch(record, message)

    def _find_column_mismatch(self, record: dict[str, Any], message: str) -> tuple[str, str]:
        """Return why a column does not fit: it has another type, or a number is out of range."""
        for path in self._columns:
            value: Any = record
            for name in path.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if any(map(is_huge, _leaves(value))):
                return "number_out_of_range", f"{path!r} holds a number outside int64 and float64"
        return "column_type", message

    def _struct(self, tree: Mapping[str, Any], path: str, attribute: str) -> type[msgspec.Struct]:
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        names: dict[str, str] = {}
        for index, (name, node) in enumerate(tree.items()):
            inner_path, inner_attribute = f"{path}{name}", f"{attribute}f{index}"
            is_text = self.text is not None and f"{self.text}.".startswith(f"{inner_path}.")
            if isinstance(node, dict):
                node = self._struct(node, f"{inner_path}.", f"{inner_attribute}.")  # noqa: PLW2901
                node = node if is_text else node | None  # noqa: PLW2901
            self._attributes[inner_path] = inner_attribute
            names[f"f{index}"] = name
            fields.append((f"f{index}", node) if is_text else (f"f{index}", node, None))
        return msgspec.defstruct("Record", fields, rename=names, kw_only=True, gc=False)


def python_type(arrow_type: pa.DataType) -> Any:
    """Return the type that a JSON value must have for a column."""
    if pa.types.is_large_list(arrow_type):
        return list[python_type(arrow_type.value_type) | None]  # type: ignore[misc]
    return _SCALARS[arrow_type]


def _insert(tree: dict[str, Any], path: str, leaf: Any) -> None:
    if _UNREADABLE.search(path):
        raise UsageError(
            f"{path!r} cannot be read: the name of a field has a quote, a backslash or a control character",
            help="rename the field, or write jsonl without naming columns: whole lines are copied",
        )
    *outer, last = path.split(".")
    for name in outer:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise UsageError(f"{path!r} is inside a field that is read as a whole", help="name one or the other")
    if last in tree:
        raise UsageError(f"{path!r} is read twice", help="name a field once")
    tree[last] = leaf


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _try_decode(decode: Callable[[bytes | memoryview], Any], line: bytes) -> Any:
    try:
        return decode(line)
    except _REFUSALS as error:
        return error


def _has_lone_surrogate(line: bytes) -> bool:
    """Whether the line is well-formed JSON except for lone surrogates."""
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


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
    'the records look like chats: add the step `render`, and `tokenize` for tokens'
    >>> make_missing_field_error("text", "text", [{"pages": [{"body": "hello"}]}]).help
    'if the records are inside pages: use a .json file with `field: pages`'
    """
    sample = [record for record in records if isinstance(record, dict)]
    names = sorted({name for record in sample for name in record})
    arrays = [name for name in names if all(_holds_objects(record.get(name)) for record in sample)]
    meant = find_nearest(path, names)
    from gristmill.text.chats.shapes import suggest_render  # noqa: PLC0415  (only for an error)

    render = suggest_render(sample[0]) if sample else ""
    ids = [name for name in names if name.endswith("ids") and any(_holds_ids(record.get(name)) for record in sample)]
    if ids:
        hint = f"the records look like token ids: `ids: {ids[0]}`, and their tokenizer or `vocab_size`"
    elif render:
        hint = f"the records look like chats: add the step `{render}`, and `tokenize` for tokens"
    elif arrays:
        hint = f"if the records are inside {' or '.join(arrays[:5])}: use a .json file with `field: {arrays[0]}`"
    else:
        hint = f'did you mean "{meant}"?' if meant else f"the fields there are {', '.join(names[:20])}"
    return UsageError(f"{subject}: no record of the sample has a field {path!r}", help=hint if names else None)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(inner, dict) for inner in value)


def _holds_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(inner) is int for inner in value)


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


_SHOWN_CHARACTERS = 1000
_MAX_BITS = 13_000
"""The size of whole numbers from which on Python refuses to write them: 4,300 digits."""
REFUSED_LINE = msgspec.json.encode({REFUSED: []})[:-3]
"""The beginning of a line that says why a record cannot be JSON."""
_TIMES = (dt.date, dt.time)  # a datetime is a date too


class _NotJson(Exception):
    """A record holds a value that JSON cannot hold; the message says where."""


def encode_json_line(record: object) -> bytes:
    r"""Encode a record as one line, with its line end.

    >>> encode_json_line({"text": "a", "day": dt.date(2024, 2, 29)})
    b'{"text":"a","day":"2024-02-29"}\n'
    """
    if not isinstance(record, Mapping):
        return _encode_refusal(record, "not_an_object", f"a record must be a dict, not {type(record).__name__}")
    try:
        nan: list[str] = []
        plain = _to_json_value(record, "", nan)
        return encode_json({**plain, NUM_NAN: len(nan)} if nan else plain) + b"\n"
    except UnicodeEncodeError as error:
        return _encode_refusal(record, "lone_surrogate", str(error))
    except (_NotJson, RecursionError, OverflowError, ValueError) as error:
        return _encode_refusal(record, "not_json", str(error))


def _to_json_value(value: Any, path: str, nan: list[str]) -> Any:
    """Convert a value to one that JSON can hold; `nan` gets the places of numbers that became null."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if value.bit_length() < _MAX_BITS else Decimal(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            nan.append(path)
            return None
        return float(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {
            _check_key(key, path): _to_json_value(inner, f"{path}.{key}" if path else str(key), nan)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_to_json_value(inner, f"{path}[{index}]", nan) for index, inner in enumerate(value)]
    if isinstance(value, _TIMES):
        return value.isoformat()
    if isinstance(value, (str, int)):
        return str(value) if isinstance(value, str) else int(value)
    if hasattr(value, "tolist") and not isinstance(inner := value.tolist(), kind):  # numpy's numbers and arrays
        return _to_json_value(inner, path, nan)
    raise _NotJson(f"{path} holds {kind.__name__}, which JSON cannot hold")


def _check_key(key: object, path: str) -> str:
    if isinstance(key, str):
        return key
    raise _NotJson(f"{path or 'the record'} has the key {key!r}, which is not text")


def _encode_refusal(record: object, reason: str, message: str) -> bytes:
    record_text = repr(record)[:_SHOWN_CHARACTERS].encode(errors="backslashreplace").decode()
    message = message.encode(errors="backslashreplace").decode()
    return msgspec.json.encode({REFUSED: [reason, message], "record": record_text}) + b"\n"
