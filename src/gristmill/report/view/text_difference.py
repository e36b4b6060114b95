"""What differs between two texts or two lists of tokens, as pieces for two sides.

What is equal at the beginning and the end is found first. Only the rest is compared word by word, and only if it is
short: the time grows with the square of its length.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

_MAX_ITEMS = 1000
_WORD = re.compile(r"\s+|\w+|[^\w\s]+")

Piece = tuple[str, int]
"""A text, and 1 if it differs."""


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
