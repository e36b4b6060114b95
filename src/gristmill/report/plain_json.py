"""Plain data as JSON and as text, also where it came from hostile files."""

from __future__ import annotations

import msgspec

_TEXT = "text"


def encode_plain(data: object) -> bytes:
    """Encode plain data; what JSON does not have becomes a text."""
    try:
        return msgspec.json.encode(data, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(_make_encodable(data), enc_hook=str)


def show_record(record: object) -> str:
    """Show a record as text: its text if it has one, else its columns as JSON, bytes by their number."""
    if isinstance(record, str):
        return record
    if isinstance(record, dict) and isinstance(record.get(_TEXT), str):
        return str(record[_TEXT])
    return msgspec.json.format(msgspec.json.encode(_make_encodable(record), enc_hook=repr), indent=2).decode()


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which no encoder takes."""
    return text.encode(errors="replace").decode()


def _make_encodable(value: object) -> object:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(str(name)): _make_encodable(inner) for name, inner in value.items()}
    return [_make_encodable(inner) for inner in value] if isinstance(value, list | tuple) else value
