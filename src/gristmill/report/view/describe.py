r"""Records as plain data for a page or a terminal: turns of chats, text, pictures, columns. All of it may be hostile.

Two texts or two lists of tokens become pieces for two sides. What is equal at the beginning and the end is found first.
Only the rest is compared word by word, and only if it is short: the time grows with the square of its length.

A described row also becomes lines of styled text for a terminal. Nothing in the data reaches the terminal as it is:
control characters, also those that turn the direction of a text, are shown as their code (`\x1b`), so that no record
can move the cursor or change the window's title.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from gristmill.core.media import find_image_extension
from gristmill.report.markup import show_record

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence


MAX_CHARACTERS = 100_000
"""Longer texts are cut, so that a page of rows stays a page."""
PICTURE_TYPES = {
    "jpg": "image/jpeg", "png": "image/png", "gif": "image/gif", "webp": "image/webp", "bmp": "image/bmp",
    "avif": "image/avif",
}  # fmt: skip
"""The formats that browsers show as pictures and that hold no script, by what their first bytes say. SVG is a text."""
_TURNS = ("messages", "conversations")
_OF_TURNS = {"role", "from", "content", "value"}
_MAX_ITEMS = 1000
_WORD = re.compile(r"\s+|\w+|[^\w\s]+")
Piece = tuple[str, int]
"""A text, and 1 if it differs; `MARKED` if it is the passage to look at."""
MARKED = 2


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


_LINE = 280
_CELL = 80
_AROUND = 40
_BEFORE = 12
"""Tokens before the trained text of a line."""


def shorten_row(row: dict[str, Any]) -> dict[str, Any]:
    """Shorten a described row to lines of a table: one of each document, or one of the record."""
    short = {name: row[name] for name in ("number", "reason", "why", "bad", "step") if row.get(name) is not None}
    if row.get("pictures"):
        short["pictures"] = len(row["pictures"])
    cells = {**row.get("columns", {}), **row.get("scores", {})}
    short["cells"] = {
        name: _flatten(value, _CELL) if isinstance(value, str) else value for name, value in cells.items()
    }
    documents = row.get("documents")
    if documents is None:
        line = {"origin": row.get("origin", ""), "source": row.get("source", ""), "text": _flatten(_find_text(row))}
        return {**short, "lines": [line]}
    fields = ("origin", "source", "num_tokens", "num_trained")
    short["lines"] = [
        {name: document[name] for name in fields if name in document}
        | {"text": _flatten(_find_trained(document["tokens"]))}
        for document in documents
    ]
    return short


def _find_trained(tokens: list[tuple[int, str, int, str]]) -> str:
    """Find the text around the first token that is trained: chats begin with the same words."""
    first = next((number for number, token in enumerate(tokens) if token[2]), 0)
    start = max(0, first - _BEFORE)
    return ("…" if start else "") + "".join(token[1] for token in tokens[start : start + _LINE])


def _find_text(row: dict[str, Any]) -> str:
    """Find what a line says of a row: what differs, its turns, its text, or its columns."""
    if row.get("sides"):
        return " → ".join(filter(None, map(_find_difference, row["sides"])))
    if row.get("turns"):
        return "  ".join(f"{turn['role']}: {turn['text'][:_LINE]}" for turn in row["turns"][:3])
    return str(row.get("text") or row.get("bad") or "")


def _find_difference(side: dict[str, Any]) -> str:
    """Find the first piece of a side that differs, with what stands before it."""
    pieces = [token[1::3] for token in side["tokens"]] if "tokens" in side else side.get("pieces", ())
    before = ""
    for text, differs in pieces:
        if differs:
            return f"{before[-_AROUND:]}[{text[:_AROUND]}]"
        before = (before + text)[-2 * _AROUND :]
    return before[-_AROUND:]


def _flatten(text: str, most: int = _LINE) -> str:
    """Write a text in one line, and cut it."""
    start = " ".join(text[: 4 * most].split())
    return start if len(start) <= most and len(text) <= 4 * most else f"{start[:most]}…"


def cut_text(text: str) -> str:
    """Cut a long text, and say so."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}\n… cut here: the text has {len(text):,} characters"


def mark_difference(a: str, b: str) -> tuple[list[Piece], list[Piece]]:
    """Cut two texts into pieces that are equal and pieces that differ.

    >>> mark_difference("one two three", "one 2 three")
    ([('one ', 0), ('two', 1), (' three', 0)], [('one ', 0), ('2', 1), (' three', 0)])
    """
    sides = [_WORD.findall(text) for text in (a, b)]
    return tuple(  # type: ignore[return-value]
        [("".join(words[start:end]), int(differs)) for start, end, differs in spans if start < end]
        for words, spans in zip(sides, find_spans(*sides), strict=True)
    )


def find_spans(
    a: Sequence[Hashable], b: Sequence[Hashable]
) -> tuple[list[tuple[int, int, bool]], list[tuple[int, int, bool]]]:
    """Find the spans of two sequences, in order, that are equal and that differ."""
    shorter = min(len(a), len(b))
    head = next((number for number in range(shorter) if a[number] != b[number]), shorter)
    tail = next((number for number in range(shorter - head) if a[-1 - number] != b[-1 - number]), shorter - head)
    spans_a, spans_b = [(0, head, False)], [(0, head, False)]
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if max(len(middle_a), len(middle_b)) <= _MAX_ITEMS:
        for tag, start_a, end_a, start_b, end_b in SequenceMatcher(None, middle_a, middle_b, False).get_opcodes():
            spans_a.append((head + start_a, head + end_a, tag != "equal"))
            spans_b.append((head + start_b, head + end_b, tag != "equal"))
    else:
        spans_a.append((head, len(a) - tail, True))
        spans_b.append((head, len(b) - tail, True))
    spans_a.append((len(a) - tail, len(a), False))
    spans_b.append((len(b) - tail, len(b), False))
    return spans_a, spans_b


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
    """Break styled text into lines of at most this many columns, before a word if it fits on a line.

    >>> ["".join(text for text, _ in line) for line in wrap([("one tw", "plain"), ("o three花花", "token")], 8)]
    ['one two ', 'three花', '花']
    """
    lines: list[Line] = []
    line: Line = []
    """Its characters, each with a style."""
    column = word = 0
    for text, style in segments:
        for character in make_printable(text):
            if character == "\n":
                lines.append(_join_styles(line))
                line, column, word = [], 0, 0
                continue
            size = measure(character)
            if column + size > width:
                # A wide character is a word by itself, and the space between two lines is not shown.
                first = word if size == 1 and character != " " and word else len(line)
                lines.append(_join_styles(line[:first]))
                line, word = line[first:], 0
                column = sum(measure(char) for char, _ in line)
                if character == " ":
                    continue
            line.append((character, style))
            column += size
            if character == " " or size == 2:
                word = len(line)
    return [*lines, _join_styles(line)]


def _join_styles(characters: Line) -> Line:
    groups = itertools.groupby(characters, lambda pair: pair[1])
    return [("".join(character for character, _ in group), style) for style, group in groups]


def make_lines(row: dict[str, Any], width: int, pattern: re.Pattern[str] | None = None) -> list[Line]:
    """Make the lines of a described row; what a pattern finds in its texts is marked."""
    lines = wrap(_make_header(row), width)
    for part in _list_parts(row):
        segments = [(text.replace("\r\n", "\n"), style) for text, style in part]  # a mark may end between the two
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
            styles = ("plain", style, "mark")
            yield [(text, styles[differs]) for text, differs in side["pieces"]]
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
