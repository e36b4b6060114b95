"""The rules of C4, line by line: which lines stay, what is cut out of them, and whether the page is kept at all.

The order is that of the reference, and it matters: a `{` drops the page only if its line passed the rules before it.
About 5 ns a byte; the lines that stay are written to a buffer of the size of the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel
from gristmill.text.byte_kernels import decode_code_point

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARAMETERS = (
    "max_characters",
    "max_word_length",
    "remove_citations",
    "require_terminal_punctuation",
    "min_words_per_line",
    "drop_lorem_ipsum",
    "remove_javascript_lines",
    "drop_curly_brackets",
    "remove_policy_lines",
    "min_sentences",
)
"""The columns of a table of parameters: whole numbers, with 0 or 1 for yes and no. A rule that is off has -1."""
PAGE_REASONS = ("empty", "max_characters", "drop_lorem_ipsum", "drop_curly_brackets", "min_sentences", "no_lines")
LINE_REASONS = (
    "max_word_length",
    "require_terminal_punctuation",
    "min_words_per_line",
    "remove_javascript_lines",
    "remove_policy_lines",
)
PHRASES = (
    "lorem ipsum",
    "{",
    "javascript",
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
"""Phrases to look for in lines, in upper or lower case. From the fourth on they are phrases of policies."""
CITATIONS = ("[edit]", "[citation needed]")
"""Citations that are cut out of lines; `[12]` is cut out too."""

_EMPTY, _MAX_CHARACTERS, _LOREM_IPSUM, _CURLY_BRACKETS, _MIN_SENTENCES, _NO_LINES = range(1, 7)
_SPACE, _LETTER_OR_DIGIT, _SPACELESS, _TERMINAL = 1, 6, 16, 32
_LINE_FEED, _DOT, _ELLIPSIS = 0x0A, 0x2E, 0x2026
_QUOTES = (0x22, 0x201D)
_CLOSING = (0x22, 0x27, 0x29, 0x5D, 0x2019, 0x201D)  # quotation marks and brackets
_FULL_WIDTH = 0x3000
_OPEN_BRACKET, _CLOSE_BRACKET, _ZERO, _NINE = 0x5B, 0x5D, 0x30, 0x39


@kernel
def _classify(classes: NDArray[np.uint16], code: int) -> Any:
    return np.int64(classes[code]) if code < len(classes) else 0


@kernel
def _strip(data: NDArray[np.uint8], start: int, end: int, classes: NDArray[np.uint16]) -> tuple[int, int]:
    """Return where the text begins and ends without the space around it."""
    while start < end:
        code, size = decode_code_point(data, start, end)
        if not _classify(classes, code) & _SPACE:
            break
        start += size
    stop = start
    position = start
    while position < end:
        code, size = decode_code_point(data, position, end)
        position += size
        if not _classify(classes, code) & _SPACE:
            stop = position
    return start, stop


@kernel
def _count_words(data: NDArray[np.uint8], start: int, end: int, classes: NDArray[np.uint16]) -> tuple[int, int]:
    """Return the number of words, as `scan` counts them, and the characters of the longest."""
    num_words = longest = length = last = 0
    position = start
    while position < end:
        code, size = decode_code_point(data, position, end)
        kind = _classify(classes, code)
        position += size
        if kind & _SPACE:
            length = last = 0
            continue
        if kind & _LETTER_OR_DIGIT:
            if last and (kind | last) & _SPACELESS:  # a letter of a script without spaces begins a new word
                length = 0
            last = kind
        num_words += length == 0
        length += 1
        longest = max(longest, length)
    return num_words, longest


@kernel
def _matches_at(data: NDArray[np.uint8], position: int, end: int, phrase: NDArray[np.uint8]) -> bool:
    """Whether a phrase, given in lower case, is at this place in any case."""
    if position + len(phrase) > end:
        return False
    for offset in range(len(phrase)):
        byte = data[position + offset]
        if (byte | 0x20 if 0x41 <= byte <= 0x5A else byte) != phrase[offset]:
            return False
    return True


@kernel
def _find_phrases(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    phrases: NDArray[np.uint8],
    ends: NDArray[np.int64],
    begins: NDArray[np.bool_],
) -> int:
    """Return a bit for each phrase that occurs. `begins`: the bytes that a phrase can begin with, in either case."""
    occurring = 0
    for position in range(start, end):
        if begins[data[position]]:
            first = 0
            for phrase in range(len(ends)):
                if _matches_at(data, position, end, phrases[first : ends[phrase]]):
                    occurring |= 1 << phrase
                first = ends[phrase]
    return occurring


@kernel
def _copy_without_citations(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    out: NDArray[np.uint8],
    position: int,
    cut: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> int:
    """Copy a line without its citations and return where the copy ends. `cut` holds the citations, compared exactly."""
    while start < end:
        stop = start
        if data[start] == _OPEN_BRACKET:
            after = start + 1  # a number in brackets, as in [12]
            while after < end and _ZERO <= data[after] <= _NINE:
                after += 1
            if after < end and data[after] == _CLOSE_BRACKET:
                stop = after + 1
            first = 0
            for phrase in range(len(ends)):
                size = ends[phrase] - first
                same = start + size <= end
                for offset in range(size if same else 0):
                    same &= data[start + offset] == cut[first + offset]
                if same:
                    stop = start + size
                first = ends[phrase]
        if stop == start:
            out[position] = data[start]
            position += 1
            stop = start + 1
        start = stop
    return position


@kernel
def _ends_sentence(data: NDArray[np.uint8], start: int, end: int, classes: NDArray[np.uint16]) -> bool:
    """Whether a line ends a sentence or a quotation, and does not end in an ellipsis."""
    last = end - 1
    while last > start and (data[last] & 0xC0) == 0x80:
        last -= 1
    code, _ = decode_code_point(data, last, end)
    if code == _DOT:
        return end - start < 3 or data[end - 2] != _DOT or data[end - 3] != _DOT
    if code == _ELLIPSIS:
        return False
    return bool(_classify(classes, code) & _TERMINAL) or code in _QUOTES


@kernel
def _count_sentences(data: NDArray[np.uint8], start: int, end: int, classes: NDArray[np.uint16]) -> int:
    """Count the sentences of a line; text after the last end of a sentence is one more.

    A sentence ends with a terminal mark before a space or the end of the line. Quotation marks and brackets between
    them are ignored. Marks of full width end a sentence anywhere.
    """
    count = 0
    ended, closes = True, False
    position = start
    while position < end:
        code, size = decode_code_point(data, position, end)
        kind = _classify(classes, code)
        position += size
        if kind & _SPACE:
            if closes and not ended:
                count += 1
                ended = True
            closes = False
        elif kind & _TERMINAL:
            closes = True
            if code >= _FULL_WIDTH and not ended:
                count += 1
                ended, closes = True, False
        elif code not in _CLOSING:  # closing marks alone are no sentence
            ended = closes = False
    return count if ended else count + 1


@kernel
def clean_pages(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    classes: NDArray[np.uint16],
    parameters: NDArray[np.int64],
    table_of: NDArray[np.int64],
    phrases: NDArray[np.uint8],
    phrase_ends: NDArray[np.int64],
    begins: NDArray[np.bool_],
    citations: NDArray[np.uint8],
    citation_ends: NDArray[np.int64],
    out: NDArray[np.uint8],
    out_offsets: NDArray[np.int64],
    codes: NDArray[np.uint8],
    deciding_numbers: NDArray[np.int64],
    removed: NDArray[np.int64],
) -> None:
    """Write the lines that stay of each page, and its code: 0 to keep it, or 1 + the index of a reason.

    `removed` counts the lines that each rule removes. `deciding_numbers` gets the number that decided about a page:
    the characters of a page that is too long, else its sentences.
    """
    used = 0  # bytes of `out` that hold lines that stay
    for page in range(len(offsets) - 1):
        out_offsets[page] = used
        first = used
        rules = parameters[table_of[page]]
        start, end = _strip(data, offsets[page], offsets[page + 1], classes)
        num_sentences = code = 0
        if start == end:
            code = _EMPTY
        elif rules[0] >= 0:
            characters = 0
            for position in range(start, end):
                characters += (data[position] & 0xC0) != 0x80  # the first byte of each character
            if characters > rules[0]:
                code = _MAX_CHARACTERS
                deciding_numbers[page] = characters
        while start < end and code == 0:
            line_end = start
            while line_end < end and data[line_end] != _LINE_FEED:
                line_end += 1
            begin, stop = _strip(data, start, line_end, classes)
            start = line_end + 1
            if begin == stop:
                continue
            if rules[1] >= 0 and _count_words(data, begin, stop, classes)[1] > rules[1]:
                removed[0] += 1
                continue
            # The line is edited where it would stay: after room for a line feed, unless it is the page's first. If it
            # does not stay, `used` is not advanced, and the next line overwrites it.
            copy = used + (used > first)
            if rules[2] == 1:
                copy_end = _copy_without_citations(data, begin, stop, out, copy, citations, citation_ends)
            else:
                copy_end = copy + stop - begin
                for offset in range(stop - begin):
                    out[copy + offset] = data[begin + offset]
            begin, stop = _strip(out, copy, copy_end, classes)
            if begin == stop:
                continue
            if rules[3] == 1 and not _ends_sentence(out, begin, stop, classes):
                removed[1] += 1
                continue
            if rules[4] >= 0 and _count_words(out, begin, stop, classes)[0] < rules[4]:
                removed[2] += 1
                continue
            occurring = _find_phrases(out, begin, stop, phrases, phrase_ends, begins)
            if rules[5] == 1 and occurring & 1:
                code = _LOREM_IPSUM
            elif rules[6] == 1 and occurring & 4:
                removed[3] += 1
            elif rules[7] == 1 and occurring & 2:
                code = _CURLY_BRACKETS
            elif rules[8] == 1 and occurring >> 3:
                removed[4] += 1
            else:
                num_sentences += _count_sentences(out, begin, stop, classes)
                for offset in range(stop - begin):  # over the space that a removed citation left at its start
                    out[copy + offset] = out[begin + offset]
                if used > first:
                    out[used] = _LINE_FEED
                used = copy + stop - begin
        if code != _MAX_CHARACTERS:
            deciding_numbers[page] = num_sentences
        if code == 0 and num_sentences < rules[9]:
            code = _MIN_SENTENCES
        if code == 0 and used == first:
            code = _NO_LINES
        if code:
            used = first  # a dropped page writes nothing
        codes[page] = code
    out_offsets[len(offsets) - 1] = used
