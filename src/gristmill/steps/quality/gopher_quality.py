"""`gopher_quality`: the rules of the Gopher paper (Rae et al. 2021, table A1) for prose."""

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

    The defaults are for English. For other languages give other stop words, and in scripts without spaces, where each
    letter is a word, other word lengths: `by_language: {zh: {min_mean_word_length: 1, stop_words: [的, 是]}}`.

    >>> from gristmill.core.sample_batches import documents
    >>> applied = GopherQuality().apply(documents(["Too short.", ""]), seed=0)
    >>> applied.dropped, applied.counters["failed:min_stop_words"]
    ({'empty': 1, 'min_words': 1}, 1)
    """

    is_for_english: ClassVar[bool] = True

    language_tables: LanguageTables = "none"
    """`built_in`: tables for 48 languages, derived from translations, beside those of `by_language`."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        tables = (self.stop_words, *(changes.get("stop_words", []) for changes in self.by_language.values()))
        for word in (word for words in tables for word in words):
            if not is_one_word(word):
                raise UsageError(
                    f'stop_words: "{word}" is not a single word',
                    help="a stop word has no spaces and no punctuation; in scripts without spaces it is one letter",
                )
