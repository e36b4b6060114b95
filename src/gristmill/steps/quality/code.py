"""`code`: keep source code that people wrote, or text without too much code in it."""

from __future__ import annotations

from gristmill.steps.quality.score_filter import ScoreFilter


class Code(ScoreFilter, tag="code", frozen=True, kw_only=True):
    r"""Keep source code with lines of a usual length and enough letters and digits; drop minified files and data.

    For documents of text, `max_code_ratio` limits how much of them may look like code: `code: {max_code_ratio: 0.3}`.

    >>> from gristmill.core.sample_batches import documents
    >>> Code().apply(documents(["def f(x):\n    return x", "x=1;" * 300]), seed=0).dropped
    {'max_longest_line': 1}
    """

    max_longest_line: int | None = 1000
    max_mean_line_length: float | None = 100
    min_alphanumeric_ratio: float | None = 0.25
    max_code_ratio: float | None = None
