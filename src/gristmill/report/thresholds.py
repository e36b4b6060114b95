"""What other thresholds would keep: from the scores that a run has kept of all documents, kept or dropped.

For one rule the answer is exact, at up to 101 thresholds that are spread over its values. For all rules of a step
together it comes from a sample of at most 50,000 documents, of which the page holds one byte for each rule: how many
of these thresholds the document would pass. Steps after it are not run again, so their effect is not included.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from gristmill.core.errors import DamagedDatasetError
from gristmill.core.records import ORIGIN
from gristmill.report.model import BorderText, RuleCurve, StepCurves
from gristmill.shards.score_file import LANGUAGE, ScoreColumns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.scores import ThresholdRule
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.score_file import ScoredStep
    from gristmill.shards.stored_files import ScoreFile

_NUM_THREADS = 2
_NUM_COLUMNS = 2
"""Scores that a thread holds at a time. Their memory is used again: new pages cost more than all that is computed."""
_POSITIONS = 101
_SAMPLE_BYTES = 200_000
"""The samples of all steps together have at most about this many bytes in the page, before base64."""
_MAX_LANGUAGES = 4
"""This many languages with separate thresholds have curves, those with the most documents."""
_MIN_DOCUMENTS = 20
_RULES_WITH_TEXTS = 4
_NUM_NEAR = 3
_NEAR_CHARACTERS = 300
_MAX_ROWS = 20_000_000
"""Files of more rows than this are not read: columns take 64 bytes a row."""


TextReader = Callable[[str, int, int], "str | None"]
"""Reads the text of a document in the input: of a source, the file with an id, and a position in it."""


def find_curves(dataset: Dataset, max_sample: int = 50_000, read_text: TextReader | None = None) -> list[StepCurves]:
    """Find, for each step that compares scores, what its rules would keep at other thresholds, over all sources.

    A step with thresholds by language has curves for the largest of these, too.
    """
    files = [file for file in dataset.manifest.scores if file.rows]
    num_rows = sum(file.rows for file in files)
    if num_rows > _MAX_ROWS:
        return []
    steps: dict[str, tuple[ScoredStep, list[tuple[ScoreColumns, ScoreFile]]]] = {}
    for file in files:
        columns = ScoreColumns(dataset.folder, file)
        for step in columns.layout.steps:
            first, sources = steps.setdefault(step.prefix, (step, []))
            if first.rules == step.rules:  # a source may have a separate step with other thresholds
                sources.append((columns, file))
    curves: list[_Curves] = []
    for step, sources in steps.values():
        tables = [(columns, *_find_tables(columns, step, file)) for columns, file in sources]
        sizes = np.zeros(len(step.languages) + 1, np.int64)
        for _, of_file, is_judged in tables:
            sizes += np.bincount(of_file[is_judged], minlength=len(sizes))
        separate = [
            int(table) + 1 for table in np.argsort(-sizes[1:], kind="stable") if sizes[table + 1] >= _MIN_DOCUMENTS
        ]
        shown = [0, *separate[:_MAX_LANGUAGES]]
        others = int(sizes.sum() - sizes[shown].sum())
        for table in shown:
            own = msgspec.structs.replace(step, rules=_choose_rules(step, table))
            language = step.languages[table - 1] if table else ""
            parts = [_Part(columns, own, is_judged & (of_file == table)) for columns, of_file, is_judged in tables]
            curves.append(_Curves(own, language, others, parts))
    max_sample = min(max_sample, _SAMPLE_BYTES // max(1, sum(len(curve.step.rules) for curve in curves)))
    memory: SimpleQueue[NDArray[np.float64]] = SimpleQueue()
    for _ in range(_NUM_THREADS):
        memory.put(np.empty((_NUM_COLUMNS, num_rows)))
    with ThreadPoolExecutor(_NUM_THREADS) as pool:  # the workers of the run are idle by now
        step_curves = [_make_curves(curve, max_sample, pool, memory, read_text) for curve in curves]
    return [curve for curve in step_curves if curve is not None]


class _Curves(NamedTuple):
    """The curves of a step that are to be drawn, for one language or for all without separate thresholds."""

    step: ScoredStep
    """With one threshold for each rule."""
    language: str
    others: int
    parts: list[_Part]


def _choose_rules(step: ScoredStep, table: int) -> list[ThresholdRule]:
    """Choose the rules that are on in a table of thresholds, each with its threshold there."""
    return [
        msgspec.structs.replace(rule, thresholds=[rule.thresholds[table]])
        for rule in step.rules
        if len(rule.thresholds) > table and rule.thresholds[table] is not None
    ]


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
                reached, num_passed = counts.get(name, (0, 0))
                counts[name] = reached + int(num_reached[number]), num_passed + int(num_kept[number])
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


def _make_curves(
    curves: _Curves,
    max_sample: int,
    pool: ThreadPoolExecutor,
    memory: SimpleQueue[NDArray[np.float64]],
    read_text: TextReader | None,
) -> StepCurves | None:
    step, parts, rules = curves.step, curves.parts, curves.step.rules
    num_documents = sum(int(part.is_judged.sum()) for part in parts)
    if not rules or not num_documents:
        return None
    # Every n-th document of those that reach the step, in the order of the files: the same for the same dataset.
    chosen = np.linspace(0, num_documents - 1, min(max_sample, num_documents)).astype(np.int64)
    near: dict[str, list[tuple[int, float]]] = {}

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
                        near[rule.name] = _find_near(rule, sample)
                        curve = _make_curve(rule, thresholds, _count_passed(rule, thresholds, values))
                        by_rule[rule.name] = curve, _count_passed(rule, thresholds, sample)
            return by_rule
        finally:
            memory.put(columns)

    scores = list(dict.fromkeys(rule.score for rule in rules))
    groups = [scores[first : first + _NUM_COLUMNS] for first in range(0, len(scores), _NUM_COLUMNS)]
    by_rule = {rule: of_rule for group in pool.map(make_curves, groups) for rule, of_rule in group.items()}
    rule_curves, columns = zip(*(by_rule[rule.name] for rule in rules), strict=True)
    if read_text is not None:
        most = sorted(rule_curves, key=lambda curve: curve.documents[curve.position])[:_RULES_WITH_TEXTS]
        texts = _read_near({curve.name: near[curve.name] for curve in most}, parts, chosen, read_text)
        rule_curves = tuple(_add_examples(curve, texts.get(curve.name, [])) for curve in rule_curves)
    sample = np.stack(columns, axis=1).astype(np.uint8)
    return StepCurves(
        step=step.prefix,
        documents=num_documents,
        rules=list(rule_curves),
        language=curves.language,
        others=curves.others,
        sample_documents=len(chosen),
        sample=base64.b64encode(sample.tobytes()).decode(),
    )


def _find_near(rule: ThresholdRule, sample: NDArray[np.float64]) -> list[tuple[int, float]]:
    """Find sampled documents just below and just above the threshold: their numbers in the sample, and values."""
    [threshold] = rule.thresholds
    assert threshold is not None
    is_kept = sample >= threshold if is_minimum(rule.name) else sample <= threshold
    nearest_rows: list[tuple[int, float]] = []
    for is_side in (is_kept, ~is_kept):
        side = np.flatnonzero(is_side)
        nearest = side[np.argsort(np.abs(sample[side] - threshold), kind="stable")[:_NUM_NEAR]]
        nearest_rows += [(int(number), float(sample[number])) for number in nearest]
    return sorted(nearest_rows, key=lambda entry: (entry[1], entry[0]))


def _read_near(
    near: Mapping[str, Sequence[tuple[int, float]]],
    parts: Sequence[_Part],
    chosen: NDArray[np.int64],
    read_text: TextReader,
) -> dict[str, list[tuple[float, str, str]]]:
    """Read the texts of documents of the sample, by rule: value, place, text."""
    wanted = sorted({number for entries in near.values() for number, _ in entries})
    rows = chosen[wanted]
    origins: dict[int, tuple[str, int, int]] = {}
    start = 0
    for part in parts:
        judged = np.flatnonzero(part.is_judged)
        inside = (rows >= start) & (rows < start + len(judged))
        if inside.any():
            origin = part.columns.read([ORIGIN]).column(ORIGIN).combine_chunks()
            files, positions = (origin.field(name).to_numpy() for name in ("file", "position"))
            for number, row in zip(
                np.array(wanted)[inside].tolist(), judged[rows[inside] - start].tolist(), strict=True
            ):
                origins[number] = part.columns.layout.source, int(files[row]), int(positions[row])
        start += len(judged)
    texts = {number: read_text(*origin) for number, origin in origins.items()}
    return {
        rule: [
            (value, f"{origins[number][0]}@{origins[number][2]}", text[:_NEAR_CHARACTERS])
            for number, value in entries
            if (text := texts.get(number))
        ]
        for rule, entries in near.items()
    }


def _add_examples(curve: RuleCurve, texts: Sequence[tuple[float, str, str]]) -> RuleCurve:
    sign = 1 if is_minimum(curve.name) else -1
    examples = [
        BorderText(place=place, value=value, is_kept=sign * value >= sign * curve.threshold, text=text)
        for value, place, text in texts
    ]
    return msgspec.structs.replace(curve, examples=examples)


def _find_tables(
    columns: ScoreColumns, step: ScoredStep, file: ScoreFile
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Find for each row the number of its thresholds, 0 without separate ones, and whether they decide about it.

    They do if the document reached the step, and was not dropped for anything else.
    """
    named = {rule.reason for rule in step.rules}
    fixed = [number + 1 for number, reason in enumerate(step.reasons) if reason not in named]
    names = [step.column("reason"), *([step.column("table")] if step.languages else [])]
    rows = columns.read(names)
    reasons = rows.column(names[0])
    is_judged: NDArray[np.bool_] = reasons.is_valid().to_numpy()
    is_judged &= ~np.isin(reasons.fill_null(255).to_numpy(), fixed)
    if len(is_judged) != file.rows:
        raise DamagedDatasetError(f"{file.path} holds {len(is_judged)} rows, but the manifest says {file.rows}")
    if not step.languages:
        return np.zeros(len(is_judged), np.int64), is_judged
    return rows.column(names[1]).fill_null(0).to_numpy().astype(np.int64), is_judged


def _spread_thresholds(rule: ThresholdRule, values: Sequence[float]) -> NDArray[np.float64]:
    """Spread thresholds over some values, in addition to that of the rule.

    They are even on the slider, so that a histogram of what lies between them has a scale: linear, or logarithmic where
    half of the values are in the first twentieth. Few digits: a threshold that a page shows and a user copies is the
    one that was counted.
    """
    low, middle, high = np.quantile(values, [0.005, 0.5, 0.995])
    [threshold] = rule.thresholds
    assert threshold is not None
    low, high = min(low, threshold), max(high, threshold)
    if low >= 0 and middle < high / 20:
        unit = max(middle, high / 1000) or 1.0
        spread = unit * np.expm1(np.linspace(np.log1p(low / unit), np.log1p(high / unit), _POSITIONS - 3))
    else:
        spread = np.linspace(low, high, _POSITIONS - 3)
    are_whole = all(float(value).is_integer() for value in values)
    rounded = {round(float(value)) if are_whole else float(f"{value:.4g}") for value in spread}
    ends = (float(f"{value:.6g}") for value in (min(values), max(values)))
    return np.array(sorted({*rounded, *ends, threshold}), np.float64)


def _make_curve(
    rule: ThresholdRule, thresholds: NDArray[np.float64], num_passed: NDArray[np.integer[Any]]
) -> RuleCurve:
    """Make the curve of a rule from the number of thresholds that each document passes."""
    [threshold] = rule.thresholds
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
