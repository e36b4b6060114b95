"""Runs of words that a document repeats: for each length, what the most frequent run covers or what all runs cover.

A letter of a script without spaces is not a word but a share of one: 2 letters of Han, 3 of Kana or 4 of Thai say as
much as a word of English. So a run consists of pieces: a piece is a word, or as many such letters in a row as make up a
word. A run may begin at any letter, because in text without spaces a phrase may begin anywhere.

A run of n pieces can only be repeated if its first n - 1 pieces are, and its last piece is. So lengths are handled in
order, and each looks only at the places that the length before left over. A run is identified by the numbers of its two
parts, so equality is exact (pieces are compared by their bytes). English prose has 70 % of its places left after single
words, a tenth after four. About 25 ns a word for all lengths up to ten; the tables that are cleared are proportional to
the document.

What a run covers is counted in characters of words, each word once, however many runs cover it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gristmill.runtime.kernels import kernel
from gristmill.text.byte_kernels import choose_table_size, find_slot, load_8_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNTERS = (
    "searched_words",
    "searched_word_characters",
    "distinct_words",
    "longest_word_run",
    *(f"top_{length}_gram_characters" for length in (2, 3, 4)),
    *(f"duplicate_{length}_gram_characters" for length in (5, 6, 7, 8, 9, 10)),
)

_START, _END, _CHARACTERS, _SHARE = range(4)
_PIECE_WORDS = _SHARE
"""The column of the share, once pieces are made: it then holds how many words the piece has that begins here."""
_WHOLE_WORD = 12
_SURE_BYTES = 8
_1 = np.uint64(1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_LAST_TOP = 4
_COLUMN_OF_LENGTH = 2
"""The counter of runs of `length` words is in the column `length + 2`."""


@kernel
def _has_same_bytes(data: NDArray[np.uint8], first: int, second: int, size: int) -> bool:
    """Compare two words, eight bytes at a time; the last eight may overlap those before them."""
    last = size - _SURE_BYTES
    if last < 0:
        for offset in range(size):  # noqa: SIM110  (compiled)
            if data[np.uint64(first + offset)] != data[np.uint64(second + offset)]:
                return False
        return True
    for offset in range(0, last, _SURE_BYTES):
        if load_8_bytes(data, np.uint64(first + offset)) != load_8_bytes(data, np.uint64(second + offset)):
            return False
    return bool(load_8_bytes(data, np.uint64(first + last)) == load_8_bytes(data, np.uint64(second + last)))


@kernel
def _number_words(
    data: NDArray[np.uint8],
    start: int,
    words: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    table: NDArray[np.int32],
    numbers: NDArray[np.int32],
    times: NDArray[np.int32],
    sure_bytes: int,
) -> int:
    """Number the distinct words of a document as they come, count each of them, and return how many there are.

    `table` has 1 + the place where a word was first. Words of the same hash and of the same size, up to `sure_bytes`,
    have the same bytes: of words `scan` has made sure of that up to eight bytes, of pieces nothing has.
    """
    size = choose_table_size(len(words))
    table[:size] = 0
    mask = np.uint64(size - 1)
    count = 0
    for word in range(len(words)):
        hashed = hashes[word]
        num_bytes = words[word, _END] - words[word, _START]
        slot = find_slot(hashed, mask)
        while table[slot] != 0:
            other = np.uint64(table[slot] - 1)
            if hashes[other] == hashed and words[other, _END] - words[other, _START] == num_bytes:
                if num_bytes <= sure_bytes:
                    break
                if _has_same_bytes(data, start + words[word, _START], start + words[other, _START], num_bytes):
                    break
            slot = (slot + _1) & mask
        if table[slot] == 0:
            number = np.uint64(count)
            times[number] = 0
            count += 1
            table[slot] = word + 1
        else:
            number = np.uint64(numbers[np.uint64(table[slot] - 1)])
        numbers[word] = number
        times[number] += 1
    return count


@kernel
def _make_pieces(words: NDArray[np.int32], hashes: NDArray[np.uint64]) -> bool:
    """Replace each word by the piece that begins with it; return whether any piece has more than one word.

    Words are replaced in order and a piece looks only forward, so it is made of words that are not replaced yet.
    """
    has_longer = False
    for word in range(len(words)):
        share = words[word, _SHARE]
        last = word
        while (
            share < _WHOLE_WORD
            and last + 1 < len(words)
            and words[last + 1, _SHARE] < _WHOLE_WORD
            and words[last + 1, _START] == words[last, _END]
        ):
            last += 1
            share += words[last, _SHARE]
            hashes[word] = hashes[word] * _SPREAD ^ hashes[last]
            has_longer = True
        words[word, _END] = words[last, _END]
        words[word, _PIECE_WORDS] = last + 1 - word
    return has_longer


@kernel
def _keep_repeated(
    starts: NDArray[np.int32], stops: NDArray[np.int32], numbers: NDArray[np.int32], times: NDArray[np.int32]
) -> int:
    """Keep the places (with the ends and numbers of their runs) whose run occurs again; return how many there are."""
    num_kept = np.uint64(0)
    for index in range(len(starts)):
        number = numbers[index]
        starts[num_kept] = starts[index]
        stops[num_kept] = stops[index]
        numbers[num_kept] = number
        num_kept += np.uint64(times[np.uint64(number)] > 1)
    return int(num_kept)


@kernel
def _keep_likely(
    starts: NDArray[np.int32],
    stops: NDArray[np.int32],
    numbers: NDArray[np.int32],
    words: NDArray[np.int32],
    pieces: NDArray[np.int32],
    table: NDArray[np.int32],
    keys: NDArray[np.uint64],
) -> int:
    """Keep the places where a run of one more piece may occur again, with the key of this run; return how many.

    Most longer runs occur once. They are found without a jump that depends on the data: keys are counted by their slots
    alone, and one that is alone in its slot is alone in the document.
    """
    size = choose_table_size(len(starts))
    table[:size] = 0
    mask = np.uint64(size - 1)
    last = len(words) - 1
    num_kept = np.uint64(0)
    for index in range(len(starts)):
        stop = stops[index]
        piece = pieces[np.uint64(min(stop, last))]
        # The shorter run and the piece after it, as one number: equal keys are equal runs, no texts are compared.
        key = (np.uint64(numbers[index]) << np.uint64(32)) | np.uint64(np.uint32(piece))
        is_possible = (stop <= last) & (piece >= 0)
        table[find_slot(key, mask)] += is_possible
        keys[num_kept] = key
        starts[num_kept] = starts[index]
        stops[num_kept] = stop
        numbers[num_kept] = numbers[index]
        num_kept += np.uint64(is_possible)
    num_possible = np.int64(num_kept)
    num_kept = np.uint64(0)
    for index in range(num_possible):
        keys[num_kept] = keys[index]
        starts[num_kept] = starts[index]
        stops[num_kept] = stops[index]
        num_kept += np.uint64(table[find_slot(keys[index], mask)] > 1)
    return int(num_kept)


@kernel
def _lengthen(
    starts: NDArray[np.int32],
    stops: NDArray[np.int32],
    numbers: NDArray[np.int32],
    words: NDArray[np.int32],
    pieces: NDArray[np.int32],
    table: NDArray[np.int32],
    keys: NDArray[np.uint64],
    times: NDArray[np.int32],
    is_plain: bool,  # noqa: FBT001
) -> int:
    """Make runs one piece longer, number them, and return how many places are left.

    `pieces` has the number of the piece that begins with each word, -1 if the piece occurs only once.
    """
    num_kept = _keep_likely(starts, stops, numbers, words, pieces, table, keys)
    size = choose_table_size(num_kept)
    table[:size] = 0
    mask = np.uint64(size - 1)
    count = 0
    for index in range(num_kept):
        key = keys[index]
        slot = find_slot(key, mask)
        while table[slot] != 0 and keys[np.uint64(table[slot] - 1)] != key:
            slot = (slot + _1) & mask
        number = np.uint64(table[slot] - 1)
        if table[slot] == 0:
            number = np.uint64(count)
            keys[number] = key  # of a place before, which is done
            times[number] = 0
            count += 1
            table[slot] = count
        stops[index] += 1 if is_plain else words[np.uint64(stops[index]), _PIECE_WORDS]
        numbers[index] = number
        times[number] += 1
    return num_kept


@kernel
def _count_covered(starts: NDArray[np.int32], stops: NDArray[np.int32], ends: NDArray[np.int64]) -> int:
    """Count the characters of words that any of the runs covers; `ends[w]` counts the characters of the first w words.

    A run that begins later never ends earlier, so one pass is enough.
    """
    covered = 0
    reached = 0
    for index in range(len(starts)):
        first = max(starts[index], reached)
        reached = stops[index]
        covered += ends[reached] - ends[first]
    return covered


@kernel
def _count_covered_by_top_run(
    starts: NDArray[np.int32],
    stops: NDArray[np.int32],
    numbers: NDArray[np.int32],
    times: NDArray[np.int32],
    ends: NDArray[np.int64],
    reached: NDArray[np.int32],
    covered: NDArray[np.int64],
) -> int:
    """Like `_count_covered`, for the most frequent run alone; of several, for the one that covers most."""
    most = best = 0
    for number in numbers:
        most = max(most, times[number])
        reached[number] = 0
        covered[number] = 0
    for index in range(len(starts)):
        number = numbers[index]
        if times[number] == most:
            first = max(starts[index], reached[number])
            reached[number] = stops[index]
            covered[number] += ends[reached[number]] - ends[first]
            best = max(best, covered[number])
    return best


@kernel
def _count_runs(
    words: NDArray[np.int32],
    longest: int,
    ends: NDArray[np.int64],
    pieces: NDArray[np.int32],
    room: NDArray[np.int32],
    table: NDArray[np.int32],
    keys: NDArray[np.uint64],
    covered: NDArray[np.int64],
    row: NDArray[np.int64],
    is_plain: bool,  # noqa: FBT001
) -> None:
    """Count runs of 2 to `longest` pieces; `pieces` has the number of each, and `room[2]` how often it occurs.

    `is_plain` says that each piece is a word, and none has a number of words yet.
    """
    numbers, starts, times, reached, stops = room[0], room[1], room[2], room[3], room[4]
    places = np.uint64(0)
    for word in range(len(words)):
        number = pieces[word]
        is_repeated = times[np.uint64(number)] > 1
        starts[places] = word
        stops[places] = word + (1 if is_plain else words[word, _PIECE_WORDS])
        numbers[places] = number
        places += np.uint64(is_repeated)
        pieces[word] = number if is_repeated else -1
    num_kept = int(places)
    for length in range(2, longest + 1):
        num_kept = _lengthen(starts[:num_kept], stops, numbers, words, pieces, table, keys, times, is_plain)
        num_kept = _keep_repeated(starts[:num_kept], stops, numbers, times)
        if num_kept == 0:
            return
        column = length + _COLUMN_OF_LENGTH
        if length <= _LAST_TOP:
            row[column] = _count_covered_by_top_run(
                starts[:num_kept], stops, numbers[:num_kept], times, ends, reached, covered
            )
        else:
            row[column] = _count_covered(starts[:num_kept], stops, ends)


@kernel
def count_repeated_words(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: int,
    stop: int,
    is_searched: NDArray[np.bool_],
    longest: int,
    words: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    word_stops: NDArray[np.int64],
    table: NDArray[np.int32],
    room: NDArray[np.int32],
    keys: NDArray[np.uint64],
    sums: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Count runs of up to `longest` pieces in those documents from `first` to `stop` that are searched.

    `scan` has noted their words. All other arrays are scratch memory: `table` for four times as many numbers as one
    document has words; `keys`, each of the six rows of `room` and of the two of `sums` for one more than it has words.
    The noted words are overwritten.
    """
    begin = 0
    times, numbers = room[2], room[5]
    ends, covered = sums[0], sums[1]
    for document in range(first, stop):
        own, own_hashes = words[begin : word_stops[document]], hashes[begin : word_stops[document]]
        begin = word_stops[document]
        if not is_searched[document]:
            continue
        row = counts[document]
        row[:] = 0
        row[0] = len(own)
        row[2] = _number_words(data, offsets[document], own, own_hashes, table, numbers, times, _SURE_BYTES)
        # In registers: through the arrays each word would wait for the one before it.
        run = longest_run = characters = 0
        last = -1
        is_plain = True
        ends[0] = 0
        for word in range(len(own)):
            characters += own[word, _CHARACTERS]
            ends[word + 1] = characters
            number = numbers[word]
            run = run + 1 if number == last else 1
            last = number
            longest_run = max(longest_run, run)
            is_plain &= own[word, _SHARE] == _WHOLE_WORD
        row[1] = characters
        row[3] = longest_run
        if longest > 1:
            if not is_plain and _make_pieces(own, own_hashes):
                _number_words(data, offsets[document], own, own_hashes, table, numbers, times, 0)
            _count_runs(own, longest, ends, numbers, room, table, keys, covered, row, is_plain)
