"""Plain data as JSON and as text, also where it came from hostile files."""

from __future__ import annotations

import binascii
import math

import msgspec

from gristmill.core.media import find_image_extension

_TEXT = "text"
_FIRST_CHARACTERS = 24
"""The characters of base64 that are looked at: 18 bytes tell every format of pictures."""


def encode_plain(data: object) -> bytes:
    """Encode plain data; what JSON does not have becomes a text."""
    try:
        return msgspec.json.encode(data, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(_make_encodable(data), enc_hook=str)


def show_record(record: object) -> str:
    """Show a record as text: its text if it has one, else its columns as JSON, bytes by their number.

    >>> show_record(float("nan")), show_record(1.5)
    ('"nan"', '1.5')
    """
    if isinstance(record, str):
        return record
    if isinstance(record, dict) and isinstance(record.get(_TEXT), str):
        return str(record[_TEXT])
    return msgspec.json.format(msgspec.json.encode(_make_encodable(record), enc_hook=repr), indent=2).decode()


def restore_pictures(record: object) -> object:
    """Turn the pictures of a record back into bytes: in lines of dropped and quarantined records they are base64."""
    if isinstance(record, dict):
        return {name: restore_pictures(value) for name, value in record.items()}
    if isinstance(record, list):
        return [restore_pictures(value) for value in record]
    if isinstance(record, str) and find_image_extension(_decode_base64(record[:_FIRST_CHARACTERS])) != "img":
        return _decode_base64(record) or record
    return record


def _decode_base64(text: str) -> bytes:
    """Decode base64; nothing if it is none."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # also characters beyond ASCII
        return b""


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which no encoder takes."""
    return text.encode(errors="replace").decode()


def _make_encodable(value: object) -> object:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number, and null would be another one
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(str(name)): _make_encodable(inner) for name, inner in value.items()}
    return [_make_encodable(inner) for inner in value] if isinstance(value, list | tuple) else value
