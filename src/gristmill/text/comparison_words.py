"""What a character means when documents are compared: part of a word, a whole word, nothing, or a gap.

Two texts that differ only in case, accents, punctuation, spacing or the width of their letters have the same words. One
character becomes one: `ß` and ligatures are not expanded. Marks without width are ignored in all scripts, also if they
are vowels. Digits stay as they are: texts with other numbers say something else. In scripts that are written without
spaces (those of `quality/character_classes.py`) each letter is a word, and all marks are ignored. See decision 11 for
the numbers.

The table has an entry for each code point that has a character class: 820 KiB, of which a text uses a few cache lines,
made in about 50 ms, once in a process. Code points beyond it are ignored: they are marks, tags and private use. It
follows the Unicode version of Python, which is part of every fingerprint.

`find_word_spans` says where the words that the kernels hash begin and end, for the few texts whose words are shown: a
few array operations for each text, 50 µs for a short one, about 20 MB/s; the kernels, which only count and hash, are
ten times as fast.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gristmill.text.quality.character_classes import SPACELESS, is_spaceless, make_character_classes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


GAP = 0
IGNORED = 1
"""The character is a mark on the one before it."""
ALONE = 1 << 31
"""A bit in addition to the character: it is a word by itself."""

_KOREAN = 0xAC00, 0xD7A3
_CHUNK = 64


@cache
def make_character_table() -> NDArray[np.uint32]:
    """Make the table: for each code point `GAP`, `IGNORED`, or what it is folded to, perhaps with `ALONE`."""
    classes = make_character_classes()
    table = np.arange(len(classes), dtype=np.uint32)
    for first in range(0, len(table), _CHUNK):
        chunk = "".join(map(chr, range(first, min(first + _CHUNK, len(table)))))
        if not _stays_itself(chunk):
            table[first : first + _CHUNK] = [_fold_character(character) for character in chunk]
    table[classes & SPACELESS != 0] |= ALONE
    table.flags.writeable = False
    return table


def is_ignored(character: str) -> bool:
    """Whether a character is a mark on the one before it. Marks with width are, in scripts without spaces."""
    category = unicodedata.category(character)
    return category in ("Mn", "Me", "Cf") or (category == "Mc" and is_spaceless(character))


def _stays_itself(chunk: str) -> bool:
    """Whether all characters are letters that are folded to themselves. Most of the table are Han and Korean ones."""
    if not chunk.isalpha() or chunk.lower() != chunk:
        return False
    is_korean = _KOREAN[0] <= ord(chunk[0]) and ord(chunk[-1]) <= _KOREAN[1]
    return is_korean or unicodedata.is_normalized("NFKD", chunk)


def _fold_character(character: str) -> int:
    if is_ignored(character):
        return IGNORED
    if not character.isalnum() and unicodedata.category(character) != "Mc":
        return GAP
    # Lowered again: styled capitals (U+211D) have no small letter, but decompose into one that has.
    parts = unicodedata.normalize("NFKD", character.lower()).lower()
    bare = [part for part in parts if not unicodedata.combining(part)]
    # A character that decomposes into several (ligatures, Korean syllables) stays itself.
    return ord(bare[0]) if len(bare) == 1 and bare[0].isalnum() else ord(character.lower()[0])


_JOINED_CHARACTERS = 1 << 18


def find_word_spans(text: str) -> NDArray[np.int64]:
    """Find the first character of each word, and the one after its last.

    >>> find_word_spans("It's 你好.").tolist()
    [[0, 2], [3, 4], [5, 6], [6, 7]]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    table = make_character_table()
    entries = np.where(codes < len(table), table[np.minimum(codes, len(table) - 1)], IGNORED)
    shown = np.flatnonzero(entries != IGNORED)
    kinds = entries[shown]
    is_alone = kinds >= ALONE
    is_inside = (kinds != GAP) & ~is_alone
    follows_inside = np.concatenate([[False], is_inside[:-1]])
    precedes_inside = np.concatenate([is_inside[1:], [False]])
    first = is_alone | (is_inside & ~follows_inside)
    last = is_alone | (is_inside & ~precedes_inside)
    return np.stack([shown[first], shown[last] + 1], axis=1).astype(np.int64)


def cut_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    r"""Return the text without some spans, which may overlap. Words on both sides of a cut stay separate.

    A space is added where there would be none, or a new line if one was cut. Marks on the last letter go with it.

    >>> cut_spans("5月30日 or 20日", [(4, 9)]), cut_spans("one, two.", [(5, 8)]), cut_spans("eins\nzwei", [(4, 5)])
    ('5月30 20日', 'one, .', 'eins\nzwei')
    """
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        while stop < len(text) and is_ignored(text[stop]):
            stop += 1  # noqa: PLW2901
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    pieces, position = [], 0
    for start, stop in joined:
        pieces.append(text[position:start])
        before, after = text[max(start - 1, position) : start], text[stop : stop + 1]
        if _need_space(before, after):
            pieces.append("\n" if "\n" in text[start:stop] else " ")
        position = stop
    return "".join([*pieces, text[position:]])


def _need_space(before: str, after: str) -> bool:
    """Whether there is a space between the ends of two words or sentences: in `a b` and `. b`, not in `(b` or `a,`."""
    if not before.strip("\"' \t\r\n") or not after.strip():
        return False
    kind = unicodedata.category(before)
    return kind[0] not in "SZ" and kind not in ("Ps", "Pi") and unicodedata.category(after)[0] not in "PSZ"


def find_words_with_letters(texts: Sequence[str]) -> Iterator[NDArray[np.bool_]]:
    """For each text, for each of its words, whether it has a letter. Short texts are looked at together.

    >>> [words.tolist() for words in find_words_with_letters(["It's 12.", "", "B2"])]
    [[True, True, False], [], [True]]
    """
    joined: list[str] = []
    num_characters = 0
    for text in texts:
        joined.append(text)
        num_characters += len(text)
        if num_characters > _JOINED_CHARACTERS:
            yield from _find_in_lines(joined)
            joined, num_characters = [], 0
    if joined:
        yield from _find_in_lines(joined)


def _find_in_lines(texts: Sequence[str]) -> list[NDArray[np.bool_]]:
    lines = "\n".join(texts)  # no word extends over a line
    spans = find_word_spans(lines)
    letters = np.char.isalpha(np.frombuffer(lines.encode("utf-32-le", "surrogatepass"), "<U1"))
    num_letters = np.concatenate([[0], np.cumsum(letters)])
    has_letter = num_letters[spans[:, 1]] > num_letters[spans[:, 0]]
    ends = np.cumsum([len(text) + 1 for text in texts])
    return np.split(has_letter, np.searchsorted(spans[:, 0], ends[:-1]))
