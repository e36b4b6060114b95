"""How much of a document is source code, decided line by line and by the lines around it.

Each line gets points: signs of code (a brace or semicolon at its end, an operator, `name(`, `snake_case`, a keyword at
its start, an indent) add points; whole words of letters and letters beyond ASCII subtract points. Strings and quoted
code do not count. A line above 0 is code, below 0 prose. A line with 0 points (such as a comment, a heading or a list)
is like the last decided line; at the start of a document, like the next one. Everything between fences (``` or ~~~) or
triple quotes is code, even if it does not look like it, if they are closed.

The points were fitted to half of the files that docs/reference/quality.md lists, and measured on the other half. Each
character is looked at once, in about 3 ns.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel
from gristmill.text.byte_kernels import decode_code_point

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTERS = ("code_characters", "judged_line_characters")

_OPERATORS = (
    "== != => -> :: && || += -= *= := <- </ /> () [] {} /* */ <= >= << >> $( ${ ++ #{ <% %> |> ); }, ], // "
    "(\" (' =\" =' (( ))"
)
_KEYWORDS = """
abstract add alias allocate alter assert async await begin bool break call case catch char character class close cmp
commit compute const contains continue copy create data db dd deallocate debug declare def default defer define
defmodule defp del delete deriving dimension display division do done double drop dw echo elif else elseif elsif end
endif enum environment esac evaluate except execute exit export extends extern extrn fd fi final finally float fn for
format from fun func function global go goto grant group having if ifdef ifndef impl implicit import inc include init
inline insert inspect instance int integer interface internal into jb je jmp jne jnz join jz lambda lea let linkage
local logical long loop match mod module mov move movzx multiply mut my namespace new newtype open order our override
package parameter pass perform pic pop pragma print printf private procedure program protected pub public push puts
raise read real rep require rescue ret return rewrite rollback section select self set setopt shl short shr source
static stop string struct sub subroutine subtract super switch table template test then throw trait try type typedef
typeset undef union unless unset unsigned unstring update use using val values var view void when where while with
working write xor yield zstyle
"""

_OPERATOR, _GLUE, _DOT = 1, 2, 4
"""What two ASCII characters in a row are: an operator, part of a name or a call, part of a name if a letter follows."""

_SPACE, _LETTER, _LETTER_OR_DIGIT, _TERMINAL, _MARK = 1, 2, 6, 32, 128
_LINE_START, _LINE_END, _LINE_CHARACTERS = range(3)
_ASCII = 0x80
_LETTER_BITS = 5
_MAX_KEYWORD = 12
_MAX_SIGNS = 3
_MAX_PLAIN = 10
_CERTAIN = 9
_BLOCK_END = 5
_OPEN_WORD, _LETTERS, _CLOSED_WORD, _NO_PLAIN_WORD = range(4)
"""What a word has so far: only quotes and brackets, letters, punctuation after the letters, or anything else."""


@cache
def pair_kinds() -> NDArray[np.uint8]:
    """Return what each pair of ASCII characters is; the index is 128 * the first + the second."""
    kinds = np.zeros(_ASCII * _ASCII, np.uint8)
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = letters + letters.upper() + "0123456789"
    for firsts, seconds, kind in (
        (names, "_", _GLUE),
        (names + "_)", "(", _GLUE),
        (names + "_])", "[", _GLUE),
        (letters, letters.upper(), _GLUE),
        ("$@", letters + letters.upper(), _GLUE),
        (names + ")]", ".", _DOT),
    ):
        for first in firsts:
            for second in seconds:
                kinds[_ASCII * ord(first) + ord(second)] |= kind
    for operator in _OPERATORS.split():
        kinds[_ASCII * ord(operator[0]) + ord(operator[1])] |= _OPERATOR
    return kinds


@cache
def make_keyword_codes() -> NDArray[np.uint64]:
    """Return each keyword as a number, 5 bits a letter, sorted."""
    codes = [
        sum(ord(char) - 96 << _LETTER_BITS * position for position, char in enumerate(word))
        for word in _KEYWORDS.split()
    ]
    return np.array(sorted(codes), np.uint64)


@kernel
def _read_byte(data: NDArray[np.uint8], position: int, end: int) -> Any:
    """Return a byte of the line, or 0 after its end."""
    return data[position] if position < end else 0


@kernel
def _begins_with_keyword(data: NDArray[np.uint8], start: int, end: int, keywords: NDArray[np.uint64]) -> bool:
    """Whether the line begins with a keyword, in small letters or in capitals (SQL, Fortran, COBOL)."""
    code = np.uint64(0)
    position = start
    first = 65 if start < end and 65 <= data[start] <= 90 else 97  # of the alphabet
    while position < end and first <= data[position] <= first + 25:
        if position - start == _MAX_KEYWORD:
            return False
        code |= np.uint64(data[position] - first + 1) << np.uint64(_LETTER_BITS * (position - start))
        position += 1
    following = _read_byte(data, position, end)
    is_letter = 65 <= following <= 90 or 97 <= following <= 122
    # The keyword is only the start of a name or a word: "for_each", "if-then", "let's", "Do".
    if is_letter or 48 <= following <= 57 or following in (95, 39) or (following == 45 and first == 97):
        return False
    low, high = 0, len(keywords)
    while low < high:
        middle = (low + high) // 2
        if keywords[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low < len(keywords) and keywords[low] == code


@kernel
def _score_line(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    is_indented: bool,  # noqa: FBT001  (kernels take no keywords)
    classes: NDArray[np.uint16],
    pair_kinds: NDArray[np.uint8],
    keywords: NDArray[np.uint64],
) -> Any:
    """Return the points of a line from byte `start` to `end`, without the space at its ends: above 0 it is code."""
    first, second = data[start], _read_byte(data, start + 1, end)
    is_directive = first == 35
    # // /* */ #! #'
    if (first == 47 and second in (47, 42)) or (first == 42 and second == 47) or (is_directive and second in (33, 39)):
        return _CERTAIN
    has_keyword = _begins_with_keyword(data, start + is_directive, end, keywords)
    if is_directive and has_keyword:
        return _CERTAIN
    if first in (35, 42, 37, 59, 33) or (first == 45 and second == 45):  # # * % ; ! --
        return 0
    num_operators = num_glued = num_plain = num_open = num_spaces = 0
    has_letters = is_foreign = is_assignment = in_address = False
    word = _OPEN_WORD
    quote = 0
    before, before_kind = np.int64(32), np.int64(_SPACE)
    position = start
    while position < end:
        code, size = decode_code_point(data, position, end)
        kind = np.int64(classes[code]) if code < len(classes) else np.int64(0)
        following = _read_byte(data, position + size, end)
        character_start, earlier, earlier_kind = position, before, before_kind
        position += size
        before, before_kind = code, kind
        if quote:
            if code == 92 and position < end:
                position += decode_code_point(data, position, end)[1]
            elif code == quote:
                quote = 0
            continue
        if kind & _SPACE:
            num_spaces += 1
            num_plain += word in (_LETTERS, _CLOSED_WORD)
            word = _OPEN_WORD
            in_address = False
            continue
        begins_comment = (code == 35 and following == 32) or (code == 47 and following == 47)
        if begins_comment and character_start > start and earlier_kind & _SPACE:
            break
        if in_address:  # the rest of a URL looks like code and is none
            continue
        has_letters = has_letters or kind & _LETTER_OR_DIGIT != 0
        if code < _ASCII and earlier < _ASCII:
            if earlier == 58 and code == 47 and following == 47:
                in_address = True
                word = _NO_PLAIN_WORD
                continue
            pair = pair_kinds[_ASCII * earlier + code]
            num_operators += pair & _OPERATOR
            num_glued += pair & _GLUE != 0 or (pair & _DOT != 0 and (97 <= following <= 122 or following == 95))
            is_capital_name = code == 45 and 65 <= earlier <= 90 and 65 <= following <= 90  # WS-NAME
            num_glued += is_capital_name or (code == 58 and earlier == 32 and 97 <= following <= 122)  # :key
            num_open += (code == 40) - np.int64(code == 41)
            if code == 61 and (
                (earlier == 32 and following in (0, 32))
                or (earlier_kind & _LETTER_OR_DIGIT != 0 and following not in (0, 32, 61, 62))
            ):
                is_assignment = True
        if code in (34, 96) or (code == 39 and not earlier_kind & _LETTER_OR_DIGIT):  # not the apostrophe of "don't"
            quote = code
        elif kind & (_LETTER | _MARK):
            is_foreign = is_foreign or code >= _ASCII
            word = _LETTERS if word <= _LETTERS else _NO_PLAIN_WORD
        elif code == 39:
            pass
        elif code == 45:
            word = _NO_PLAIN_WORD if word == _OPEN_WORD else word
        elif code in (44, 46, 59, 58, 33, 63, 41):  # , . ; : ! ? )
            word = _NO_PLAIN_WORD if word == _OPEN_WORD else max(word, _CLOSED_WORD)
        elif code == 40:
            word = _NO_PLAIN_WORD if word == _LETTERS else word
        elif code == 42 or code >= _ASCII:
            word = _CLOSED_WORD if word == _LETTERS else word
        else:
            word = _NO_PLAIN_WORD
    num_plain += word in (_LETTERS, _CLOSED_WORD)
    last = data[end - 1]
    ends_block = last in (59, 123, 125)  # ; { }
    if not has_letters:
        return _BLOCK_END if ends_block else 0
    last_place = end - 1
    while last_place > start and data[last_place] & 0xC0 == 0x80:
        last_place -= 1
    last_code = decode_code_point(data, last_place, end)[0]
    ends_sentence = last_code < len(classes) and classes[last_code] & _TERMINAL != 0
    begins_small = 97 <= first <= 122
    if last == 58 and num_spaces == 0 and not has_keyword:  # a label, or a heading
        return 0
    return (
        -4
        + _BLOCK_END * ends_block
        + 1 * (last in (44, 58))  # , :
        - 2 * ends_sentence
        + 4 * is_indented
        + 1 * min(num_operators, _MAX_SIGNS)
        + 2 * min(num_glued, _MAX_SIGNS)
        + 5 * (is_assignment and (begins_small or is_indented or first in (95, 36, 64)))  # _ $ @
        + 5 * has_keyword
        + 4 * (first == 40 and num_open > 0)
        + 1 * (begins_small or first in (41, 93, 125, 60, 64, 36, 34, 39, 123, 40, 91))  # )]}<@$"'{([
        - 5 * is_foreign
        - min(num_plain, _MAX_PLAIN) // 2
    )


@kernel
def _find_fence(data: NDArray[np.uint8], start: int, end: int) -> Any:
    """Return the character of a line's fence or of triple quotes that it opens or closes; 0 if it has neither."""
    first = data[start]
    if first in (96, 126) and end - start >= 3 and data[start + 1] == first and data[start + 2] == first:
        return first
    num_double = num_single = 0
    position = start
    while position + 2 < end:
        byte = data[position]
        if byte in (34, 39) and data[position + 1] == byte and data[position + 2] == byte:
            num_double += byte == 34
            num_single += byte == 39
            position += 3
        else:
            position += 1
    if num_double % 2:
        return 34
    return 39 if num_single % 2 else 0


@kernel
def count_code_lines(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: int,
    stop: int,
    lines: NDArray[np.int32],
    line_stops: NDArray[np.int64],
    classes: NDArray[np.uint16],
    pair_kinds: NDArray[np.uint8],
    keywords: NDArray[np.uint64],
    counts: NDArray[np.int64],
) -> None:
    """Count in documents `first` to `stop`, whose lines `scan` has noted."""
    begin = 0
    for document in range(first, stop):
        origin = offsets[document]
        # `waiting`: characters of undecided lines; `decided`: the last decision, 1 for code, -1 for prose.
        total = code = waiting = decided = 0
        # The state at an open fence, to return to if it is closed.
        mark = enclosed = code_before = waiting_before = decided_before = 0
        for line in range(begin, line_stops[document]):
            start, end = origin + lines[line, _LINE_START], origin + lines[line, _LINE_END]
            characters = lines[line, _LINE_CHARACTERS]
            total += characters
            own_mark = _find_fence(data, start, end)
            enclosed += characters
            if mark and own_mark == mark:
                # Lines between the marks were counted as if the mark were never closed: undo that.
                code, waiting, decided = code_before + enclosed, waiting_before, decided_before
                if mark in (34, 39):  # triple quotes are code themselves; a fence may be in prose
                    code += waiting * (decided >= 0)
                    waiting, decided = 0, 1
                mark = 0
                continue
            if own_mark and not mark:
                mark, enclosed = own_mark, characters
                code_before, waiting_before, decided_before = code, waiting, decided
            is_indented = start > origin and data[start - 1] in (32, 9)
            points = _score_line(data, start, end, is_indented, classes, pair_kinds, keywords)
            if points == 0:
                waiting += characters
                continue
            if decided > 0 or (decided == 0 and points > 0):
                code += waiting
            waiting = 0
            decided = 1 if points > 0 else -1
            code += characters * (points > 0)
        if decided > 0:
            code += waiting
        counts[document, 0] = code
        counts[document, 1] = total
        begin = line_stops[document]
