r"""Literals: texts that every match of a search has, looked for in raw bytes before anything is decoded.

A literal holds only characters that are written alike in a column of text, in a line of JSON and in a record that
is shown as JSON: words, spaces and some marks between them. So bytes without the literal are without a match. Two bytes
of it are compared by NumPy in pieces that fit a core's cache, 2 GB/s a core, and the rest only where both fit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_WINDOW = 1 << 17
_CASE = 0x20
"""The bit that capitals of ASCII do not have. Bytes are compared with it set, so some others seem equal, too."""
_RUN = re.compile(r"\w(?:[\w .,;'()-]*\w)?")
"""Marks between values of shown JSON are never within a run: spaces follow a colon or a space, commas end a line."""
_FOLDED_OUTSIDE = re.compile(r"[KkSs\u212a\u017f]+")
"""The letters of ASCII that have a third form outside of it, and those forms."""
_NUMBER = re.compile(r"[0-9.eE-]*")
_COMMON_FIRST = b" etaoinsrhldcumfpgwybvkxjqz"
_CLASS = r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"
_TOKEN = re.compile(rf"\\Q|\\.|{_CLASS}|\{{[^}}]*\}}|.", re.DOTALL)
_KNOWN_ESCAPES = frozenset("dDsSwWbBAznrtfv")
_GROUP = re.compile(rf"\\.|{_CLASS}|\((?:\?P?<[^>=!]*>|(?!\?))", re.DOTALL)


def find_literal(text: str) -> bytes | None:
    r"""Find the longest literal that every text with `text` has, whatever its case; None: there is none.

    >>> find_literal("warning, tea"), find_literal('say "no more"'), find_literal("1.5e3")
    (b'warning, tea', b'no more', None)
    >>> find_literal("a risky step")
    b'a ri'
    """
    parts = (
        part
        for piece in _FOLDED_OUTSIDE.split(re.sub(r"  +", "\n", text))
        for part in _RUN.findall("".join(char if _has_one_form(char) else "\n" for char in piece))
    )
    usable = (part.encode() for part in parts if not _NUMBER.fullmatch(part))
    longest = max(usable, key=len, default=b"")
    return longest if len(longest) > 1 else None


def find_regex_literal(expression: str) -> bytes | None:
    r"""Find the longest literal that every match of an expression has; None: none is known.

    >>> find_regex_literal(r"colou?r\s+of (?:the|a) house[s]?"), find_regex_literal("this|that")
    (b'colo', None)
    >>> find_regex_literal(r"\bhttps?://(www\.)?wiki[pm]edia\.org")
    b'edia.org'
    """
    run = ""
    depth = 0
    for token in _TOKEN.findall(expression):
        if token in "()":
            depth += 1 if token == "(" else -1
            run += "\n"
        elif token == r"\Q" or (token == "|" and not depth):
            return None
        elif token[0] == "\\" and token[1].isalnum() and token[1] not in _KNOWN_ESCAPES:
            return None  # a code, or something else that has further characters
        elif depth:
            continue
        elif token[0] in "*?{":
            run = run[:-1] + "\n"
        elif token[0] in "+.^$[" or (token[0] == "\\" and token[1].isalnum()):
            run += "\n"
        else:
            run += token[-1]
    return find_literal(run)


def remove_groups(expression: str) -> str:
    r"""Make all groups of an expression plain: only the whole match is shown, and groups would have to be named.

    >>> remove_groups(r"(a|[(]b)\((?P<name>c)(?i:d)")
    '(?:a|[(]b)\\((?:c)(?i:d)'
    """
    return _GROUP.sub(lambda match: "(?:" if match[0].startswith("(") else match[0], expression)


def find_bytes(data: NDArray[np.uint8], literal: bytes) -> NDArray[np.int64]:
    """Find where some bytes may begin with a literal of two bytes or more, whatever its case.

    >>> find_bytes(np.frombuffer(b"Warning, tea. WARNING.", np.uint8), b"warning").tolist()
    [0, 14]
    """
    folded = [byte | _CASE for byte in literal]
    first, second = sorted(sorted(range(len(folded)), key=lambda place: _rate_rarity(folded[place]))[-2:])
    positions = []
    for begin, window in _list_windows(data, len(literal)):
        low = np.bitwise_or(window, _CASE)
        count = len(window) - len(literal) + 1
        may_begin = low[first : first + count] == folded[first]
        may_begin &= low[second : second + count] == folded[second]
        if may_begin.any():
            places = np.flatnonzero(may_begin)
            for offset, byte in enumerate(folded):
                places = places[low[places + offset] == byte]
            positions.append(places + begin)
    return np.concatenate(positions) if positions else np.empty(0, np.int64)


def find_escapes(data: bytes, literal: bytes) -> NDArray[np.int64]:
    r"""Find where lines of JSON may write characters of a literal as codes: `\u0041` for a letter of ASCII.

    >>> find_escapes(rb"\n \u2019 \u0041", b"text").tolist()
    [10]
    """
    borders = np.array([0, len(data)], np.int64)
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(borders), pa.py_buffer(data)])
    has_codes = pc.match_substring_regex(whole, r"\\u00[0-7]" if literal.isascii() else r"\\u")[0].as_py()
    if not has_codes:
        return np.empty(0, np.int64)
    return find_bytes(np.frombuffer(data, np.uint8), rb"\u00" if literal.isascii() else rb"\u")


def _list_windows(data: NDArray[np.uint8], overlap: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """List pieces of some bytes, each with its position; what is as long as the overlap lies in one of them."""
    for begin in range(0, len(data) - overlap + 1, _WINDOW):
        yield begin, data[begin : begin + _WINDOW + overlap - 1]


def _has_one_form(char: str) -> bool:
    """Whether a character has one form, or two of ASCII, and JSON writes it as it is or as one code."""
    return char.isascii() or (char.upper() == char.lower() == char.casefold() == char and ord(char) < 0x10000)


def _rate_rarity(byte: int) -> int:
    place = _COMMON_FIRST.find(byte)
    return place if place >= 0 else len(_COMMON_FIRST)
