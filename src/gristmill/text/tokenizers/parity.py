"""A comparison of two engines: whether they give the same ids, and where they do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.text.tokenizers.engines.engine import Engine

_IDS_AROUND = 8
_CHARS_AROUND = 60


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first text on which two engines differ."""

    index: int
    """Index of the text."""
    token: int
    """Index of the first token that differs."""
    ids: list[int]
    """Ids around that token, by the engine under test."""
    expected: list[int]
    """Ids around that token, by the reference."""
    text: str
    """The text around that token."""

    def __str__(self) -> str:
        return f"from token {self.token} on: {self.ids}, not {self.expected}, at {self.text!r}"


def compare_engines(engine: Engine, reference: Engine, texts: Sequence[str]) -> Mismatch | None:
    """Encode all texts with both; None if all ids are equal."""
    ids, offsets = engine.encode(texts)
    for index, text in enumerate(texts):
        text_ids = ids[offsets[index] : offsets[index + 1]]
        expected, _ = reference.encode([text])
        if not np.array_equal(text_ids, expected):
            return _describe_mismatch(reference, index, text, text_ids, expected)
    return None


def _describe_mismatch(
    reference: Engine, index: int, text: str, ids: np.typing.NDArray[np.uint32], expected: np.typing.NDArray[np.uint32]
) -> Mismatch:
    common = min(len(ids), len(expected))
    different = np.flatnonzero(ids[:common] != expected[:common])
    token = int(different[0]) if len(different) else common
    first, stop = max(0, token - _IDS_AROUND), token + _IDS_AROUND
    # The tokens before it, decoded, reach up to its position in the text.
    position = min(len(reference.decode(expected[:token])), len(text))
    around = text[max(0, position - _CHARS_AROUND) : position + _CHARS_AROUND]
    return Mismatch(index, token, ids[first:stop].tolist(), expected[first:stop].tolist(), around)
