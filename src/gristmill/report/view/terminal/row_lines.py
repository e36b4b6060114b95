r"""A described row as lines of styled text for a terminal.

Nothing in the data reaches the terminal as it is: control characters, also those that turn the direction of a text, are
shown as their code (`\x1b`), so that no record can move the cursor or change the window's title.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Segment = tuple[str, str]
"""A text and its style, a name of `STYLES`."""
Line = list[Segment]

STYLES = {
    "plain": "", "quiet": "2", "title": "1", "token": "48;5;236", "untrained": "2;4", "bad": "31", "deleted": "31;4",
    "inserted": "32;4", "mark": "7", "bar": "7",
}  # fmt: skip
"""The codes of each style for the terminal."""
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
_TAB = "    "


def make_printable(text: str) -> str:
    r"""Show control characters as their code.

    >>> make_printable("a\x1b[31mb\tc")
    'a\\x1b[31mb    c'
    """
    text = text.replace("\r\n", "\n").replace("\t", _TAB)
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def measure(character: str) -> int:
    """Return the number of columns that a character takes."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrap(segments: Iterable[Segment], width: int) -> list[Line]:
    """Break styled text into lines of at most this many columns."""
    lines: list[Line] = [[]]
    column = 0
    for text, style in segments:
        piece = ""
        for character in make_printable(text):
            size = 0 if character == "\n" else measure(character)
            if character == "\n" or column + size > width:
                lines[-1].append((piece, style))
                lines.append([])
                piece, column = "", 0
            if character != "\n":
                piece += character
                column += size
        if piece:
            lines[-1].append((piece, style))
    return lines


def make_lines(row: dict[str, Any], width: int, pattern: re.Pattern[str] | None = None) -> list[Line]:
    """Make the lines of a described row; what a pattern finds in its texts is marked."""
    lines = wrap(_make_header(row), width)
    for segments in _list_parts(row):
        lines += wrap(_mark_matches(segments, pattern), width)
    return [*lines, []]


def _make_header(row: dict[str, Any]) -> Iterator[Segment]:
    yield f"row {row['number']:,}", "title"
    step = row.get("step")
    if step:
        yield f"  row {step['stream_row']:,} of the stream, rank {step['rank']}, epoch {step['epoch']}", "quiet"
    if row.get("reason"):
        yield f"  {row['reason']}", "bad"
    if row.get("origin"):
        yield f"  {row['origin']}", "quiet"


def _list_parts(row: dict[str, Any]) -> Iterator[list[Segment]]:
    if row.get("bad"):
        yield [(row["bad"], "bad")]
    for number, side in enumerate(row.get("sides", ())):
        place = "" if side.get("row") is None else f", row {side['row']:,}"
        yield [(f"── {side['title']}{place}", "quiet")]
        style = ("deleted", "inserted")[number]
        if "tokens" in side:
            yield [(text, style if differs else "plain") for _, text, _, _, differs in side["tokens"]]
        else:
            yield [(text, style if differs else "plain") for text, differs in side["pieces"]]
    for document in row.get("documents", ()):
        trained = f", {document['num_trained']:,} trained" if "num_trained" in document else ""
        yield [(f"── {document['origin']} · {document['num_tokens']:,} tokens{trained}", "quiet")]
        yield [
            (text, ("token" if number % 2 else "plain") if trained else "untrained")
            for number, (_, text, trained, _) in enumerate(document["tokens"])
        ]
    for turn in row.get("turns", ()):
        yield [(f"── {turn['role']}", "title")]
        yield [(turn["text"], "plain")]
    if "text" in row:
        yield [(row["text"], "plain")]
    for picture in row.get("pictures", ()):
        yield [(f"[{picture['column']}: a picture of {picture['bytes']:,} bytes]", "quiet")]
    for name, value in {**row.get("scores", {}), **row.get("columns", {})}.items():
        yield [(f"{name}: ", "quiet"), (f"{value:.6g}" if isinstance(value, float) else str(value), "plain")]


def _mark_matches(segments: list[Segment], pattern: re.Pattern[str] | None) -> list[Segment]:
    if pattern is None:
        return segments
    marked: list[Segment] = []
    starts = [(match.start(), match.end()) for match in pattern.finditer("".join(text for text, _ in segments))]
    position = 0
    for text, style in segments:
        end = position + len(text)
        while position < end:
            inside = next(((first, last) for first, last in starts if last > position), None)
            if inside is None or inside[0] >= end:
                stop, own = end, style
            elif inside[0] > position:
                stop, own = inside[0], style
            else:
                stop, own = min(end, inside[1]), "mark"
            marked.append((text[len(text) - (end - position) : len(text) - (end - stop)], own))
            position = stop
    return marked


def encode_line(line: Line, width: int) -> str:
    """Encode a line for the terminal; a bar fills the whole width."""
    codes = []
    for text, style in line:
        code = STYLES[style]
        codes.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    if line and line[-1][1] == "bar":
        missing = width - sum(measure(character) for text, _ in line for character in text)
        codes.append(f"\x1b[{STYLES['bar']}m{' ' * max(0, missing)}\x1b[0m")
    return "".join(codes)
