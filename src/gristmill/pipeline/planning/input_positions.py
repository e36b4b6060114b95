"""Positions in input files as one word, `SOURCE:FILE@POSITION`.

Files of dropped and quarantined records hold such words, and `gristmill explain` and `trace` accept them.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class InputPosition(NamedTuple):
    """The position of a record in the input of a source."""

    source: str | None
    """None: any source that reads the file."""
    file: str
    """Its path, or its path below the source's root."""
    position: int
    """The byte, row or member, as in an origin."""

    def is_in_source(self, source: str) -> bool:
        return self.source is None or self.source == source


def format_position(source: str, file: str, position: int) -> str:
    """Write a position as one word.

    >>> format_position("web", "a.jsonl", 17)
    'web:a.jsonl@17'
    """
    return f"{source}:{file}@{position}"


def parse_positions(word: str, sources: list[str]) -> list[InputPosition]:
    """List what a word may mean, with and without the name of a source before the colon; empty: it is no position.

    >>> parse_positions("web:a.jsonl@17", ["web"])[0]
    InputPosition(source='web', file='a.jsonl', position=17)
    >>> parse_positions("s3://bucket/a.jsonl@17", ["web"])
    [InputPosition(source=None, file='s3://bucket/a.jsonl', position=17)]
    """
    match = re.fullmatch(r"(.+)@([0-9]{1,19})", word, re.DOTALL)
    if match is None:
        return []
    path, position = match[1], int(match[2])
    named = [
        InputPosition(name, path.removeprefix(f"{name}:"), position) for name in sources if path.startswith(f"{name}:")
    ]
    return [*named, InputPosition(None, path, position)]
