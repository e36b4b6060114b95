"""`gopher_repetition`: the rules of the Gopher paper (Rae et al. 2021, table A1) against repetition."""

from __future__ import annotations

from gristmill.steps.quality.languages import LanguageTables  # noqa: TC001  (msgspec looks at the types)
from gristmill.steps.quality.score_filter import ScoreFilter


class GopherRepetition(ScoreFilter, tag="gopher_repetition", frozen=True, kw_only=True):
    r"""Keep documents that do not repeat their paragraphs, lines and phrases too much.

    >>> from gristmill.core.sample_batches import documents
    >>> GopherRepetition().apply(documents(["Say it again.\n" * 4, "A short but normal sentence."]), seed=0).dropped
    {'max_duplicate_line_ratio': 1}
    """

    language_tables: LanguageTables = "none"
    """`built_in`: tables for 48 languages, derived from translations, beside those of `by_language`."""
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
