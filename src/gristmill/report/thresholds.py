"""What other thresholds would keep: from the scores that a run has kept of all documents, kept or dropped.

For one rule the answer is exact, at up to 101 thresholds that are spread over its values. For all rules of a step
together it comes from a sample of at most 50,000 documents, of which the page holds one byte for each rule: the first
of these thresholds that the document would pass. Steps after it are not run again, so their effect is not included.
"""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.report.model import RuleCurve, StepCurves
from gristmill.shards.score_file import ScoreTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.core.scores import ThresholdRule
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.score_file import ScoredStep

_NUM_THREADS = 2
_POSITIONS = 101
_MAX_SAMPLE = 50_000
_SAMPLE_BYTES = 300_000
"""The samples of all steps together have at most about this many bytes in the page, before base64."""
_MAX_ROWS = 20_000_000
"""Files of more rows than this are not read: a table takes about 200 bytes a row."""


def find_curves(dataset: Dataset) -> list[StepCurves]:
    """Find, for each step that compares scores, what its rules would keep at other thresholds, over all sources."""
    files = [file for file in dataset.manifest.scores if file.rows]
    if sum(file.rows for file in files) > _MAX_ROWS:
        return []
    with ThreadPoolExecutor(_NUM_THREADS) as pool:  # the workers of the run are idle by now
        tables = list(pool.map(lambda file: ScoreTable(dataset.folder, file), files))
        return _find_table_curves(tables, pool)


def _find_table_curves(tables: list[ScoreTable], pool: ThreadPoolExecutor) -> list[StepCurves]:
    steps: dict[str, tuple[ScoredStep, list[tuple[ScoreTable, ScoredStep]]]] = {}
    for table in tables:
        for step in table.layout.steps:
            first, parts = steps.setdefault(step.prefix, (step, []))
            if first.rules == step.rules:  # a source may have a step of its own with other thresholds
                parts.append((table, step))
    num_rules = sum(len(_list_rules(step)) for step, _ in steps.values())
    max_sample = min(_MAX_SAMPLE, _SAMPLE_BYTES // max(1, num_rules))
    curves = [_make_curves(name, step, parts, max_sample, pool) for name, (step, parts) in steps.items()]
    return [curve for curve in curves if curve is not None]


def _list_rules(step: ScoredStep) -> list[ThresholdRule]:
    return [rule for rule in step.rules if rule.thresholds and rule.thresholds[0] is not None]


def _make_curves(
    name: str, step: ScoredStep, parts: list[tuple[ScoreTable, ScoredStep]], max_sample: int, pool: ThreadPoolExecutor
) -> StepCurves | None:
    rules = _list_rules(step)
    masks = [_find_judged_rows(table, part) for table, part in parts]
    num_documents = sum(int(mask.sum()) for mask in masks)
    if not rules or not num_documents:
        return None
    # Every n-th document of those that reach the step, in the order of the files: the same for the same dataset.
    chosen = np.linspace(0, num_documents - 1, min(max_sample, num_documents)).astype(np.int64)

    def make_curve(rule: ThresholdRule) -> tuple[RuleCurve, NDArray[np.integer[Any]]]:
        values = np.concatenate(
            [table.values(part, rule.score)[mask] for (table, part), mask in zip(parts, masks, strict=True)]
        ).astype(np.float64)
        curve = _make_curve(rule, values)
        return curve, _find_passed(rule, np.array(curve.thresholds), values[chosen])

    curves, columns = zip(*pool.map(make_curve, rules), strict=True)
    sample = np.stack(columns, axis=1).astype(np.uint8)
    return StepCurves(
        step=name,
        documents=num_documents,
        rules=list(curves),
        sample_documents=len(chosen),
        sample=base64.b64encode(sample.tobytes()).decode(),
    )


def _find_judged_rows(table: ScoreTable, step: ScoredStep) -> NDArray[np.bool_]:
    """Find the rows that thresholds decide about: they reached the step, and were not dropped for anything else."""
    named = {rule.reason for rule in step.rules}
    column = table.table.column(step.column("reason"))
    codes: NDArray[Any] = column.fill_null(255).to_numpy()
    fixed = [number + 1 for number, reason in enumerate(step.reasons) if reason not in named]
    mask: NDArray[np.bool_] = table.has_reached(step) & ~np.isin(codes, fixed)
    if step.languages:  # those languages have thresholds of their own
        mask &= table.table.column(step.column("table")).fill_null(0).to_numpy() == 0
    return mask


def _make_curve(rule: ThresholdRule, values: NDArray[np.float64]) -> RuleCurve:
    threshold = rule.thresholds[0]
    assert threshold is not None
    ordered = np.sort(values)
    spread = ordered[np.floor((len(values) - 1) * np.linspace(0, 1, _POSITIONS - 1)).astype(np.int64)]
    thresholds = np.unique(np.append(spread, threshold))
    if is_minimum(rule.name):
        kept_counts = len(values) - np.searchsorted(ordered, thresholds, side="left")
    else:
        kept_counts = np.searchsorted(ordered, thresholds, side="right")
    return RuleCurve(
        name=rule.name,
        threshold=threshold,
        position=int(np.searchsorted(thresholds, threshold)),
        thresholds=thresholds.tolist(),
        documents=kept_counts.tolist(),
    )


def _find_passed(
    rule: ThresholdRule, thresholds: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.integer[Any]]:
    """Find for each value how many thresholds it passes if they are lowered or raised from the strictest one on.

    For a minimum, the value passes thresholds 0 to n - 1; for a maximum, the last n.
    """
    if is_minimum(rule.name):
        return np.searchsorted(thresholds, values, side="right")
    return len(thresholds) - np.searchsorted(thresholds, values, side="left")


def is_minimum(rule: str) -> bool:
    """Whether a rule keeps what is at or above its threshold; others keep what is at or below."""
    return rule.startswith("min_")
