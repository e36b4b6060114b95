"""A decoder of the needed fields of JSON objects, with the reasons for objects that cannot be decoded.

msgspec alone decides whether a record is valid: one grammar (RFC 8259, UTF-8, no lone surrogates), typed fields,
everything else checked but not built. Only records that it refuses are parsed a second time, to find the reason.
"""

from __future__ import annotations

import json
import operator
import re
import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_values import decode_json, is_huge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
