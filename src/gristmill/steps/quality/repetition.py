"""`repetition`: drop loops and fillers, in text and in code."""

from __future__ import annotations

from gristmill.steps.quality.score_filter import ScoreFilter


class Repetition(ScoreFilter, tag="repetition", frozen=True, kw_only=True):
    """Drop only plain loops: the same word or character over and over, or a document that is half repetition.

    It is looser than `gopher_repetition`, so it suits code, tables and the output of models.

    >>> from gristmill.core.sample_batches import documents
    >>> Repetition().apply(documents(["very " * 200, "very, very good"]), seed=0).dropped
    {'max_longest_word_run': 1}
    """

    max_longest_word_run: int | None = 100
    max_longest_character_run: int | None = 1000
    max_duplicate_line_character_ratio: float | None = 0.5
    max_duplicate_10_gram_ratio: float | None = 0.5
    min_distinct_word_ratio: float | None = None
