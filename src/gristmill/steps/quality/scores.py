"""`scores`: thresholds for any scores, where no other filter has the rule."""

from __future__ import annotations

from gristmill.steps.quality.score_filter import ScoreFilter


class Scores(ScoreFilter, tag="scores", frozen=True, kw_only=True):
    """Keep documents whose scores are within your thresholds; no rule is on by default.

    Every score has a `min_` and a `max_` key, except `stop_words`, which needs a list: see `gopher_quality`. To keep a
    score as a column and drop nothing by it, set a threshold that every document meets: `{min_digit_ratio: 0,
    keep_scores: true}`. Documents without a word are dropped, as by all filters of scores.

    >>> from gristmill.core.sample_batches import documents
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
