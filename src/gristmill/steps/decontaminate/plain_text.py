r"""Texts as they read: without tags, entities, escapes, Markdown's syntax, LaTeX's wrappers and labels of lines.

Benchmark items and documents are compared in this form, so an item is found on a web page, in escaped JSON or in a
numbered listing. Both sides go through the same rules, so what a rule takes away from code that only looks like markup
(`a<b>c`) is missing on both sides, and `\nu`, which may be a Greek letter or a new line with a `u`, becomes the same
words however often it was escaped.

    He &quot;ate&#34; <b>ca</b>kes<br>at\u0020[noon](https://example.org)  ->  He "ate" cakes⏎at noon

The passes over the bytes are in `markup_kernels` and `label_kernels`. This module has the tables of names that they
look up, and finds a passage of the plain text in the text itself.
"""

from __future__ import annotations

import html.entities
import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gristmill.steps.decontaminate.label_kernels import LINE_END
from gristmill.steps.decontaminate.markup_kernels import (
    COMMAND,
    DECODED,
    ENTITY,
    PRIME,
    STRIPPED,
    TAG,
    simplify_texts,
)
from gristmill.text.comparison_words import find_word_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INLINE_TAGS = (
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark nobr q rb ruby s samp small span "
    "strike strong sub sup time tt u var wbr"
)
"""Tags that do not end a word: `<b>N</b>atalia` is one."""
_WRAPPERS = (
    "bf big Big bigg Bigg bigl bigr Bigl Bigr bm boldsymbol boxed centering chapter displaystyle em emph fbox "
    "footnotesize hbox hfill it item large Large left limits linebreak mathbb mathbf mathcal mathfrak mathit mathrm "
    "mathscr mathsf mathtt mbox newline noindent normalsize operatorname par paragraph qquad quad right rm section "
    "small subsection text textbf textit textnormal textrm textsc textsf textstyle texttt tt underline"
)
"""LaTeX commands that do not count: `\\textbf{N}` reads as N."""
_WRAPPERS_WITH_ARGUMENT = "begin cite color end hspace label ref textcolor vspace"
"""LaTeX commands that do not count, nor does what is in the braces after them."""

_NO_SENTENCE_END = "\"'#%&*/@\\¿¡§¶†‡"
_APOSTROPHES = "\u2018\u2019"


def read_plain_texts(
    data: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the texts of two buffers as they read, as two buffers."""
    plain, plain_offsets = np.empty(int(offsets[-1] - offsets[0]), np.uint8), np.zeros(len(offsets), np.int64)
    simplify_texts(data, offsets, *_make_tables(), plain, plain_offsets, np.empty((2, 0), np.int64))
    plain.flags.writeable = plain_offsets.flags.writeable = False
    return plain, plain_offsets


def read_plain_text(text: str) -> str:
    r"""Return a text as it reads.

    >>> read_plain_text(r"<p>Two &lt;b&gt;ca</b>ts\nsay [\u4e2d](https://a.b) in \\textbf{may}")
    '\nTwo cats\nsay [中  in  {may}'
    """
    return _simplify(text)[0].decode()


def find_plain_words(text: str, first: int, stop: int, item: str = "") -> tuple[int, int]:
    """Find some consecutive words of `read_plain_text` in the text itself, with the punctuation that belongs to them.

    Returns the first character, and the one after the last. What ends a sentence belongs to the words before it;
    brackets and quotation marks belong to the words if their other half does, or if `item`, the plain text that the
    words are from, begins or ends with them.

    >>> text = "He said <b>two</b> caf&eacute;s&#63; (Or not.)"
    >>> text[slice(*find_plain_words(text, 2, 4))], text[slice(*find_plain_words(text, 4, 6))]
    ('two</b> caf&eacute;s&#63;', 'Or not.')
    """
    content, sources = _simplify(text)
    plain = content.decode()
    spans = find_word_spans(plain)
    plain_start, plain_stop = _add_punctuation(plain, int(spans[first, 0]), int(spans[stop - 1, 1]), item)
    first_byte, end_byte = len(plain[:plain_start].encode()), len(plain[:plain_stop].encode())
    raw = text.encode()
    start, end = int(sources[0, first_byte]), int(sources[1, end_byte - 1])
    return len(raw[:start].decode()), len(raw[:end].decode())


def _add_punctuation(text: str, start: int, stop: int, item: str) -> tuple[int, int]:
    """Extend a passage by the punctuation that belongs to it."""
    spans = find_word_spans(item)
    if len(spans):
        head, tail = item[: spans[0, 0]].lstrip(), item[spans[-1, 1] :].rstrip()
        stop += len(tail) if text.startswith(tail, stop) else 0
        start -= len(head) if text.endswith(head, 0, start) else 0
    stop += text[stop : stop + 1].isspace() and text[stop + 1 : stop + 2] in ("?", "!")  # as in French
    while stop < len(text):
        mark = text[stop]
        is_closing = unicodedata.category(mark) in ("Pe", "Pf") and _count_open(text[start:stop], ("Ps", "Pi"))
        is_sentence_end = unicodedata.category(mark) == "Po" and mark not in _NO_SENTENCE_END
        if not (is_closing or is_sentence_end or (mark == '"' and _has_open_quote(text[start:stop]))):
            break
        stop += 1 if mark != '"' else len(text[stop:]) - len(text[stop:].lstrip(mark))
    while start > 0:
        mark = text[start - 1]
        is_opening = unicodedata.category(mark) in ("Ps", "Pi") and _count_open(text[start:stop][::-1], ("Pe", "Pf"))
        if not (is_opening or mark in "¿¡" or (mark == '"' and _has_open_quote(text[start:stop]))):
            break
        start -= 1
    return start, stop


def _count_open(text: str, opening: tuple[str, str]) -> int:
    """Count the brackets and quotation marks that are opened and not closed. An apostrophe is none."""
    depth = 0
    for character in text:
        if unicodedata.category(character) in ("Ps", "Pi", "Pe", "Pf") and character not in _APOSTROPHES:
            depth = depth + 1 if unicodedata.category(character) in opening else max(depth - 1, 0)
    return depth


def _has_open_quote(text: str) -> bool:
    """Whether there is an odd number of straight quotation marks; those of Python's docstrings count as one."""
    return len(re.findall('"+', text)) % 2 == 1


def _simplify(text: str) -> tuple[bytes, NDArray[np.int64]]:
    """Return the bytes of a text as it reads, and for each where it comes from: first byte, and the one after."""
    data = np.frombuffer(text.encode(), np.uint8)
    offsets = np.array([0, len(data)])
    data.flags.writeable = offsets.flags.writeable = False  # as buffers of Arrow: one kind of argument for the kernel
    plain, ends, sources = np.empty(len(data), np.uint8), np.zeros(2, np.int64), np.empty((2, len(data)), np.int64)
    simplify_texts(data, offsets, *_make_tables(), plain, ends, sources)
    return plain[: ends[1]].tobytes(), sources[:, : ends[1]]


@cache
def _make_tables() -> tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint32]]:
    """Make the tables of bytes at which something may begin, and of names: their hashes, sorted, and their meanings.

    An entity means its character, an inline tag 1, a wrapper 1, or 2 if its argument does not count either.
    """
    kinds = np.zeros(256, np.uint8)
    kinds[list(b"&\\%")] = DECODED
    kinds[list(b"<[]!*")] = STRIPPED
    kinds[ord("\n")] = LINE_END
    names = {(int(TAG), name): 1 for name in _INLINE_TAGS.split()}
    names |= {(int(COMMAND), name): 1 for name in _WRAPPERS.split()}
    names |= {(int(COMMAND), name): 2 for name in _WRAPPERS_WITH_ARGUMENT.split()}
    for name, character in html.entities.html5.items():
        if name.endswith(";"):
            names[int(ENTITY), name[:-1]] = ord(character) if len(character) == 1 else ord(" ")
    hashed = sorted((_hash_in_python(kind, name), meaning) for (kind, name), meaning in names.items())
    return kinds, np.array([each for each, _ in hashed], np.uint64), np.array([each for _, each in hashed], np.uint32)


def _hash_in_python(kind: int, name: str) -> int:
    value = kind
    for byte in name.encode():
        value = (value ^ byte) * int(PRIME) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 29
    return value
