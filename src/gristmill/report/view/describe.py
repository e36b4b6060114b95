"""Records as plain data for a page or a terminal: turns of chats, text, pictures, columns. All of it may be hostile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core.media import find_image_extension
from gristmill.report.plain_json import show_record

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CHARACTERS = 100_000
"""Longer texts are cut, so that a page of rows stays a page."""
PICTURE_TYPES = {
    "jpg": "image/jpeg", "png": "image/png", "gif": "image/gif", "webp": "image/webp", "bmp": "image/bmp",
    "avif": "image/avif",
}  # fmt: skip
"""The formats that browsers show as pictures and that hold no script, by what their first bytes say. SVG is a text."""
_TURNS = ("messages", "conversations")
_OF_TURNS = {"role", "from", "content", "value"}


def find_picture_type(content: bytes) -> str | None:
    """Find the content type of a picture by its first bytes; None if it is not shown as one."""
    return PICTURE_TYPES.get(find_image_extension(content[:16]))


def list_pictures(record: object) -> list[tuple[str, bytes]]:
    """List the pictures anywhere in a record, each with the name of its column."""
    pictures: list[tuple[str, bytes]] = []

    def visit(name: str, value: object) -> None:
        if isinstance(value, bytes):
            if find_picture_type(value) is not None:
                pictures.append((name, value))
        elif isinstance(value, dict):
            for key, inner in value.items():
                visit(name or str(key), inner)
        elif isinstance(value, list):
            for inner in value:
                visit(name, inner)

    visit("", record)
    return pictures


def describe_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a record: its turns if it is a chat, its text if it has one, its pictures, and its other columns."""
    described: dict[str, Any] = {}
    turns = next((record[name] for name in _TURNS if record.get(name)), None)
    if isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns):
        described["turns"] = list(map(_describe_turn, turns))
    elif isinstance(record.get("text"), str):
        described["text"] = cut_text(record["text"])
    shown = set(_TURNS) if "turns" in described else {"text"} if "text" in described else set()
    pictures = list_pictures(record)
    if pictures:
        described["pictures"] = [{"column": name, "bytes": len(content)} for name, content in pictures]
    described["columns"] = {
        str(name): f"{len(value):,} bytes" if isinstance(value, bytes) else cut_text(show_record(value))
        for name, value in record.items()
        if name not in shown and value is not None
    }
    return described


def _describe_turn(turn: Mapping[str, Any]) -> dict[str, str]:
    """Describe a turn of a chat: its text, and below it what else it has, such as calls of tools."""
    content = turn.get("content", turn.get("value"))
    pieces = content if isinstance(content, list) else [content]
    texts = [show_record(piece) for piece in pieces if piece not in (None, "")]
    others = {name: value for name, value in turn.items() if name not in _OF_TURNS and value not in (None, "", [])}
    texts += [f"{name}: {show_record(value)}" for name, value in others.items()]
    return {"role": str(turn.get("role") or turn.get("from") or ""), "text": cut_text("\n".join(texts))}


def cut_text(text: str) -> str:
    """Cut a long text, and say so."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}\n… cut here: the text has {len(text):,} characters"
