"""A look at an ONNX file before a library loads it: it must be whole, and may not name other files.

An ONNX file is a protocol buffer. Its tensors may lie in other files of any path, which the library would read. This
walks through all tensors of the graph, of its subgraphs and functions, and finds such names. O(number of messages).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BYTES, _VARINT = 2, 0
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_DEPTH = 64
_MAX_SHIFT = 63
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "training": {1: "graph", 2: "graph"},
    "tensor": {13: "external"},
    "external": {},
}
"""By kind of message: which fields are messages that may hold tensors."""


def check_onnx_file(content: bytes) -> None:
    """Check that a file is an ONNX model with all its tensors inside.

    Raises:
        ValueError: It is not.
    """
    view = memoryview(content)
    if not any(number == 7 for number, _ in _read_fields(view)):
        raise ValueError("it is not an ONNX model")
    _check_message(view, "model", 0)


def _check_message(message: memoryview, kind: str, depth: int) -> None:
    if kind == "external":
        raise ValueError("its numbers are in other files; save it as one file")
    if depth > _MAX_DEPTH:
        raise ValueError("it is damaged: its graphs are nested too deeply")
    for number, value in _read_fields(message):
        child = _FIELDS[kind].get(number)
        if child is not None and value is not None:
            _check_message(value, child, depth + 1)


def _read_fields(message: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yield the number of each field, and its bytes if it has a length."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, position = _read_varint(message, position)
            yield number, None
            continue
        if kind == _BYTES:
            size, position = _read_varint(message, position)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            raise ValueError("it is damaged, or not an ONNX model")
        if size > len(message) - position:
            raise ValueError("it ends too early, or is not an ONNX model")
        yield number, message[position : position + size] if kind == _BYTES else None
        position += size


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift <= _MAX_SHIFT:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("it is damaged, or not an ONNX model")
