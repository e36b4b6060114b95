"""The base of all filters by scores: a key `min_words` is the rule that the score `words` must not be below it.

All rules are checked on every document. The first rule that fails, in the order of the keys, is the reason; the number
of documents that each rule alone would have dropped is counted too, as `failed:min_words`. A value equal to a threshold
is kept.

Adjacent filters count a text once: the first one counts what the others need too, for the documents that it keeps, and
hands its counts on in its `StepResult`. A filter counts only if they do not hold all that it needs. Stop words depend
on a filter's own lists, so they are never handed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.records import (
    TEXT,
    Records,
    RuleValues,
    StepResult,
    count_dropped,
    count_failures,
    find_first_failures,
    select_rows,
)
from gristmill.core.scores import MeasuredScore, RowScores, StepScores, ThresholdRule
from gristmill.core.step import Finding, LocalStep, StepKernel
from gristmill.steps.edit_columns import put_columns, with_fields
from gristmill.steps.quality.languages import (
    add_built_in_tables,
    assign_tables,
    check_language_column,
    make_tables,
    note_english_thresholds,
)
from gristmill.text.quality.counting import SCORES, RequiredPasses, Score, StopWords, TextCounter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gristmill.core.records import QuarantinedRecord

EMPTY = "empty"
"""The reason for dropping documents without a word."""
STOP_WORDS = "stop_words"
"""The key with a list of words, and the counter of how many of them occur."""


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """One key of a filter: the least or the greatest value of a score."""

    name: str
    score: Score

    def fails(self, values: NDArray[Any], thresholds: NDArray[np.float64]) -> NDArray[np.bool_]:
        """For each document whether its score breaks the rule. A threshold of NaN switches the rule off."""
        # Comparisons with NaN are false, so no document fails.
        failed: NDArray[np.bool_] = values < thresholds if self.name.startswith("min_") else values > thresholds
        return failed


class ScoreFilter(LocalStep, frozen=True, kw_only=True):
    """The base of filters whose keys are thresholds of scores. null switches a rule off."""

    needs: ClassVar[tuple[str, ...]] = (TEXT,)
    preserves_text: ClassVar[bool] = True

    is_for_english: ClassVar[bool] = False
    """Whether the default thresholds suit English only, so that other languages need tables."""

    by_language: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """Other values of these keys for documents of a language: `{zh: {min_mean_word_length: 1}}`."""
    language_column: str = "language"
    """The column with the language; the `language` step adds this one."""
    keep_scores: bool = False
    """Whether to add the scores of the rules as columns: `score_words`."""

    def __post_init__(self) -> None:
        make_tables(self, self.keys, self.by_language)

    @property
    def rules(self) -> tuple[ScoreRule, ...]:
        """All rules, in the order of the fields."""
        return tuple(
            ScoreRule(name, SCORES[name[4:]])
            for name in self.__struct_fields__
            if name.startswith(("min_", "max_")) and name[4:] in SCORES
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that `by_language` may change."""
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

    def resolve(self, folder: str) -> ScoreFilter:  # noqa: ARG002
        return add_built_in_tables(self)

    def load(self) -> ScoreFilterKernel:
        return ScoreFilterKernel(add_built_in_tables(self))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.load().apply(batch, seed)

    def describe_scores(self) -> StepScores:
        return self.load().describe_scores()

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        return self.load().explain(record)


def score_field(score: Score) -> pa.Field:
    """The column that keeps a score."""
    return pa.field(
        f"score_{score.name}",
        pa.int64() if score.by is None else pa.float64(),
        metadata={"score_version": str(score.version)},
    )


class ScoreFilterKernel(StepKernel):
    """A filter with its tables of thresholds and its memory to count in."""

    def __init__(self, step: ScoreFilter) -> None:
        self._step = step
        self._tables = make_tables(step, step.keys, step.by_language)
        self._rules = [rule for rule in step.rules if any(table[rule.name] is not None for table in self._tables)]
        self.scores = list({rule.score.name: rule.score for rule in self._rules}.values())
        self._reasons = (EMPTY, *(rule.name for rule in self._rules))
        self._counters = {"words", *(counter for score in self.scores for counter in score.counters)}
        self._uses_stop_words = STOP_WORDS in self._counters
        self._needs = RequiredPasses.of_counters(self._counters)
        self._later_needs = RequiredPasses()

    @property
    def shared_counters(self) -> frozenset[str]:
        # Stop words depend on the filter, so that one with stop words counts for itself.
        return frozenset() if self._uses_stop_words else frozenset(self._counters)

    def count_for(self, counters: frozenset[str]) -> None:
        self._later_needs = RequiredPasses.of_counters(counters)

    @cached_property
    def _counter(self) -> TextCounter:
        lists = [table.get(STOP_WORDS, []) for table in self._tables] if self._uses_stop_words else []
        return TextCounter(self._needs.with_searches_of(self._later_needs), StopWords(lists))

    @cached_property
    def _thresholds(self) -> NDArray[np.float64]:
        """The thresholds by table and rule; NaN where a rule is off."""
        rows = [[table[rule.name] for rule in self._rules] for table in self._tables]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self._rules))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:
        return self.apply_to(Records(batch), seed)

    def apply_to(self, records: Records, seed: int) -> StepResult:  # noqa: ARG002
        batch, counts = records.batch, records.counts
        table_of = assign_tables(batch, self._step.language_column, self._step.by_language)
        counts = self._complete_counts(counts, batch.column(TEXT), table_of)
        values = {score.name: score.value(counts) for score in self.scores}
        failed = self._find_failures(counts, values, table_of)
        codes = find_first_failures(failed)
        dropped = count_dropped(codes, self._reasons)
        rule_values = self._measure_rules(counts, values, table_of) if dropped else {}
        scores = RowScores(values, table_of if self._step.by_language else None)
        if dropped:
            is_kept = codes == 0
            batch = select_rows(batch, is_kept)
            counts = {name: count[is_kept] for name, count in counts.items()}
            values = {name: score[is_kept] for name, score in values.items()}
        quarantined: list[QuarantinedRecord] = []
        if self._step.keep_scores:
            columns = {score_field(score).name: pa.array(values[score.name]) for score in self.scores}
            batch, quarantined = put_columns(self._step, batch, columns)
        return StepResult(
            batch,
            dropped,
            quarantined=quarantined,
            counters=count_failures(failed),
            codes=codes,
            reasons=self._reasons,
            failed=failed,
            rule_values=rule_values,
            # A quarantined record is no longer in the batch, but still in the counts: they no longer fit.
            counts={} if quarantined else {name: count for name, count in counts.items() if name != STOP_WORDS},
            scores=scores,
        )

    def describe_scores(self) -> StepScores:
        """Describe the scores of the rules that are on, with their thresholds."""
        return StepScores(
            step=self._step.name,
            scores=[
                MeasuredScore(
                    name=score.name, definition=score.definition, version=score.version, is_whole=score.by is None
                )
                for score in self.scores
            ],
            rules=[
                ThresholdRule(
                    name=rule.name,
                    score=rule.score.name,
                    reason=rule.name,
                    thresholds=[table[rule.name] for table in self._tables],
                )
                for rule in self._rules
            ],
            reasons=list(self._reasons),
            languages=list(self._step.by_language),
            language_column=self._step.language_column,
        )

    def explain(self, record: pa.RecordBatch) -> list[Finding]:
        """Return every rule with its score and its threshold, in order."""
        table_of = assign_tables(record, self._step.language_column, self._step.by_language)
        counts = self._complete_counts({}, record.column(TEXT), table_of)
        if not counts["words"][0]:
            return [Finding(name="words", value=0, definition=SCORES["words"].definition, rule=EMPTY, passed=False)]
        values = {score.name: score.value(counts) for score in self.scores}
        failed = self._find_failures(counts, values, table_of)
        return [
            Finding(
                name=rule.score.name,
                value=values[rule.score.name][0].item(),
                definition=rule.score.definition,
                rule=rule.name,
                threshold=self._tables[table_of[0]][rule.name],
                passed=not failed[rule.name][0],
            )
            for rule in self._rules
        ]

    def _complete_counts(
        self, counts: Mapping[str, NDArray[np.int64]], texts: pa.LargeStringArray, table_of: NDArray[np.int64]
    ) -> Mapping[str, NDArray[np.int64]]:
        """Return counts that hold all counters of the rules; what the step before has counted is kept for the next."""
        if self._counters <= counts.keys():
            return counts
        choose = None
        if self._needs == RequiredPasses():  # its rules need the first pass alone
            choose = partial(self._choose_kept, table_of)
        return {**counts, **self._counter.count(texts, table_of if self._uses_stop_words else None, choose)}

    def _choose_kept(
        self, table_of: NDArray[np.int64], counts: Mapping[str, NDArray[np.int64]], rows: slice
    ) -> NDArray[np.bool_]:
        """Return which of some documents pass, so that later filters count only those."""
        values = {score.name: score.value(counts) for score in self.scores}
        is_kept: NDArray[np.bool_] = find_first_failures(self._find_failures(counts, values, table_of[rows])) == 0
        return is_kept

    def _measure_rules(
        self, counts: Mapping[str, NDArray[np.int64]], values: dict[str, NDArray[Any]], table_of: NDArray[np.int64]
    ) -> dict[str, RuleValues]:
        by_rule = {
            rule.name: RuleValues(values[rule.score.name], self._thresholds[table_of, number])
            for number, rule in enumerate(self._rules)
        }
        return {EMPTY: RuleValues(counts["words"]), **by_rule}

    def _find_failures(
        self, counts: Mapping[str, NDArray[np.int64]], values: dict[str, NDArray[Any]], table_of: NDArray[np.int64]
    ) -> dict[str, NDArray[np.bool_]]:
        """For each reason the documents that it applies to. An empty document is empty and breaks no other rule."""
        is_empty = counts["words"] == 0
        failed = {EMPTY: is_empty}
        for number, rule in enumerate(self._rules):
            failed[rule.name] = rule.fails(values[rule.score.name], self._thresholds[table_of, number]) & ~is_empty
        return failed
