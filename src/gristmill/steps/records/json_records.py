"""Changes of a few values of a JSON record: all other values keep their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.records import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def with_values(line: bytes | memoryview, changes: Iterable[tuple[Sequence[str], Any]]) -> bytes:
    """Return the record with these values at their paths.

    >>> with_values(b'{"id": 1.50, "body": {"text": "a"}}', [(("body", "text"), "b")])
    b'{"id":1.50,"body":{"text":"b"}}'
    """
    record = _decode(line)
    for path, value in changes:
        _set_value(record, path, value)
    return msgspec.json.encode(record)


def with_new_value(line: bytes, name: str, value: Any) -> bytes:
    """Return the record with a new key; `ValueError` if it has the key already.

    >>> with_new_value(b'{"id": 1.50}', "n", 2)
    b'{"id":1.50,"n":2}'
    """
    record = _decode(line)
    if name in record:
        raise ValueError(f"a record already has the key {name}")
    _set_value(record, (name,), value)
    return msgspec.json.encode(record)


def with_text(line: bytes, text: str) -> bytes:
    """Return the record with its text under `text`; `ValueError` if another value is there.

    >>> with_text(b'{"id": 1.50}', "a"), with_text(b'{"text": "a", "id": 1.50}', "a")
    (b'{"id":1.50,"text":"a"}', b'{"text": "a", "id": 1.50}')
    """
    record = _decode(line)
    if TEXT not in record:
        return with_values(line, [((TEXT,), text)])
    if msgspec.json.decode(record[TEXT]) != text:
        raise ValueError("the record has another value under text: name the field that holds the text, `text: ...`")
    return line


def with_names(line: bytes, names: Mapping[str, str]) -> bytes:
    """Return the record with keys renamed in place; `ValueError` if it has a new name already.

    >>> with_names(b'{"id": 1.50, "url": "a"}', {"url": "link"})
    b'{"id":1.50,"link":"a"}'
    """
    record = _decode(line)
    renamed = {names.get(key, key): value for key, value in record.items()}
    if len(renamed) < len(record):
        clashes = sorted(new for old, new in names.items() if old in record and new in record and new not in names)
        raise ValueError(f"the record already has {', '.join(clashes)}")
    return msgspec.json.encode(renamed)


def _set_value(record: dict[str, msgspec.Raw], path: Sequence[str], value: Any) -> None:
    key, *rest = path
    if rest:
        inner = _decode(record.get(key, msgspec.Raw(b"{}")))
        _set_value(inner, rest, value)
        value = inner
    record[key] = msgspec.Raw(msgspec.json.encode(value))
