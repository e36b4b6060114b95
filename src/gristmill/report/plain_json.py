"""Plain data as JSON, also where its texts came from hostile files."""

from __future__ import annotations

import msgspec


def encode_plain(data: object) -> bytes:
    """Encode plain data; what JSON does not have becomes a text."""
    try:
        return msgspec.json.encode(data, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(replace_surrogates(data), enc_hook=str)


def replace_surrogates(value: object) -> object:
    """Replace lone surrogates in the texts of plain data, which no encoder takes."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {replace_surrogates(name): replace_surrogates(inner) for name, inner in value.items()}
    return [replace_surrogates(inner) for inner in value] if isinstance(value, list | tuple) else value
