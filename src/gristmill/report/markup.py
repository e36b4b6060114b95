"""HTML and SVG as values: a text is escaped when it becomes part of an element, so that no data can be markup.

A page is a tree of calls: `element("p", "a < b", class_="note")`. Only `Markup` is taken as it is, and only this module
and the charts make some. Control characters that HTML cannot hold are shown as their code. Records become JSON or text
here too, also those of hostile files.
"""

from __future__ import annotations

import binascii
import math
import re
from html import escape
from typing import TYPE_CHECKING, Final

import msgspec

from gristmill.core.media import find_image_extension

if TYPE_CHECKING:
    from collections.abc import Sequence


Row = tuple[object, ...]

# What XML and HTML forbid, and the characters that change the direction of the text around them.
_FORBIDDEN: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
_UNPRINTABLE: Final = re.compile(f"[{_FORBIDDEN}]")
_SPECIAL: Final = re.compile(f"[&<>\"'{_FORBIDDEN}]")
_VOID: Final = frozenset({"br", "input", "link", "meta", "img", "hr"})
_TEXT = "text"
_FIRST_CHARACTERS = 24
"""The characters of base64 that are looked at: 18 bytes tell every format of pictures."""


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def escape_text(text: str) -> Markup:
    r"""Escape text for the content of an element or for a quoted attribute.

    >>> escape_text("<b>'x' & \x1b[0m")
    '&lt;b&gt;&#x27;x&#x27; &amp; \\x1b[0m'
    """
    if not _SPECIAL.search(text):  # thousands of names and numbers
        return Markup(text)
    return Markup(escape(_UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Make an element. Attributes are written without a last underscore, and with hyphens; None leaves one out.

    >>> element("a", "next & last", href="#x", aria_label="go", class_=None)
    '<a href="#x" aria-label="go">next &amp; last</a>'
    """
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        written = name.rstrip("_").replace("_", "-")
        words.append(written if value is True else f'{written}="{escape_text(str(value))}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if tag in _VOID else f"{opening}{join(*children)}</{tag}>")


def join(*children: object) -> Markup:
    """Join texts, which are escaped, and markup, which is not. None and empty lists give nothing."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, (list, tuple)):
            parts.append(join(*child))
        else:
            parts.append(escape_text(str(child)))
    return Markup("".join(parts))


def table(
    heads: tuple[str, ...], rows: Sequence[Row], *, max_rows: int = 200, words: int = 1, has_total: bool = False
) -> Markup:
    """Make a table. Columns of numbers are aligned to the right, but for the first `words`; rows above `max_rows` are
    only counted.
    """
    shown = rows[:max_rows]
    is_number = [
        number >= words and all(_is_number(row[number]) or not row[number] for row in shown) and bool(shown)
        for number in range(len(heads))
    ]
    classes = ["number" if right else None for right in is_number]
    body = [
        element(
            "tr",
            *(element("td", cell, class_=class_) for cell, class_ in zip(row, classes, strict=True)),
            class_="total" if has_total and number == len(rows) - 1 else None,
        )
        for number, row in enumerate(shown)
    ]
    if len(rows) > max_rows:
        body.append(element("tr", element("td", f"{len(rows) - max_rows:,} more in report.json", colspan=len(heads))))
    named = zip(heads, classes, strict=True)
    head = element("tr", *(element("th", name, scope="col", class_=class_) for name, class_ in named))
    return element(
        "div", element("table", element("thead", head), element("tbody", *body)), class_="scroll", tabindex="0"
    )


def make_tabs(group: str, label: str, panels: Sequence[tuple[str, str, Markup]]) -> Markup:
    """Make tabs of `(name, title, body)`. Without a script all bodies are shown, each below its title."""
    tabs = [
        element(
            "button", title, type="button", role="tab", id=f"tab-{name}",
            aria_controls=f"panel-{name}", aria_selected="false",
        )
        for name, title, _ in panels
    ]  # fmt: skip
    bodies = [
        element("div", element("h3", title), body, role="tabpanel", id=f"panel-{name}", aria_labelledby=f"tab-{name}")
        for name, title, body in panels
    ]
    return join(element("div", *tabs, role="tablist", class_=f"tabs {group}", hidden=True, aria_label=label), *bodies)


_TAGS: Final = re.compile(r"<[^>]*>")


def _is_number(cell: object) -> bool:
    text = _TAGS.sub("", cell) if isinstance(cell, Markup) else str(cell)
    return bool(text) and text.lstrip("-<>+")[:1].isdigit() and len(text) < 24


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
