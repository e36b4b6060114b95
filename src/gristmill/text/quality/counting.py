"""The quality scores, and the counts that a set of them needs, from an Arrow column of texts.

The text buffers are not copied. Documents are counted in groups whose words fit into scratch memory, which is kept from
batch to batch: 4 MB, and for a document of more than 65,536 words up to 100 MB.

A score is a whole number or the quotient of two whole numbers, so it is the same on every machine. 0 / 0 is 0. The
reference, `explain` and the kept columns show its name, version and definition.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import GristmillError
from gristmill.text.buffers import get_text_buffers
from gristmill.text.quality import code_lines, repeated_lines, repeated_words, scan
from gristmill.text.quality.character_classes import make_character_classes
from gristmill.text.quality.code_lines import count_code_lines, make_keyword_codes, pair_kinds
from gristmill.text.quality.repeated_lines import count_character_runs, count_repeated_lines
from gristmill.text.quality.repeated_words import count_repeated_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray


Counts = dict[str, "NDArray[np.int64]"]

_USUAL_WORDS = 1 << 16
_CHARACTER_RUN = "longest_character_run"
_RUN_LENGTHS = {
    f"{kind}_{size}_gram_characters": size
    for kind, sizes in (("top", (2, 3, 4)), ("duplicate", (5, 6, 7, 8, 9, 10)))
    for size in sizes
}


@dataclass(frozen=True, slots=True)
class RequiredPasses:
    """The passes that a set of scores needs, in addition to the scan of the text itself."""

    lines: bool = False
    longest_run: int = 0
    """The longest run of words to search for: 0 for none, 1 to number the words only."""
    characters: bool = False
    code: bool = False

    @classmethod
    def of(cls, scores: Iterable[Score]) -> RequiredPasses:
        return cls.of_counters({counter for score in scores for counter in score.counters})

    @classmethod
    def of_counters(cls, counters: Collection[str]) -> RequiredPasses:
        runs = [_RUN_LENGTHS.get(counter, 1) for counter in counters if counter in repeated_words.COUNTERS]
        return cls(
            lines=any(counter in repeated_lines.COUNTERS for counter in counters),
            longest_run=max(runs, default=0),
            characters=_CHARACTER_RUN in counters,
            code=any(counter in code_lines.COUNTERS for counter in counters),
        )

    @property
    def searches(self) -> bool:
        """Whether repeated lines or words are searched."""
        return self.lines or self.longest_run > 0

    def with_searches_of(self, other: RequiredPasses) -> RequiredPasses:
        """Add the searches for repeated lines and words of another set of scores."""
        return replace(self, lines=self.lines or other.lines, longest_run=max(self.longest_run, other.longest_run))


@dataclass(slots=True)
class _Scratch:
    """Scratch memory for the words and lines of a group of documents, and for the search in those of one."""

    capacity: int
    words: NDArray[np.int32] = field(init=False)
    word_hashes: NDArray[np.uint64] = field(init=False)
    lines: NDArray[np.int32] = field(init=False)
    line_hashes: NDArray[np.uint64] = field(init=False)
    table: NDArray[np.int32] = field(init=False)
    numbers: NDArray[np.int32] = field(init=False)
    keys: NDArray[np.uint64] = field(init=False)
    sums: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        size = self.capacity
        self.words = np.empty((size, scan.WORD_COLUMNS), np.int32)
        self.word_hashes = np.empty(size, np.uint64)
        self.lines = np.empty((size, scan.LINE_COLUMNS), np.int32)
        self.line_hashes = np.empty(size, np.uint64)
        self.table = np.empty(4 * size, np.int32)
        self.numbers = np.empty((6, size + 1), np.int32)
        self.keys = np.empty(size + 1, np.uint64)
        self.sums = np.empty((2, size + 1), np.int64)


class StopWords:
    """Lists of words as hash tables for the kernel; each document is compared with one of them.

    Words of up to eight bytes of ASCII are in a second table, under these bytes.
    """

    def __init__(self, lists: Sequence[Sequence[str]] = ()) -> None:
        size = 16
        while size < 16 * max(map(len, lists), default=0):
            size *= 2
        shape = max(len(lists), 1), size
        self.keys, self.short_keys = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
        self.numbers, self.short_numbers = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.sizes = np.zeros(len(self.keys), np.int64)
        """The length of the longest word of each list."""
        self.num_words = 0
        for row, words in enumerate(lists):
            for word in words:
                for form in sorted({word, word.lower(), word.upper(), word.capitalize()}):
                    self._insert(self.keys[row], self.numbers[row], _hash_word(form))
                    if form.isascii() and len(form) <= _SHORT_BYTES:
                        number = int.from_bytes(form.encode(), "little")
                        self._insert(self.short_keys[row], self.short_numbers[row], number)
                    self.sizes[row] = max(self.sizes[row], len(form))
                self.num_words += 1

    def _insert(self, keys: NDArray[np.uint64], numbers: NDArray[np.int64], key: int) -> None:
        mask = len(keys) - 1
        slot = (((key * _SPREAD) % 2**64) >> 32) & mask
        while keys[slot] not in (0, key):
            slot = (slot + 1) & mask
        if keys[slot] == 0:
            keys[slot] = key
            numbers[slot] = self.num_words


_SHORT_BYTES = 8
_SPREAD = 0x9E3779B97F4A7C15
NO_STOP_WORDS = StopWords()


def _hash_word(word: str) -> int:
    """Hash a word as `scan` hashes the part of a word between punctuation."""
    hashed = 0xCBF29CE484222325
    for character in word:
        hashed = ((hashed ^ ord(character)) * 0x100000001B3) % 2**64
    return hashed


class TextCounter:
    """Counts documents with its own scratch memory: each thread needs a separate counter."""

    def __init__(self, needs: RequiredPasses, stop_words: StopWords = NO_STOP_WORDS) -> None:
        self.needs = needs
        self._stop_words = stop_words
        self._scratch = _Scratch(0)

    def count(
        self,
        texts: pa.LargeStringArray,
        stop_list: NDArray[np.int64] | None = None,
        choose: Callable[[Counts, slice], NDArray[np.bool_]] | None = None,
    ) -> Counts:
        """Return the counts of each text; null counts as empty.

        Args:
            texts: A column of texts.
            stop_list: The list of stop words of each text, -1 for none.
            choose: Called with the counts of the first pass over some of the texts, and which these are: for each of
                them whether it is searched for repeated lines and words. For others these counts are 0.
        """
        data, offsets = get_text_buffers(texts)
        num_texts = len(texts)
        needs = self.needs
        self._make_room(offsets)
        if stop_list is None:
            stop_list = np.full(num_texts, -1, np.int64)
        last_document = np.full(self._stop_words.num_words + 1, -1, np.int64)  # one for all words that are not listed
        scanned = np.zeros((num_texts, len(scan.COUNTERS)), np.int64)
        lines = np.zeros((num_texts, len(repeated_lines.COUNTERS)), np.int64)
        words = np.zeros((num_texts, len(repeated_words.COUNTERS)), np.int64)
        code = np.zeros((num_texts, len(code_lines.COUNTERS)), np.int64)
        is_searched = np.ones(num_texts, np.bool_)
        word_stops, line_stops = np.zeros(num_texts, np.int64), np.zeros(num_texts, np.int64)
        room = self._scratch
        noted_words, noted_lines = (
            room.words[: None if needs.longest_run else 0],
            room.lines[: None if needs.lines or needs.code else 0],
        )
        first = 0
        while first < num_texts:
            stop = scan.scan_texts(
                data, offsets, first, make_character_classes(),
                self._stop_words.keys, self._stop_words.numbers, self._stop_words.sizes,
                self._stop_words.short_keys, self._stop_words.short_numbers, stop_list, last_document, scanned,
                noted_words, room.word_hashes, word_stops, noted_lines, room.line_hashes, line_stops,
            )  # fmt: skip
            if choose is not None:
                scanned_counts = dict(zip(scan.COUNTERS, scanned[first:stop].T, strict=True))
                is_searched[first:stop] = choose(scanned_counts, slice(first, stop))
            if needs.lines:
                count_repeated_lines(
                    data, offsets, first, stop, is_searched, room.lines, room.line_hashes, line_stops,
                    room.table, room.numbers[0], lines,
                )  # fmt: skip
            if needs.code:
                count_code_lines(
                    data, offsets, first, stop, room.lines, line_stops,
                    make_character_classes(), pair_kinds(), make_keyword_codes(), code,
                )  # fmt: skip
            if needs.longest_run:
                count_repeated_words(
                    data, offsets, first, stop, is_searched, needs.longest_run, room.words, room.word_hashes,
                    word_stops, room.table, room.numbers, room.keys, room.sums, words,
                )  # fmt: skip
            first = stop
        counts = dict(zip(scan.COUNTERS, scanned.T, strict=True))
        if needs.lines:
            counts |= zip(repeated_lines.COUNTERS, lines.T, strict=True)
        if needs.code:
            counts |= zip(code_lines.COUNTERS, code.T, strict=True)
        if needs.longest_run:
            # Only what was counted: a filter that needs longer runs must not use zeros as counts.
            counts |= {
                name: column
                for name, column in zip(repeated_words.COUNTERS, words.T, strict=True)
                if _RUN_LENGTHS.get(name, 1) <= needs.longest_run
            }
        if needs.characters:
            counts[_CHARACTER_RUN] = np.zeros(num_texts, np.int64)
            count_character_runs(data, offsets, counts[_CHARACTER_RUN])
        return counts

    def _make_room(self, offsets: NDArray[np.int64]) -> None:
        """Make the scratch memory large enough for the document that can have the most words."""
        if not (self.needs.lines or self.needs.longest_run or self.needs.code):
            return
        num_bytes = int(np.diff(offsets).max(initial=0))
        if num_bytes >= 2**31:
            raise GristmillError(
                f"a document of {num_bytes:,} bytes is too large: the limit is 2 GiB", help="cut it into smaller ones"
            )
        max_words = num_bytes // 2 + 1
        capacity = max(_USUAL_WORDS, min(max_words, scan.MAX_NOTED))
        if self._scratch.capacity < capacity:
            self._scratch = _Scratch(capacity)


@dataclass(frozen=True, slots=True)
class Score:
    """One number about a document."""

    name: str
    definition: str
    of: tuple[str, ...]
    """The counters whose sum is the score, or is divided by `by`."""
    by: str | None = None
    """The counter to divide by."""
    version: int = 1
    """A number to raise whenever the same text would get another value."""

    @property
    def counters(self) -> tuple[str, ...]:
        return self.of if self.by is None else (*self.of, self.by)

    def value(self, counts: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64] | NDArray[np.float64]:
        """Return the score of each document."""
        number = counts[self.of[0]]
        for other in self.of[1:]:
            number = number + counts[other]
        if self.by is None:
            return number
        divisor = counts[self.by]
        return np.divide(number, divisor, out=np.zeros(len(number)), where=divisor > 0)


def _count(name: str, definition: str) -> Score:
    return Score(name, definition, (name,))


_LISTED = (
    _count("characters", "Characters (code points), without the space before and after the text."),
    _count("words", "Words: runs without space; in scripts without spaces, each letter is a word."),
    _count("lines", "Lines that are not blank."),
    _count("paragraphs", "Groups of lines between blank lines."),
    _count("longest_word", "Characters of the longest word."),
    _count("longest_line", "Characters of the longest line, without the space at its ends."),
    _count("longest_word_run", "The longest run of the same word, in words."),
    _count("longest_character_run", "The longest run of the same character; the space and control characters do not "
           "count."),
    _count("stop_words", "How many different words of the list of stop words occur, without the punctuation around "
           "them: as listed, in lower case, in upper case, or with the first letter in upper case."),
    Score("mean_word_length", "Characters of all words / words.", ("word_characters",), "words"),
    Score("mean_line_length", "Characters of all lines, without the space at their ends / lines.",
          ("line_characters",), "lines"),
    Score("letter_ratio", "Letters / characters.", ("letters",), "characters"),
    Score("digit_ratio", "Decimal digits / characters.", ("digits",), "characters"),
    Score("alphanumeric_ratio", "Letters and decimal digits / characters.", ("letters", "digits"), "characters"),
    Score("capital_ratio", "Capital letters / letters.", ("capitals",), "letters"),
    Score("space_ratio", "Spaces of all kinds, including line feeds / characters.", ("spaces",), "characters"),
    Score("alphabetic_word_ratio", "Words with a letter / words.", ("alphabetic_words",), "words"),
    Score("hash_word_ratio", "Words with a # / words.", ("hash_words",), "words"),
    Score("ellipsis_word_ratio", "Words with ... or … / words.", ("ellipsis_words",), "words"),
    Score("lines_per_word", "Lines / words.", ("lines",), "words"),
    Score("bullet_line_ratio", "Lines that begin with a bullet, an asterisk or a dash / lines.",
          ("bullet_lines",), "lines"),
    Score("ellipsis_line_ratio", "Lines that end in ... or … / lines.", ("ellipsis_lines",), "lines"),
    Score("terminal_line_ratio", "Lines whose last character ends a sentence (. ! ? … and those of other scripts; "
          "quotation marks do not) / lines.", ("terminal_lines",), "lines"),
    Score("short_line_ratio", "Lines of at most 30 characters / lines.", ("short_lines",), "lines"),
    Score("code_ratio", "Characters of lines of source code / characters of all lines. Lines of source code have more "
          "signs of code than of prose, or are between fences or triple quotes, or are comments and other lines "
          "without signs that follow such lines.",
          ("code_characters",), "judged_line_characters", version=3),
    Score("duplicate_line_ratio", "Lines that are equal to an earlier one / lines.",
          ("duplicate_lines",), "searched_lines"),
    Score("duplicate_line_character_ratio", "Characters of lines that are equal to an earlier one / characters of all "
          "lines.", ("duplicate_line_characters",), "searched_line_characters"),
    Score("duplicate_paragraph_ratio", "Paragraphs whose lines are equal to those of an earlier one / paragraphs.",
          ("duplicate_paragraphs",), "paragraphs"),
    Score("duplicate_paragraph_character_ratio", "Characters of the lines of paragraphs that are equal to an earlier "
          "one / characters of all lines.", ("duplicate_paragraph_characters",), "searched_line_characters"),
    Score("distinct_word_ratio", "Different words / words.", ("distinct_words",), "searched_words"),
    *(
        Score(f"top_{length}_gram_ratio", f"Characters of the words that the most frequent run of {length} pieces "
              "covers, each word once / characters of all words; 0 if no run occurs twice. Of equally frequent runs, "
              "the one that covers most counts. A piece is a word; in scripts without spaces, the letters of a word.",
              (f"top_{length}_gram_characters",), "searched_word_characters", version=3)
        for length in (2, 3, 4)
    ),
    *(
        Score(f"duplicate_{length}_gram_ratio", f"Characters of the words that repeated runs of {length} pieces "
              "cover, including the first occurrences, each word once / characters of all words. A piece is a word; "
              "in scripts without spaces, the letters of a word.",
              (f"duplicate_{length}_gram_characters",), "searched_word_characters", version=3)
        for length in (5, 6, 7, 8, 9, 10)
    ),
)  # fmt: skip

SCORES = {score.name: score for score in _LISTED}
