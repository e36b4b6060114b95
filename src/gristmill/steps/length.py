"""`length`: keep documents by their number of characters. One pass of Arrow's own code, over 1 GB/s."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow.compute as pc

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, RuleValues
from gristmill.core.scores import MeasuredScore, RowScores, StepScores, ThresholdRule
from gristmill.core.step import FilterStep, Finding, keep_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.core.records import Records, StepResult

_TOO_SHORT, _TOO_LONG = "too_short", "too_long"
_CHARACTERS, _DEFINITION = "characters", "Unicode code points."


class Length(FilterStep, tag="length", frozen=True, kw_only=True):
    """Keep documents of `min_chars` to `max_chars` characters (Unicode code points).

    The others are dropped as `too_short` or `too_long`.

    >>> from gristmill.core.records import documents, texts
    >>> applied = Length(min_chars=3).apply(documents(["hi", "hello"]), seed=0)
    >>> texts(applied.batch), applied.dropped
    (['hello'], {'too_short': 1})
    """

    needs: ClassVar[tuple[str, ...]] = (TEXT,)

    min_chars: int = 1
    """The fewest characters."""
    max_chars: int | None = None
    """The most characters. None: no upper bound."""

    def __post_init__(self) -> None:
        if self.min_chars < 0:
            raise UsageError(f"min_chars must be at least 0, not {self.min_chars}")
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise UsageError(
                f"max_chars ({self.max_chars}) is below min_chars ({self.min_chars}): nothing would be kept"
            )

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return self._keep(batch, _measure_lengths(batch))

    def apply_to(self, records: Records, seed: int) -> StepResult:
        if not records.has_strings:
            return self.apply(records.rows, seed)
        texts = records.texts
        applied = self._keep(records.rows, np.fromiter(map(len, texts.strings), np.int64, len(texts)))
        applied.texts = texts if applied.codes is None else texts.filter(applied.codes == 0)
        return applied

    def describe_scores(self) -> StepScores:
        rules = [("min_chars", _TOO_SHORT, self.min_chars), ("max_chars", _TOO_LONG, self.max_chars)]
        return StepScores(
            step=self.name,
            scores=[MeasuredScore(name=_CHARACTERS, definition=_DEFINITION, is_whole=True)],
            rules=[
                ThresholdRule(name=name, score=_CHARACTERS, reason=reason, thresholds=[threshold])
                for name, reason, threshold in rules
                if threshold is not None
            ],
            reasons=[_TOO_SHORT, _TOO_LONG],
            is_score_filter=False,
        )

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        num_chars = int(_measure_lengths(record)[0])
        rules = [("min_chars", self.min_chars, num_chars >= self.min_chars)]
        if self.max_chars is not None:
            rules.append(("max_chars", self.max_chars, num_chars <= self.max_chars))
        return [
            Finding(
                name=_CHARACTERS,
                value=num_chars,
                definition=_DEFINITION,
                rule=rule,
                threshold=threshold,
                passed=passed,
            )
            for rule, threshold, passed in rules
        ]

    def _keep(self, batch: pa.RecordBatch, lengths: NDArray[np.int64]) -> StepResult:
        codes = (lengths < self.min_chars).astype(np.uint8)
        if self.max_chars is not None:
            codes[lengths > self.max_chars] = 2
        applied = keep_rows(batch, codes, (_TOO_SHORT, _TOO_LONG))
        applied.scores = RowScores({_CHARACTERS: lengths})
        if applied.dropped:
            applied.rule_values = {
                _TOO_SHORT: RuleValues(lengths, self.min_chars),
                _TOO_LONG: RuleValues(lengths, self.max_chars),
            }
        return applied


def _measure_lengths(batch: pa.RecordBatch) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = pc.fill_null(pc.utf8_length(batch.column(TEXT)), 0).to_numpy(zero_copy_only=False)
    return lengths
