"""Changing a few values of a JSON record without touching the others: what is not changed keeps its very bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def with_values(line: bytes, changes: Iterable[tuple[Sequence[str], Any]]) -> bytes:
    """The record with values put in at their paths.

    >>> with_values(b'{"id": 1.50, "body": {"text": "a"}}', [(("body", "text"), "b")])
    b'{"id":1.50,"body":{"text":"b"}}'
    """
    record = _decode(line)
    for path, value in changes:
        _put(record, path, value)
    return msgspec.json.encode(record)


def with_names(line: bytes, names: Mapping[str, str]) -> bytes:
    """The record with keys renamed in their places; `ValueError` if a new name is taken.

    >>> with_names(b'{"id": 1.50, "url": "a"}', {"url": "link"})
    b'{"id":1.50,"link":"a"}'
    """
    record = _decode(line)
    renamed = {names.get(key, key): value for key, value in record.items()}
    if len(renamed) < len(record):
        taken = sorted(new for old, new in names.items() if old in record and new in record and new not in names)
        raise ValueError(f"the record already has {', '.join(taken)}")
    return msgspec.json.encode(renamed)


def _put(record: dict[str, msgspec.Raw], path: Sequence[str], value: Any) -> None:
    key, *rest = path
    if rest:
        inner = _decode(record.get(key, msgspec.Raw(b"{}")))
        _put(inner, rest, value)
        value = inner
    record[key] = msgspec.Raw(msgspec.json.encode(value))
