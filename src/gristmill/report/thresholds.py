"""What other thresholds would keep: from the scores that a run has kept of all documents, kept or dropped.

For one rule the answer is exact, at up to 101 thresholds that are spread over its values. For all rules of a step
together it comes from a sample of at most 50,000 documents, of which the page holds one byte for each rule: how many
of these thresholds the document would pass. Steps after it are not run again, so their effect is not included.
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.core.errors import DamagedDatasetError
from gristmill.report.model import RuleCurve, StepCurves
from gristmill.shards.score_file import LANGUAGE, ScoreColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gristmill.core.scores import ThresholdRule
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.score_file import ScoredStep
    from gristmill.shards.stored_files import ScoreFile

_NUM_THREADS = 2
_NUM_COLUMNS = 2
"""Scores that a thread holds at a time. Their memory is used again: new pages cost more than all that is computed."""
_POSITIONS = 101
_SAMPLE_BYTES = 300_000
"""The samples of all steps together have at most about this many bytes in the page, before base64."""
_MAX_ROWS = 20_000_000
"""Files of more rows than this are not read: columns take 64 bytes a row."""


def find_curves(dataset: Dataset, max_sample: int = 50_000) -> list[StepCurves]:
    """Find, for each step that compares scores, what its rules would keep at other thresholds, over all sources."""
    files = [file for file in dataset.manifest.scores if file.rows]
    num_rows = sum(file.rows for file in files)
    if num_rows > _MAX_ROWS:
        return []
    steps: dict[str, tuple[ScoredStep, list[_Part]]] = {}
    for file in files:
        columns = ScoreColumns(dataset.folder, file)
        for step in columns.layout.steps:
            first, parts = steps.setdefault(step.prefix, (step, []))
            if first.rules == step.rules:  # a source may have a separate step with other thresholds
                parts.append(_Part(columns, step, _find_judged_rows(columns, step, file)))
    num_rules = sum(len(_list_rules(step)) for step, _ in steps.values())
    max_sample = min(max_sample, _SAMPLE_BYTES // max(1, num_rules))
    memory: SimpleQueue[NDArray[np.float64]] = SimpleQueue()
    for _ in range(_NUM_THREADS):
        memory.put(np.empty((_NUM_COLUMNS, num_rows)))
    with ThreadPoolExecutor(_NUM_THREADS) as pool:  # the workers of the run are idle by now
        curves = [_make_curves(name, step, parts, max_sample, pool, memory) for name, (step, parts) in steps.items()]
    return [curve for curve in curves if curve is not None]


def count_languages(dataset: Dataset) -> dict[str, tuple[int, int]]:
    """Count for each language the documents that reached filters by scores, and those that these have kept."""
    files = [file for file in dataset.manifest.scores if file.rows]
    counts: dict[str, tuple[int, int]] = {}
    if sum(file.rows for file in files) > _MAX_ROWS:
        return counts
    for file in files:
        columns = ScoreColumns(dataset.folder, file)
        reasons = [step.column("reason") for step in columns.layout.steps]
        for block in columns.blocks([LANGUAGE, *reasons]):
            is_kept = np.ones(block.num_rows, np.bool_)
            for reason in reasons:
                is_kept &= block.column(reason).fill_null(0).to_numpy() == 0  # null: an earlier step has dropped it
            encoded = block.column(LANGUAGE).dictionary_encode()
            numbers = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy()
            num_reached = np.bincount(numbers, minlength=len(encoded.dictionary) + 1)
            num_kept = np.bincount(numbers[is_kept], minlength=len(encoded.dictionary) + 1)
            for number, name in enumerate(encoded.dictionary.to_pylist()):
                reached, kept = counts.get(name, (0, 0))
                counts[name] = reached + int(num_reached[number]), kept + int(num_kept[number])
    return counts


class _Part(NamedTuple):
    """The scores of a step in one file."""

    columns: ScoreColumns
    step: ScoredStep
    is_judged: NDArray[np.bool_]
    """For each row whether thresholds decide about it."""

    def read_scores(self, scores: Sequence[str], to: NDArray[np.float64]) -> int:
        """Read scores of all judged rows, a line of the array for each; return the number of rows."""
        row = end = 0
        for block in self.columns.blocks(map(self.step.column, scores)):
            judged = np.flatnonzero(self.is_judged[row : row + block.num_rows])
            row, start = row + block.num_rows, end
            end += len(judged)
            for line, score in zip(to, scores, strict=False):
                # The stored values, not copied. Where a score is null, the value means nothing.
                column = block.column(self.step.column(score))
                values: NDArray[Any] = np.frombuffer(column.buffers()[1] or b"", column.type.to_pandas_dtype())
                values = values[column.offset : column.offset + len(column)]
                line[start:end] = values if len(judged) == len(values) else values.take(judged)
        return end


def _list_rules(step: ScoredStep) -> list[ThresholdRule]:
    return [rule for rule in step.rules if rule.thresholds and rule.thresholds[0] is not None]


def _make_curves(
    name: str,
    step: ScoredStep,
    parts: list[_Part],
    max_sample: int,
    pool: ThreadPoolExecutor,
    memory: SimpleQueue[NDArray[np.float64]],
) -> StepCurves | None:
    rules = _list_rules(step)
    num_documents = sum(int(part.is_judged.sum()) for part in parts)
    if not rules or not num_documents:
        return None
    # Every n-th document of those that reach the step, in the order of the files: the same for the same dataset.
    chosen = np.linspace(0, num_documents - 1, min(max_sample, num_documents)).astype(np.int64)

    def make_curves(scores: list[str]) -> dict[str, tuple[RuleCurve, NDArray[np.integer[Any]]]]:
        columns = memory.get()
        try:
            end = 0
            for part in parts:
                end += part.read_scores(scores, columns[:, end:])
            by_rule = {}
            for score, values in zip(scores, columns[:, :end], strict=False):
                sample = values[chosen]
                for rule in rules:
                    if rule.score == score:
                        thresholds = _spread_thresholds(rule, [values.min(), *sample, values.max()])
                        curve = _make_curve(rule, thresholds, _count_passed(rule, thresholds, values))
                        by_rule[rule.name] = curve, _count_passed(rule, thresholds, sample)
            return by_rule
        finally:
            memory.put(columns)

    scores = list(dict.fromkeys(rule.score for rule in rules))
    groups = [scores[first : first + _NUM_COLUMNS] for first in range(0, len(scores), _NUM_COLUMNS)]
    by_rule = {rule: of_rule for group in pool.map(make_curves, groups) for rule, of_rule in group.items()}
    curves, columns = zip(*(by_rule[rule.name] for rule in rules), strict=True)
    sample = np.stack(columns, axis=1).astype(np.uint8)
    return StepCurves(
        step=name,
        documents=num_documents,
        rules=list(curves),
        sample_documents=len(chosen),
        sample=base64.b64encode(sample.tobytes()).decode(),
    )


def _find_judged_rows(columns: ScoreColumns, step: ScoredStep, file: ScoreFile) -> NDArray[np.bool_]:
    """Find the rows that thresholds decide about: they reached the step, and were not dropped for anything else."""
    named = {rule.reason for rule in step.rules}
    fixed = [number + 1 for number, reason in enumerate(step.reasons) if reason not in named]
    names = [step.column("reason"), *([step.column("table")] if step.languages else [])]
    rows = columns.read(names)
    reasons = rows.column(names[0])
    is_judged: NDArray[np.bool_] = reasons.is_valid().to_numpy()
    is_judged &= ~np.isin(reasons.fill_null(255).to_numpy(), fixed)
    if step.languages:  # those languages have thresholds of their own
        is_judged &= rows.column(names[1]).fill_null(0).to_numpy() == 0
    if len(is_judged) != file.rows:
        raise DamagedDatasetError(f"{file.path} holds {len(is_judged)} rows, but the manifest says {file.rows}")
    return is_judged


def _spread_thresholds(rule: ThresholdRule, values: Sequence[float]) -> NDArray[np.float64]:
    """Spread thresholds over some values, in addition to that of the rule.

    They have six digits at most: a threshold that a page shows and a user copies is the one that was counted.
    """
    spread = np.quantile(values, np.linspace(0, 1, _POSITIONS - 1), method="lower")
    return np.unique([*(float(f"{value:.6g}") for value in spread), *rule.thresholds[:1]]).astype(np.float64)


def _make_curve(
    rule: ThresholdRule, thresholds: NDArray[np.float64], num_passed: NDArray[np.integer[Any]]
) -> RuleCurve:
    """Make the curve of a rule from the number of thresholds that each document passes."""
    [threshold, *_] = rule.thresholds
    assert threshold is not None
    counts = np.bincount(num_passed, minlength=len(thresholds) + 1)
    kept_counts = np.cumsum(counts[:0:-1])  # of documents that pass all thresholds, all but one, …, at least one
    return RuleCurve(
        name=rule.name,
        threshold=threshold,
        position=int(np.searchsorted(thresholds, threshold)),
        thresholds=thresholds.tolist(),
        documents=(kept_counts[::-1] if is_minimum(rule.name) else kept_counts).tolist(),
    )


def _count_passed(
    rule: ThresholdRule, thresholds: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.integer[Any]]:
    """Count for each value how many thresholds it passes: for a minimum the first ones, for a maximum the last ones."""
    if is_minimum(rule.name):
        return np.searchsorted(thresholds, values, side="right")
    return len(thresholds) - np.searchsorted(thresholds, values, side="left")


def is_minimum(rule: str) -> bool:
    """Whether a rule keeps what is at or above its threshold; others keep what is at or below."""
    return rule.startswith("min_")
