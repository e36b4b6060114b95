"""The compiled passes that turn bytes of UTF-8 into those of the text as it reads (see `plain_text`).

Both are linear, without an object per word: `_decode` reads entities and escapes, `_strip` takes the markup away in the
same buffer, because markup may itself be escaped. A text never gets longer. About 330 MB/s a core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.runtime.kernels import kernel
from gristmill.steps.decontaminate.label_kernels import (
    NOT_FOUND,
    blank_labels,
    find_kind,
    is_alphanumeric,
    is_digit,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENTITY, TAG, COMMAND = np.uint64(1), np.uint64(2), np.uint64(3)
"""The kinds of names: they begin their hashes."""
PRIME = np.uint64(0x9E3779B97F4A7C15)
DECODED, STRIPPED = np.uint8(1), np.uint8(2)
"""The kinds of bytes at which something may begin that is decoded, or that is taken away."""
_MAX_NAME = 32
_MAX_HIDDEN_WORDS = 9
"""With more words than these an attribute, a comment or the text of an image stays: it may be what is looked for."""


@kernel
def simplify_texts(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    names: NDArray[np.uint64],
    meanings: NDArray[np.uint32],
    plain: NDArray[np.uint8],
    plain_offsets: NDArray[np.int64],
    sources: NDArray[np.int64],
) -> None:
    """Write the texts as they read, one after another.

    If `sources` is not empty, it gets for each byte where it comes from in `data`: the first byte, and the one after.
    """
    count = 0
    for number in range(len(offsets) - 1):
        start = count
        stop = _decode(data, offsets[number], offsets[number + 1], kinds, names, meanings, plain, count, sources)
        count = _strip(plain, start, stop, kinds, names, meanings, sources)
        blank_labels(plain, start, count, kinds)
        plain_offsets[number + 1] = count


@kernel
def _decode(
    data: NDArray[np.uint8],
    start: int,
    stop: int,
    kinds: NDArray[np.uint8],
    names: NDArray[np.uint64],
    meanings: NDArray[np.uint32],
    plain: NDArray[np.uint8],
    count: int,
    sources: NDArray[np.int64],
) -> int:
    """Write a text without entities and escapes after the first `count` bytes; returns how many there are then."""
    position = start
    while position < stop:
        end = find_kind(data, position, stop, kinds, DECODED)
        _copy(data, position, end, plain, count)
        if sources.shape[1]:
            for place in range(position, end):
                sources[0, count + place - position], sources[1, count + place - position] = place, place + 1
        count += end - position
        position = end
        if position >= stop:
            break
        byte = data[position]
        if byte == ord("&"):
            code, after = _read_entity(data, position, stop, names, meanings)
        elif byte == ord("%"):
            code, after = _read_escaped_byte(data, position, stop)
        else:
            code, after = _read_backslash(data, position, stop, names, meanings)
        if code == ord("&") and byte != ord("&"):  # `\\u0026lt;`: many programs write HTML in JSON so
            entity, entity_end = _read_entity(data, after - 1, stop, names, meanings)
            code, after = (entity, entity_end) if entity != NOT_FOUND else (code, after)
        if code == NOT_FOUND:
            code, after = np.int64(byte), position + 1
        num_bytes = _encode(code, plain, count)
        if sources.shape[1]:
            sources[0, count : count + num_bytes] = position
            sources[1, count : count + num_bytes] = after
        count += num_bytes
        position = after
    return count


@kernel
def _copy(data: NDArray[np.uint8], start: int, stop: int, plain: NDArray[np.uint8], count: int) -> None:
    """Copy bytes to the same or an earlier place."""
    place, target = np.uint64(start), np.uint64(count)
    for _ in range(stop - start):
        plain[target] = data[place]
        place += np.uint64(1)
        target += np.uint64(1)


@kernel
def _read_entity(
    data: NDArray[np.uint8], position: int, stop: int, names: NDArray[np.uint64], meanings: NDArray[np.uint32]
) -> tuple[Any, Any]:
    """Read `&eacute;`, `&#233;` or `&#xe9;`, escaped any number of times (`&amp;eacute;`): character, and its end."""
    position += 1
    while _begins_with(data, position, stop, 0x616D703B):  # amp;
        position += 4
    if position < stop and data[position] == ord("#"):
        position += 1
        is_hex = position < stop and data[position] | 32 == ord("x")
        position += is_hex
        code, first = np.int64(0), position
        while position < stop and position < first + 8:
            digit = _read_digit(data[position])
            if digit < 0 or (digit > 9 and not is_hex):
                break
            code = code * (16 if is_hex else 10) + digit
            position += 1
        if position == first or position >= stop or data[position] != ord(";"):
            return np.int64(NOT_FOUND), position
        return code, position + 1
    end = position
    while end < stop and end < position + _MAX_NAME and is_alphanumeric(data[end]):
        end += 1
    if end == position or end >= stop or data[end] != ord(";"):
        # `&amp;` alone is an `&`, which is a gap.
        return np.int64(32 if data[position - 1] == ord(";") else NOT_FOUND), position
    meaning = _look_up(_hash_name(data, position, end, ENTITY), names, meanings)
    return np.int64(meaning if meaning else NOT_FOUND), end + 1


@kernel
def _read_backslash(
    data: NDArray[np.uint8], position: int, stop: int, names: NDArray[np.uint64], meanings: NDArray[np.uint32]
) -> tuple[Any, Any]:
    r"""Read `\n`, `\u4e2d`, `\xe9`, `\351` or a LaTeX command, with any number of backslashes, and its end."""
    while position < stop and data[position] == ord("\\"):
        position += 1
    if position >= stop:
        return np.int64(32), position
    byte = data[position]
    if byte == ord("u") or byte == ord("U"):
        code, after = _read_unicode_escape(data, position, stop)
        if code >= 0:
            return code, after
    if byte == ord("x") or is_digit(byte):
        code, after = _read_escaped_byte(data, position - 1, stop)
        if code == NOT_FOUND:
            code, after = _read_byte(data, position - 1, stop)
        if code >= 0:
            return code, after
    end = position
    while end < stop and end < position + _MAX_NAME and _is_letter(data[end]):
        end += 1
    meaning = _look_up(_hash_name(data, position, end, COMMAND), names, meanings) if end > position + 1 else 0
    if meaning == 2 and end < stop and data[end] == ord("{"):
        after = end
        while after < stop and after < end + 2 * _MAX_NAME and data[after] != ord("}") and data[after] != ord("\n"):
            after += 1
        return np.int64(32), after + 1 if after < stop and data[after] == ord("}") else end
    if meaning:
        return np.int64(32), end
    if byte == ord("n"):
        return np.int64(10), position + 1
    if byte == ord("t") or byte == ord("r") or byte == ord("b") or byte == ord("f") or byte == ord("v"):
        return np.int64(32), position + 1
    return np.int64(32), position


@kernel
def _read_unicode_escape(data: NDArray[np.uint8], position: int, stop: int) -> tuple[Any, Any]:
    r"""Read `u4e2d`, `u{1f600}`, `U0001f600` or two surrogates: the character, and where it ends."""
    if data[position] == ord("U"):
        return _read_hex(data, position + 1, stop, 8)
    if position + 1 < stop and data[position + 1] == ord("{"):
        end = position + 2
        while end < stop and end < position + 8 and _read_digit(data[end]) >= 0:
            end += 1
        if end == position + 2 or end >= stop or data[end] != ord("}"):
            return np.int64(NOT_FOUND), end
        code, _ = _read_hex(data, position + 2, stop, end - position - 2)
        return code, end + 1
    code, after = _read_hex(data, position + 1, stop, 4)
    if 0xD800 <= code < 0xDC00:
        low = after
        while low < stop and data[low] == ord("\\"):
            low += 1
        if after < low < stop and data[low] == ord("u"):
            second, end = _read_hex(data, low + 1, stop, 4)
            if 0xDC00 <= second < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00), end
    return code, after


@kernel
def _read_escaped_byte(data: NDArray[np.uint8], position: int, stop: int) -> tuple[Any, Any]:
    r"""Read a character whose UTF-8 bytes are written as `%e4%b8%ad`, `\xe4\xb8\xad` or `\344\270\255`, and its end."""
    first, place = _read_byte(data, position, stop)
    if first < 0x80:
        return first if first >= 32 or first < 0 else np.int64(10 if first == 10 else 32), place
    num_more = 1 if 0xC2 <= first < 0xE0 else 2 if 0xE0 <= first < 0xF0 else 3 if 0xF0 <= first < 0xF5 else 0
    code = first & (0x3F >> num_more)
    for _ in range(num_more):
        more, place = _read_byte(data, place, stop)
        if more & 0xC0 != 0x80 or more < 0:
            return np.int64(NOT_FOUND), position
        code = code << 6 | more & 0x3F
    return (code, place) if num_more else (np.int64(NOT_FOUND), position)


@kernel
def _read_byte(data: NDArray[np.uint8], position: int, stop: int) -> tuple[Any, Any]:
    r"""Read `%e4`, `\xe4` or `\344`, with any number of backslashes: the byte, or -1, and where it ends."""
    if position < stop and data[position] == ord("%"):
        return _read_hex(data, position + 1, stop, 2)
    place = position
    while place < stop and data[place] == ord("\\"):
        place += 1
    if place == position or place + 3 > stop:
        return np.int64(NOT_FOUND), position
    if data[place] == ord("x"):
        return _read_hex(data, place + 1, stop, 2)
    code = np.int64(0)
    for digit in data[place : place + 3]:
        if not ord("0") <= digit <= ord("7"):
            return np.int64(NOT_FOUND), position
        code = code << 3 | (digit - ord("0"))
    return code if code < 0x100 else np.int64(NOT_FOUND), place + 3


@kernel
def _strip(
    plain: NDArray[np.uint8],
    start: int,
    stop: int,
    kinds: NDArray[np.uint8],
    names: NDArray[np.uint64],
    meanings: NDArray[np.uint32],
    sources: NDArray[np.int64],
) -> int:
    """Take the markup out of a text, in place; returns where it ends then.

    Linear: a search for the end of a tag ends at the next `<`, and so for the others.
    """
    position = count = start
    while position < stop:
        end = find_kind(plain, position, stop, kinds, STRIPPED)
        if count < position:
            _copy(plain, position, end, plain, count)
            if sources.shape[1]:
                for place in range(position, end):
                    sources[:, count + place - position] = sources[:, place]
        count += end - position
        position = end
        if position >= stop:
            break
        byte = plain[position]
        after, written = position, np.uint8(0)
        if byte == ord("<"):
            after, written = _skip_tag(plain, position, stop, names, meanings)
        elif byte == ord("*"):
            after = _skip_stars(plain, start, position, stop)
        else:
            after = _skip_brackets(plain, position, stop)
            written = np.uint8(32 if byte == ord("]") else 0)
        if after > position:
            position = after
            if not written:
                continue
            byte = written
            position -= 1  # the gap comes from the last byte of the markup
        plain[count] = byte
        if sources.shape[1]:
            sources[0, count], sources[1, count] = sources[0, position], sources[1, position]
        count += 1
        position += 1
    return count


@kernel
def _skip_tag(
    plain: NDArray[np.uint8], position: int, stop: int, names: NDArray[np.uint64], meanings: NDArray[np.uint32]
) -> tuple[Any, np.uint8]:
    """Return where a tag, a comment or an address in angle brackets ends, and what is between the words around it.

    With words after its name only what has a `=` is a tag: `a <b and c> d` is none.
    """
    is_comment = _begins_with(plain, position, stop, 0x3C212D2D)  # <!--
    place = position + 1
    is_closing = place < stop and plain[place] == ord("/")
    place += is_closing
    if not is_comment and place < stop and plain[place] == ord("!"):
        place += 1
    name = place
    while place < stop and place < name + _MAX_NAME and (is_alphanumeric(plain[place]) or plain[place] == ord("-")):
        place += 1
    if not is_comment and (place == name or place >= stop or not _is_letter(plain[name])):
        return position, np.uint8(0)
    end = place
    has_equals, num_words = False, 0
    while end < stop and plain[end] != ord(">") and plain[end] != ord("<"):
        has_equals |= plain[end] == ord("=")
        num_words += _begins_word(plain[end])
        end += 1
        if is_comment:
            while end < stop and plain[end] == ord(">") and not (plain[end - 1] == plain[end - 2] == ord("-")):
                end += 1
            while end < stop and plain[end] == ord("<") and not _begins_with(plain, end, stop, 0x3C212D2D):
                end += 1
    if end >= stop or plain[end] != ord(">") or num_words > _MAX_HIDDEN_WORDS:
        return position, np.uint8(0)
    if is_comment:
        return end + 1, np.uint8(0)
    num_inside = end - place
    is_bare = num_inside == 0 or (num_inside <= 2 and (plain[end - 1] == ord("/") or plain[end - 1] <= 32))
    is_address = num_words == 0 and (plain[place] == ord(":") or plain[place] == ord("@"))
    is_declared = plain[name - 1] == ord("!")
    if not (is_bare or is_address or is_declared or (has_equals and (plain[place] <= 32 or plain[place] == ord(":")))):
        return position, np.uint8(0)
    is_inline = _look_up(_hash_name(plain, name, place, TAG), names, meanings) != 0
    return end + 1, np.uint8(0) if is_inline else np.uint8(10)


@kernel
def _skip_brackets(plain: NDArray[np.uint8], position: int, stop: int) -> int:
    """Return where the part of a link that is not read ends, `](https://…)`, `][name]`, `![…](…)`, `[^1]`, `[12]`."""
    byte = plain[position]
    place = position + 1
    if place >= stop:
        return position
    if byte == ord("!"):
        if plain[place] != ord("["):
            return position
        place += 1
        num_words = 0
        while place < stop and plain[place] != ord("]") and plain[place] != ord("[") and plain[place] != ord("\n"):
            num_words += _begins_word(plain[place])
            place += 1
        if place + 1 >= stop or plain[place] != ord("]") or plain[place + 1] != ord("("):
            return position
        if num_words > _MAX_HIDDEN_WORDS:
            return position
        return _skip_target(plain, place + 1, stop, position)
    if byte == ord("]"):
        if plain[place] == ord("("):
            return _skip_target(plain, place, stop, position)
        if plain[place] != ord("["):
            return position
        place += 1
        while place < stop and place < position + _MAX_NAME and plain[place] > 32 and plain[place] != ord("]"):
            if plain[place] == ord("["):
                return position
            place += 1
        return place + 1 if place < stop and plain[place] == ord("]") else position
    is_footnote = plain[place] == ord("^")
    place += is_footnote
    first = place
    while place < stop and place < first + 4 and is_alphanumeric(plain[place]):
        if not is_footnote and plain[place] > ord("9"):
            return position
        place += 1
    return place + 1 if first < place < stop and plain[place] == ord("]") else position


@kernel
def _skip_target(plain: NDArray[np.uint8], position: int, stop: int, otherwise: int) -> int:
    """Return where `(https://… "title")` ends; `otherwise` if it is none: words in brackets are no target."""
    place = position + 1
    depth, num_words = 1, 0
    quote = np.uint8(0)
    while place < stop and plain[place] != ord("\n") and plain[place] != ord("["):
        byte = plain[place]
        if quote:
            if byte == quote:
                quote = np.uint8(0)
        elif byte == ord('"') or byte == ord("'"):
            quote = byte
        elif byte == ord("("):
            depth += 1
        elif byte == ord(")"):
            depth -= 1
            if not depth:
                return place + 1 if num_words <= _MAX_HIDDEN_WORDS else otherwise
        elif byte == 32 and not (place + 1 < stop and (plain[place + 1] == ord('"') or plain[place + 1] == ord("'"))):
            return otherwise
        num_words += _begins_word(byte)
        place += 1
    return otherwise


@kernel
def _skip_stars(plain: NDArray[np.uint8], start: int, position: int, stop: int) -> int:
    """Return where two or more stars end that are inside a word, as in `**N**atalia`."""
    place = position
    while place < stop and plain[place] == ord("*"):
        place += 1
    is_inside = position > start and place < stop and _is_letter(plain[position - 1]) and _is_letter(plain[place])
    return place if is_inside and place > position + 1 else position


@kernel
def _encode(code: Any, plain: NDArray[np.uint8], count: int) -> int:
    """Write a character in UTF-8; returns how many bytes it has. What is no character becomes a gap."""
    if code < 0x80:
        plain[count] = code if code > 0 else 32
        return 1
    if code < 0x800:
        plain[count] = 0xC0 | code >> 6
        plain[count + 1] = 0x80 | code & 0x3F
        return 2
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        plain[count] = 32
        return 1
    if code < 0x10000:
        plain[count] = 0xE0 | code >> 12
        plain[count + 1] = 0x80 | code >> 6 & 0x3F
        plain[count + 2] = 0x80 | code & 0x3F
        return 3
    plain[count] = 0xF0 | code >> 18
    plain[count + 1] = 0x80 | code >> 12 & 0x3F
    plain[count + 2] = 0x80 | code >> 6 & 0x3F
    plain[count + 3] = 0x80 | code & 0x3F
    return 4


@kernel
def _read_hex(data: NDArray[np.uint8], position: int, stop: int, num_digits: int) -> tuple[Any, Any]:
    """Read a hexadecimal number of that many digits: the number, or -1, and where it ends."""
    code = np.int64(0)
    if position + num_digits > stop:
        return np.int64(NOT_FOUND), position
    for place in range(position, position + num_digits):
        digit = _read_digit(data[place])
        if digit < 0:
            return np.int64(NOT_FOUND), position
        code = code << 4 | digit
    return code, position + num_digits


@kernel
def _read_digit(byte: np.uint8) -> Any:
    """Return the value of a hexadecimal digit; -1 if it is none."""
    if ord("0") <= byte <= ord("9"):
        return np.int64(byte) - ord("0")
    if ord("a") <= byte | 32 <= ord("f"):
        return np.int64(byte | 32) - ord("a") + 10
    return np.int64(NOT_FOUND)


@kernel
def _begins_word(byte: np.uint8) -> Any:
    """Whether a byte is a space, or begins a character that may be a word by itself."""
    return byte <= 32 or byte >= 0xC0


@kernel
def _is_letter(byte: np.uint8) -> Any:
    return ord("a") <= byte | 32 <= ord("z")


@kernel
def _begins_with(data: NDArray[np.uint8], position: int, stop: int, four: int) -> Any:
    """Whether the next four bytes are those of a number, the first one highest."""
    if position + 4 > stop:
        return False
    value = np.int64(0)
    for place in range(position, position + 4):
        value = value << 8 | np.int64(data[place])
    return value == four


@kernel
def _hash_name(data: NDArray[np.uint8], start: int, stop: int, kind: np.uint64) -> np.uint64:
    value, fold = kind, np.uint64(32 if kind == TAG else 0)
    for place in range(start, stop):
        value = (value ^ (np.uint64(data[place]) | fold)) * PRIME
        value ^= value >> np.uint64(29)
    return value


@kernel
def _look_up(hashed: np.uint64, names: NDArray[np.uint64], meanings: NDArray[np.uint32]) -> Any:
    """Return what a name means; 0 if it is not known."""
    place = np.searchsorted(names, hashed)
    return np.int64(meanings[place]) if place < len(names) and names[place] == hashed else np.int64(0)
