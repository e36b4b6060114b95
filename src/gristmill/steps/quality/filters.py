"""`gopher_quality`: the rules of the Gopher paper (Rae et al. 2021, table A1) for prose.

`gopher_repetition`: the rules of the Gopher paper (Rae et al. 2021, table A1) against repetition.

`fineweb`: the rules that FineWeb added to those of Gopher and C4.

`repetition`: drop loops and fillers, in text and in code.

`code`: keep source code that people wrote, or text without too much code in it.

`scores`: thresholds for any scores, where no other filter has the rule.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from gristmill.core.errors import UsageError
from gristmill.steps.quality.languages import LanguageTables  # noqa: TC001  (msgspec looks at the types)
from gristmill.steps.quality.score_filter import ScoreFilter
from gristmill.text.quality.character_classes import is_one_word

ENGLISH = ("the", "be", "to", "of", "and", "that", "have", "with")


class GopherQuality(ScoreFilter, tag="gopher_quality", frozen=True, kw_only=True):
    """Keep documents that look like prose: not too short, words of a usual length, few symbols, some stop words.

    These are the rules of the Gopher paper. The defaults are for English. For other languages give other stop words,
    and in scripts without spaces, where each letter is a word, other word lengths: `by_language: {zh:
    {min_mean_word_length: 1, stop_words: [的, 是]}}`.

    >>> from gristmill.core.records import documents
    >>> applied = GopherQuality().apply(documents(["Too short.", ""]), seed=0)
    >>> applied.dropped, applied.counters["failed:min_stop_words"]
    ({'empty': 1, 'min_words': 1}, 1)
    """

    is_for_english: ClassVar[bool] = True

    language_tables: LanguageTables = "none"
    """`built_in`: [tables for 55 languages](quality.md#languages), derived from translations, in addition to those
    of `by_language`.
    """
    min_words: int | None = 50
    max_words: int | None = 100_000
    min_mean_word_length: float | None = 3
    max_mean_word_length: float | None = 10
    max_hash_word_ratio: float | None = 0.1
    max_ellipsis_word_ratio: float | None = 0.1
    max_bullet_line_ratio: float | None = 0.9
    max_ellipsis_line_ratio: float | None = 0.3
    min_alphabetic_word_ratio: float | None = 0.8
    min_stop_words: int | None = 2
    stop_words: list[str] = msgspec.field(default_factory=lambda: list(ENGLISH))
    """The words that `min_stop_words` counts; by default the, be, to, of, and, that, have, with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        tables = (self.stop_words, *(changes.get("stop_words", []) for changes in self.by_language.values()))
        for word in (word for words in tables for word in words):
            if not is_one_word(word):
                raise UsageError(
                    f'stop_words: "{word}" is not a single word',
                    help="a stop word has no spaces and no punctuation; in scripts without spaces it is one letter",
                )


class GopherRepetition(ScoreFilter, tag="gopher_repetition", frozen=True, kw_only=True):
    r"""Keep documents that do not repeat their paragraphs, lines and phrases too much.

    These are the rules of the Gopher paper. In scripts without spaces, phrases are counted over pieces of 2 to 4
    letters: see [quality](quality.md#words-lines-paragraphs).

    >>> from gristmill.core.records import documents
    >>> GopherRepetition().apply(documents(["Say it again.\n" * 4, "A short but normal sentence."]), seed=0).dropped
    {'max_duplicate_line_ratio': 1}
    """

    language_tables: LanguageTables = "none"
    """`built_in`: [tables for 55 languages](quality.md#languages), derived from translations, in addition to those
    of `by_language`.
    """
    max_duplicate_paragraph_ratio: float | None = 0.3
    max_duplicate_paragraph_character_ratio: float | None = 0.2
    max_duplicate_line_ratio: float | None = 0.3
    max_duplicate_line_character_ratio: float | None = 0.2
    max_top_2_gram_ratio: float | None = 0.2
    max_top_3_gram_ratio: float | None = 0.18
    max_top_4_gram_ratio: float | None = 0.16
    max_duplicate_5_gram_ratio: float | None = 0.15
    max_duplicate_6_gram_ratio: float | None = 0.14
    max_duplicate_7_gram_ratio: float | None = 0.13
    max_duplicate_8_gram_ratio: float | None = 0.12
    max_duplicate_9_gram_ratio: float | None = 0.11
    max_duplicate_10_gram_ratio: float | None = 0.1


class Fineweb(ScoreFilter, tag="fineweb", frozen=True, kw_only=True):
    r"""Keep documents that consist of sentences; drop lists, menus and boilerplate.

    These are the rules that FineWeb added to the others.

    >>> from gristmill.core.records import documents
    >>> pages = ["Home\nAbout us\nContact", "This is a whole sentence of a document."]
    >>> Fineweb().apply(documents(pages), seed=0).dropped
    {'min_terminal_line_ratio': 1}
    """

    is_for_english: ClassVar[bool] = True

    language_tables: LanguageTables = "none"
    """`built_in`: [tables for 55 languages](quality.md#languages), derived from translations, in addition to those
    of `by_language`.
    """
    min_terminal_line_ratio: float | None = 0.12
    max_short_line_ratio: float | None = 0.67
    max_duplicate_line_character_ratio: float | None = 0.01
    """The value of FineWeb's code; its paper says 0.1."""
    max_lines_per_word: float | None = 0.3


class Repetition(ScoreFilter, tag="repetition", frozen=True, kw_only=True):
    """Drop only plain loops: the same word or character over and over, or a document that is half repetition.

    It is looser than `gopher_repetition`, so it suits code, tables and the output of models.

    >>> from gristmill.core.records import documents
    >>> Repetition().apply(documents(["very " * 200, "very, very good"]), seed=0).dropped
    {'max_longest_word_run': 1}
    """

    max_longest_word_run: int | None = 100
    max_longest_character_run: int | None = 1000
    max_duplicate_line_character_ratio: float | None = 0.5
    max_duplicate_10_gram_ratio: float | None = 0.5
    min_distinct_word_ratio: float | None = None


class Code(ScoreFilter, tag="code", frozen=True, kw_only=True):
    r"""Keep source code with lines of a usual length and enough letters and digits; drop minified files and data.

    For documents of text, `max_code_ratio` limits how much of them may look like code: `code: {max_code_ratio: 0.3}`.

    >>> from gristmill.core.records import documents
    >>> Code().apply(documents(["def f(x):\n    return x", "x=1;" * 300]), seed=0).dropped
    {'max_longest_line': 1}
    """

    max_longest_line: int | None = 1000
    max_mean_line_length: float | None = 100
    min_alphanumeric_ratio: float | None = 0.25
    max_code_ratio: float | None = None


class Scores(ScoreFilter, tag="scores", frozen=True, kw_only=True):
    """Keep documents whose scores are within your thresholds; no rule is on by default.

    Every score has a `min_` and a `max_` key, except `stop_words`, which needs a list: see `gopher_quality`. To keep a
    score as a column and drop nothing by it, set a threshold that every document meets: `{min_digit_ratio: 0,
    keep_scores: true}`. Documents without a word are dropped, as by all filters of scores.

    Use it for rules that no named filter has.

    >>> from gristmill.core.records import documents
    >>> Scores(max_digit_ratio=0.5, max_capital_ratio=0.9).apply(documents(["12345 a", "LOUD", "fine"]), seed=0).dropped
    {'max_digit_ratio': 1, 'max_capital_ratio': 1}
    """

    min_characters: int | None = None
    max_characters: int | None = None
    min_words: int | None = None
    max_words: int | None = None
    min_lines: int | None = None
    max_lines: int | None = None
    min_paragraphs: int | None = None
    max_paragraphs: int | None = None
    min_longest_word: int | None = None
    max_longest_word: int | None = None
    min_longest_line: int | None = None
    max_longest_line: int | None = None
    min_longest_word_run: int | None = None
    max_longest_word_run: int | None = None
    min_longest_character_run: int | None = None
    max_longest_character_run: int | None = None
    min_mean_word_length: float | None = None
    max_mean_word_length: float | None = None
    min_mean_line_length: float | None = None
    max_mean_line_length: float | None = None
    min_letter_ratio: float | None = None
    max_letter_ratio: float | None = None
    min_digit_ratio: float | None = None
    max_digit_ratio: float | None = None
    min_alphanumeric_ratio: float | None = None
    max_alphanumeric_ratio: float | None = None
    min_capital_ratio: float | None = None
    max_capital_ratio: float | None = None
    min_space_ratio: float | None = None
    max_space_ratio: float | None = None
    min_alphabetic_word_ratio: float | None = None
    max_alphabetic_word_ratio: float | None = None
    min_hash_word_ratio: float | None = None
    max_hash_word_ratio: float | None = None
    min_ellipsis_word_ratio: float | None = None
    max_ellipsis_word_ratio: float | None = None
    min_lines_per_word: float | None = None
    max_lines_per_word: float | None = None
    min_bullet_line_ratio: float | None = None
    max_bullet_line_ratio: float | None = None
    min_ellipsis_line_ratio: float | None = None
    max_ellipsis_line_ratio: float | None = None
    min_terminal_line_ratio: float | None = None
    max_terminal_line_ratio: float | None = None
    min_short_line_ratio: float | None = None
    max_short_line_ratio: float | None = None
    min_code_ratio: float | None = None
    max_code_ratio: float | None = None
    min_duplicate_line_ratio: float | None = None
    max_duplicate_line_ratio: float | None = None
    min_duplicate_line_character_ratio: float | None = None
    max_duplicate_line_character_ratio: float | None = None
    min_duplicate_paragraph_ratio: float | None = None
    max_duplicate_paragraph_ratio: float | None = None
    min_duplicate_paragraph_character_ratio: float | None = None
    max_duplicate_paragraph_character_ratio: float | None = None
    min_distinct_word_ratio: float | None = None
    max_distinct_word_ratio: float | None = None
    min_top_2_gram_ratio: float | None = None
    max_top_2_gram_ratio: float | None = None
    min_top_3_gram_ratio: float | None = None
    max_top_3_gram_ratio: float | None = None
    min_top_4_gram_ratio: float | None = None
    max_top_4_gram_ratio: float | None = None
    min_duplicate_5_gram_ratio: float | None = None
    max_duplicate_5_gram_ratio: float | None = None
    min_duplicate_6_gram_ratio: float | None = None
    max_duplicate_6_gram_ratio: float | None = None
    min_duplicate_7_gram_ratio: float | None = None
    max_duplicate_7_gram_ratio: float | None = None
    min_duplicate_8_gram_ratio: float | None = None
    max_duplicate_8_gram_ratio: float | None = None
    min_duplicate_9_gram_ratio: float | None = None
    max_duplicate_9_gram_ratio: float | None = None
    min_duplicate_10_gram_ratio: float | None = None
    max_duplicate_10_gram_ratio: float | None = None
