"""`fineweb`: the rules that FineWeb added to those of Gopher and C4."""

from __future__ import annotations

from typing import ClassVar

from gristmill.steps.quality.languages import LanguageTables  # noqa: TC001  (msgspec looks at the types)
from gristmill.steps.quality.score_filter import ScoreFilter


class Fineweb(ScoreFilter, tag="fineweb", frozen=True, kw_only=True):
    r"""Keep documents that consist of sentences; drop lists, menus and boilerplate.

    >>> from gristmill.core.sample_batches import documents
    >>> pages = ["Home\nAbout us\nContact", "This is a whole sentence of a document."]
    >>> Fineweb().apply(documents(pages), seed=0).dropped
    {'min_terminal_line_ratio': 1}
    """

    is_for_english: ClassVar[bool] = True

    language_tables: LanguageTables = "none"
    """`built_in`: tables for 48 languages, derived from translations, beside those of `by_language`."""
    min_terminal_line_ratio: float | None = 0.12
    max_short_line_ratio: float | None = 0.67
    max_duplicate_line_character_ratio: float | None = 0.01
    """The value of FineWeb's code; its paper says 0.1."""
    max_lines_per_word: float | None = 0.3
