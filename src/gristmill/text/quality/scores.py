"""The scores: a definition of each in a sentence, and the counts that it is computed from.

A score is a whole number or the quotient of two whole numbers, so it is the same on every machine. 0 / 0 is 0. The
reference, `explain` and the kept columns show the names, versions and definitions of this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


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
          ("code_characters",), "judged_line_characters", version=2),
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
