"""What steps measure: numbers about each record, and the rules that compare them with thresholds.

A step that measures describes its scores before the run (`LocalStep.describe_scores`) and hands them out with every
batch (`StepResult.scores`), those of dropped records too. So thresholds can be tuned later without reading a text.
The structs are stored with the scores, with all their fields: msgspec compares defaults by identity, so that with
`omit_defaults` the bytes would depend on the process that made a text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray


class MeasuredScore(msgspec.Struct, frozen=True, kw_only=True):
    """One number that a step measures in every record."""

    name: str
    definition: str = ""
    version: int = 1
    is_whole: bool = False
    """Whether it is an integer."""


class ThresholdRule(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a step that compares a score with a threshold; a value equal to the threshold is kept."""

    name: str
    """The key, such as `min_words`: it begins with `min_` or `max_`."""
    score: str
    reason: str
    """The reason for dropping a record that breaks it."""
    thresholds: list[float | None]
    """For all languages, then for each language of `StepScores.languages`; None: the rule is off."""

    def __post_init__(self) -> None:
        # One form of each number: steps from Python, YAML and a remembered plan have 50 and 50.0 for the same one.
        thresholds = [None if threshold is None else float(threshold) for threshold in self.thresholds]
        msgspec.structs.force_setattr(self, "thresholds", thresholds)


class StepScores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores and rules of one step."""

    step: str
    scores: list[MeasuredScore]
    rules: list[ThresholdRule] = []
    reasons: list[str] = []
    """All reasons for dropping, in the order of `StepResult.reasons`. Those of no rule come first, and no threshold
    changes them."""
    languages: list[str] = []
    """The languages with separate thresholds."""
    language_column: str = "language"
    is_score_filter: bool = True
    """Whether the step is reason enough to keep a file of scores; a filter by length alone is not."""


@dataclass(frozen=True, slots=True)
class RowScores:
    """The numbers that a step has measured in each row of its input, the dropped ones included."""

    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """By the name of the score."""
    tables: NDArray[Any] | None = None
    """For each row 0, or 1 + the index of the language in `StepScores.languages` whose thresholds apply."""
    languages: pa.StringArray | None = None
    """The language of each row, if the step identifies it."""
