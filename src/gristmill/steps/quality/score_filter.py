"""What all filters by scores share: a key `min_words` is the rule that the score `words` must not be below it.

All rules are tried on every document. The first one in the table's order that fails is the reason; how many documents
each rule alone would have dropped is counted too, as `failed:min_words`. A value equal to a threshold is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.records import TEXT, RuleValues, StepResult
from gristmill.core.step import Finding, LocalStep
from gristmill.steps.quality.languages import (
    assign_tables,
    check_language_column,
    make_tables,
    note_english_thresholds,
)
from gristmill.steps.records.put_columns import put_columns, with_fields
from gristmill.text.quality.counting import RequiredPasses, StopWords, TextCounter
from gristmill.text.quality.known_counts import OF_LISTS, recall, remember
from gristmill.text.quality.scores import SCORES, Score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.core.records import QuarantinedRecord
    from gristmill.text.quality.counting import Counts

EMPTY = "empty"
"""The reason of documents without a word."""
STOP_WORDS = "stop_words"


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """One key of a filter."""

    name: str
    score: Score

    def fails(self, values: NDArray[Any], thresholds: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Thresholds that are not numbers are switched off: nothing fails."""
        failed: NDArray[np.bool_] = values < thresholds if self.name.startswith("min_") else values > thresholds
        return failed


class ScoreFilter(LocalStep, frozen=True, kw_only=True):
    """Base of filters whose keys are thresholds. null switches a rule off."""

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    preserves_text: ClassVar[bool] = True

    is_for_english: ClassVar[bool] = False
    """Its own thresholds suit English, and other languages need tables."""

    by_language: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Other values of these keys for documents of a language."""
    language_column: str = "language"
    keep_scores: bool = False
    """Keep the scores of its rules as columns: `score_words`."""

    def __post_init__(self) -> None:
        make_tables(self, self.keys, self.by_language)

    @property
    def rules(self) -> tuple[ScoreRule, ...]:
        """In the order of the table."""
        found = [
            ScoreRule(name, SCORES[name[4:]])
            for name in self.__struct_fields__
            if name.startswith(("min_", "max_")) and name[4:] in SCORES
        ]
        return tuple(found)

    @property
    def keys(self) -> tuple[str, ...]:
        """What a language may have other values of."""
        names = [rule.name for rule in self.rules]
        return (*names, *(name for name in self.__struct_fields__ if name == STOP_WORDS))

    @property
    def fingerprint_versions(self) -> object:
        return [self.version, {rule.score.name: rule.score.version for rule in self.rules}]

    def columns_needed(self) -> tuple[str, ...]:
        return (TEXT, self.language_column) if self.by_language else (TEXT,)

    def columns_added(self) -> tuple[str, ...]:
        return tuple(field.name for field in self._score_fields())

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.by_language:
            check_language_column(schema, self.language_column)
        return with_fields(schema, self._score_fields())

    def _score_fields(self) -> list[pa.Field]:
        return [score_field(score) for score in self.load().scores] if self.keep_scores else []

    def sample_notes(self, sample: pa.RecordBatch) -> list[str]:
        if not (self.is_for_english or self.by_language):
            return []
        return note_english_thresholds(self, sample, self.language_column, self.by_language)

    def load(self) -> ScoreFilterKernel:
        return ScoreFilterKernel(self)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.load().apply(batch, seed)

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        return self.load().explain(record)


def score_field(score: Score) -> pa.Field:
    """The column of a score."""
    return pa.field(
        f"score_{score.name}",
        pa.int64() if score.by is None else pa.float64(),
        metadata={"score_version": str(score.version)},
    )


class ScoreFilterKernel:
    """A filter with its tables and memory to count in."""

    def __init__(self, step: ScoreFilter) -> None:
        self._step = step
        self._tables = make_tables(step, step.keys, step.by_language)
        self._rules = [rule for rule in step.rules if any(table[rule.name] is not None for table in self._tables)]
        self.scores = list({rule.score.name: rule.score for rule in self._rules}.values())
        self._reasons = (EMPTY, *(rule.name for rule in self._rules))
        self._counters = {"words", *(counter for score in self.scores for counter in score.counters)}
        self._uses_lists = OF_LISTS in self._counters

    @cached_property
    def _counting(self) -> TextCounter:
        lists = [table.get(STOP_WORDS, []) for table in self._tables] if self._uses_lists else []
        return TextCounter(RequiredPasses.of(self.scores), StopWords(lists))

    @cached_property
    def _thresholds(self) -> NDArray[np.float64]:
        """By table and rule; not a number where a rule is off."""
        rows = [[table[rule.name] for rule in self._rules] for table in self._tables]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self._rules))

    def begin_task(self) -> None:
        """Nothing is carried over."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        table_of = assign_tables(batch, self._step.language_column, self._step.by_language)
        counts = self._count(batch.column(TEXT), table_of)
        values = {score.name: score.value(counts) for score in self.scores}
        failed = self._find_failures(counts, values, table_of)
        codes = np.zeros(batch.num_rows, np.uint8)
        for code in range(len(failed), 0, -1):
            codes[failed[code - 1]] = code
        times = np.bincount(codes, minlength=len(failed) + 1)
        dropped = {reason: int(count) for reason, count in zip(self._reasons, times[1:], strict=True) if count}
        measures = {
            f"failed:{reason}": int(np.count_nonzero(rows))
            for reason, rows in zip(self._reasons, failed, strict=True)
            if rows.any()
        }
        is_kept = codes == 0
        bad: list[QuarantinedRecord] = []
        if dropped:
            batch = batch.filter(pa.array(is_kept))
        remember(batch.column(TEXT), {name: count[is_kept] for name, count in counts.items() if name != OF_LISTS})
        if self._step.keep_scores:
            columns = {score_field(score).name: pa.array(values[score.name][is_kept]) for score in self.scores}
            batch, bad = put_columns(self._step, batch, columns)
        return StepResult(
            batch,
            dropped,
            quarantined=bad,
            counters=measures,
            codes=codes,
            reasons=self._reasons,
            failed=dict(zip(self._reasons, failed, strict=True)),
            rule_values=self._rule_values(counts, values, table_of) if dropped else {},
        )

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        """Every rule with its score and its threshold, in order."""
        table_of = assign_tables(record, self._step.language_column, self._step.by_language)
        counts = self._count(record.column(TEXT), table_of)
        if not counts["words"][0]:
            return [Finding(name="words", value=0, definition=SCORES["words"].definition, rule=EMPTY, passed=False)]
        values = {score.name: score.value(counts) for score in self.scores}
        failed = self._find_failures(counts, values, table_of)[1:]
        return [
            Finding(
                name=rule.score.name,
                value=values[rule.score.name][0].item(),
                definition=rule.score.definition,
                rule=rule.name,
                threshold=self._tables[table_of[0]][rule.name],
                passed=not rows[0],
            )
            for rule, rows in zip(self._rules, failed, strict=True)
        ]

    def _count(self, texts: pa.LargeStringArray, table_of: NDArray[np.int64]) -> Counts:
        known = recall(texts, self._counters)
        return known if known is not None else self._counting.count(texts, table_of if self._uses_lists else None)

    def _rule_values(
        self, counts: Counts, values: dict[str, NDArray[Any]], table_of: NDArray[np.int64]
    ) -> dict[str, RuleValues]:
        by_rule = {
            rule.name: RuleValues(values[rule.score.name], self._thresholds[table_of, number])
            for number, rule in enumerate(self._rules)
        }
        return {EMPTY: RuleValues(counts["words"]), **by_rule}

    def _find_failures(
        self, counts: Counts, values: dict[str, NDArray[Any]], table_of: NDArray[np.int64]
    ) -> list[NDArray[np.bool_]]:
        """For each reason, the documents that it holds for. Of an empty one nothing else is said."""
        is_empty = counts["words"] == 0
        failed = [is_empty]
        for number, rule in enumerate(self._rules):
            failed.append(rule.fails(values[rule.score.name], self._thresholds[table_of, number]) & ~is_empty)
        return failed
