"""Tune thresholds by the kept scores of a dataset: no text is read again.

For each rule: how its score is distributed, what it removes alone, what other thresholds would keep, and documents near
the border. Changed thresholds are applied to all documents at once; a document that they save from one filter may have
no scores of the later filters, so the outcome is a number and what may come on top of it. Effects on other steps
(`deduplicate`, say) are not included. Cost: under 2 s for 10^6 documents with 26 scores; quantiles of more than
100,000 documents are those of an even sample.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN
from gristmill.pipeline.stages.outputs.dropped import format_position
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.score_file import ScoreTable
from gristmill.shards.stored_files import file_key
from gristmill.steps.keep_best import SOURCE, KeepBest
from gristmill.storage.locations import parse_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.core.recipe import Recipe
    from gristmill.core.scores import ThresholdRule
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.score_file import ScoredStep
    from gristmill.storage.locations import Location

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_KEPT_SHARES = (0.99, 0.95, 0.9, 0.75, 0.5)
_SAMPLE_ROWS = 100_000
_MAX_LANGUAGES = 8
_NUM_EXAMPLES = 3
_MAX_OVERLAPS = 10
_KEEP_BEST = "keep_best"


class ThresholdChange(msgspec.Struct, frozen=True, kw_only=True):
    """A new threshold for a rule, for all languages or for one."""

    step: str
    """The step; the second of its name is `STEP-2`."""
    rule: str
    value: float | None
    """None switches the rule off."""
    language: str | None = None

    @property
    def name(self) -> str:
        return ".".join(filter(None, (self.step, self.language, self.rule)))


class BorderDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document near a threshold; `gristmill explain RECIPE PLACE` shows all of it."""

    place: str
    value: float
    is_kept: bool


class RuleTuning(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one rule on the documents that reach its step."""

    step: str
    rule: str
    score: str
    threshold: float | None
    by_language: dict[str, float | None]
    reached: int
    broken: int
    """How many documents break it, alone or with other rules."""
    alone: int
    """How many break it and no other rule of the step: what it removes by itself."""
    quantiles: list[float]
    """Of the score, at `QUANTILES`."""
    quantiles_by_language: dict[str, list[float]]
    would_keep: dict[str, int]
    """Another threshold, for all languages without a threshold -> how many documents the step would keep."""
    examples: list[BorderDocument]


class SourceTuning(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of one source and stage."""

    source: str
    stage: int
    documents: int
    kept: int
    """How many passed all filters that measure."""
    kept_then: int
    """How many would, with the changed thresholds."""
    unscored: int
    """How many more would pass those filters that have scored them: later filters have not seen them."""
    by_language: dict[str, dict[str, int]]
    """Language -> `documents`, `kept`, `kept_then`."""
    rules: list[RuleTuning]
    overlaps: list[tuple[str, str, int]]
    """Pairs of rules of one step, and how many documents break both; the largest first."""


class BestForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The cut that a `keep_best` step would find among the documents that pass all filters that measure."""

    step: str
    by: str
    source: str | None
    """None: of all sources together."""
    documents: int
    kept: int
    threshold: float | None
    """The worst value that would be kept. None: nothing would be."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to what the thresholds of a dataset do, by its kept scores."""

    dataset_hash: str
    changes: list[ThresholdChange]
    quantiles: tuple[float, ...] = QUANTILES
    sources: list[SourceTuning]
    best: list[BestForecast] = []


def tune(folder: str | Location, changes: Sequence[ThresholdChange] = ()) -> Tuning:
    """Look at the thresholds of a dataset's filters, and at what changed ones would keep.

    Raises:
        UsageError: The dataset has no kept scores, or no such rule.
    """
    root = parse_location(folder)
    manifest = load_manifest(root)
    if not manifest.scores:
        raise UsageError(
            f"{folder} has no kept scores",
            help="they are kept where a filter by scores runs, unless the recipe says keep_scores: null",
        )
    tables = [ScoreTable(root, file) for file in manifest.scores]
    best = _list_best(manifest)
    _check_changes(tables, best, changes)
    tuners = [_SourceTuner(table, manifest, changes) for table in tables]
    return Tuning(
        dataset_hash=manifest.dataset_hash,
        changes=list(changes),
        sources=[tuner.tune() for tuner in tuners],
        best=[forecast for name, step in best.items() for forecast in _forecast(name, step, tuners, changes)],
    )


def _list_best(manifest: Manifest) -> dict[str, KeepBest]:
    """List the `keep_best` steps whose cut can be forecast: common ones, not by tokens, and not by column."""
    listed = manifest.recipe.get("steps")
    described = [step[_KEEP_BEST] for step in listed if _KEEP_BEST in step] if isinstance(listed, list) else []
    steps = {
        f"{_KEEP_BEST}-{number}" if number > 1 else _KEEP_BEST: msgspec.convert(parameters, KeepBest)
        for number, parameters in enumerate(described, 1)
    }
    return {name: step for name, step in steps.items() if step.tokens is None and step.per in (None, SOURCE)}


def _forecast(
    name: str, step: KeepBest, tuners: Sequence[_SourceTuner], changes: Iterable[ThresholdChange]
) -> Iterable[BestForecast]:
    """Forecast the cut of all sources together, or of each; nothing where the column is not a kept score."""
    amounts = {change.rule: change.value for change in changes if change.step == name}
    step = msgspec.structs.replace(step, **amounts)
    groups: list[tuple[str | None, NDArray[Any]]] = [
        (tuner.source, values) for tuner in tuners if (values := tuner.find_values_then(step.by)) is not None
    ]
    if groups and step.per is None:
        groups = [(None, np.concatenate([values for _, values in groups]))]
    for source, values in groups:
        keys = np.sort(step.find_keys(pa.record_batch({step.by: values})))
        ranks = np.arange(len(keys))
        kept_keys = keys[step.find_kept(ranks, ranks + 1, np.full(len(keys), len(keys)))]
        yield BestForecast(
            step=name,
            by=step.by,
            source=source,
            documents=len(keys),
            kept=len(kept_keys),
            threshold=step.find_values(kept_keys[-1:])[0].item() if len(kept_keys) else None,
        )


def list_overrides(recipe: Recipe, changes: Iterable[ThresholdChange]) -> list[str]:
    """Return the changes as overrides of a recipe, as `--set` takes them: `steps.1.gopher_quality.min_words=40`."""
    overrides: dict[str, None] = {}
    for change in changes:
        language = f"by_language.{change.language}." if change.language else ""
        keys = list(_find_step_keys(recipe, change.step))
        if not keys:
            raise UsageError(f"the recipe has no step {change.step}", help="name the recipe that made the dataset")
        for key, name in keys:
            value = "null" if change.value is None else repr(change.value)
            overrides[f"{key}.{name}.{language}{change.rule}={value}"] = None
    return list(overrides)


def _find_step_keys(recipe: Recipe, prefix: str) -> Iterable[tuple[str, str]]:
    """Find the key and the name of the step that has this prefix, for each source that has it."""
    for source_name, source in recipe.sources.items():
        steps = [(f"sources.{source_name}.steps.{index}", step) for index, step in enumerate(source.steps)]
        steps += [(f"steps.{index}", step) for index, step in enumerate(recipe.steps)]
        times: Counter[str] = Counter()
        for key, step in steps:
            times[step.name] += 1
            if prefix in (f"{step.name}-{times[step.name]}", step.name if times[step.name] == 1 else None):
                yield key, step.name


def _check_changes(
    tables: Sequence[ScoreTable], best: Mapping[str, KeepBest], changes: Iterable[ThresholdChange]
) -> None:
    rules: dict[tuple[str, str | None, str], None] = {
        (name, None, "count" if step.share is None else "share"): None for name, step in best.items()
    }
    for table in tables:
        for step in table.layout.steps:
            for language in (None, *step.languages):
                rules |= {(step.prefix, language, rule.name): None for rule in step.rules}
    for change in changes:
        if (change.step, change.language, change.rule) not in rules:
            names = [".".join(filter(None, key)) for key in rules]
            nearest = find_nearest(change.name, names)
            raise UsageError(
                f"the dataset has no scores for {change.name}",
                help=f'did you mean "{nearest}"?' if nearest else f"its rules are {', '.join(names)}",
            )


@dataclass(slots=True)
class _StepMasks:
    """The documents that each rule of one step keeps, as masks."""

    step: ScoredStep
    has_reached: NDArray[np.bool_]
    is_fixed: NDArray[np.bool_]
    """Dropped for a reason that no threshold changes."""
    tables: NDArray[Any] | None
    breaks: dict[str, NDArray[np.bool_]]
    """By rule."""
    num_broken: NDArray[np.uint8]
    """How many rules each document breaks."""


class _SourceTuner:
    """Computes the numbers of one score file."""

    def __init__(self, table: ScoreTable, manifest: Manifest, changes: Sequence[ThresholdChange]) -> None:
        self._table = table
        self._manifest = manifest
        self._changes = changes
        self._steps = [self._apply_rules(step) for step in table.layout.steps]
        names = table.languages.dictionary.to_pylist()
        codes = table.languages.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        counts = np.bincount(codes + 1, minlength=len(names) + 1)[1:]
        self._languages = {
            names[number]: codes == number for number in np.argsort(-counts, kind="stable")[:_MAX_LANGUAGES].tolist()
        }
        """The documents of each of the most frequent languages."""
        self._then = self._keep([self._change_rules(masks) for masks in self._steps])

    @property
    def source(self) -> str:
        return self._table.source

    def find_values_then(self, column: str) -> NDArray[Any] | None:
        """Find the values of a column in the documents that would pass; None if it is not a kept score."""
        for masks in reversed(self._steps):
            for score in masks.step.scores:
                if column in (score.name, f"score_{score.name}"):  # the latter is what `keep_scores: true` adds
                    return self._table.values(masks.step, score.name)[self._then[0] & masks.has_reached]
        return None

    def tune(self) -> SourceTuning:
        is_kept, _ = self._keep([masks.breaks for masks in self._steps])
        is_kept_then, is_unscored = self._then
        return SourceTuning(
            source=self._table.source,
            stage=self._table.stage,
            documents=self._table.num_rows,
            kept=int(is_kept.sum()),
            kept_then=int(is_kept_then.sum()),
            unscored=int(is_unscored.sum()),
            by_language={
                language: {
                    "documents": int(rows.sum()),
                    "kept": int((is_kept & rows).sum()),
                    "kept_then": int((is_kept_then & rows).sum()),
                }
                for language, rows in self._languages.items()
            },
            rules=[self._describe_rule(masks, rule) for masks in self._steps for rule in masks.step.rules],
            overlaps=self._count_overlaps(),
        )

    def _apply_rules(self, step: ScoredStep) -> _StepMasks:
        has_reached = self._table.has_reached(step)
        codes = self._table.values(step, "reason")
        is_of_rule = np.zeros(len(step.reasons) + 1, np.bool_)
        is_of_rule[[0, *(1 + step.reasons.index(rule.reason) for rule in step.rules)]] = True
        tables = self._table.values(step, "table") if step.languages else None
        masks = _StepMasks(
            step, has_reached, has_reached & ~is_of_rule[codes], tables, {}, np.zeros(len(codes), np.uint8)
        )
        for rule in step.rules:
            masks.breaks[rule.name] = self._find_breaking(masks, rule, rule.thresholds)
            masks.num_broken += masks.breaks[rule.name]
        return masks

    def _find_breaking(
        self, masks: _StepMasks, rule: ThresholdRule, thresholds: Sequence[float | None]
    ) -> NDArray[np.bool_]:
        values = self._table.values(masks.step, rule.score)
        limits = np.array([np.nan if threshold is None else threshold for threshold in thresholds])
        limit = limits[0] if masks.tables is None else limits[masks.tables]
        broken: NDArray[np.bool_] = values < limit if rule.name.startswith("min_") else values > limit
        return broken & masks.has_reached & ~masks.is_fixed

    def _change_rules(self, masks: _StepMasks) -> dict[str, NDArray[np.bool_]]:
        breaks = dict(masks.breaks)
        for rule in masks.step.rules:
            thresholds = list(rule.thresholds)
            for change in self._changes:
                if (change.step, change.rule) == (masks.step.prefix, rule.name):
                    if change.language is not None:
                        thresholds[1 + masks.step.languages.index(change.language)] = change.value
                    else:
                        thresholds = _replace_common(thresholds, rule, change.value)
            if thresholds != rule.thresholds:
                breaks[rule.name] = self._find_breaking(masks, rule, thresholds)
        return breaks

    def _keep(
        self, breaks_by_step: Sequence[dict[str, NDArray[np.bool_]]]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the documents that pass all steps, and those that pass until a step that has not scored them."""
        is_left = np.ones(self._table.num_rows, np.bool_)
        is_unscored = np.zeros(self._table.num_rows, np.bool_)
        was_dropped = np.zeros(self._table.num_rows, np.bool_)
        for masks, breaks in zip(self._steps, breaks_by_step, strict=True):
            is_left &= masks.has_reached | was_dropped  # a step that does not measure has dropped the others
            is_unscored |= is_left & ~masks.has_reached
            is_left &= ~masks.is_fixed
            for broken in breaks.values():
                is_left &= ~broken
            was_dropped |= masks.is_fixed
            for broken in masks.breaks.values():
                was_dropped |= broken
        return is_left & ~is_unscored, is_left & is_unscored

    def _describe_rule(self, masks: _StepMasks, rule: ThresholdRule) -> RuleTuning:
        values = self._table.values(masks.step, rule.score)
        broken = masks.breaks[rule.name]
        others_hold = masks.has_reached & ~masks.is_fixed & (masks.num_broken == broken)
        return RuleTuning(
            step=masks.step.prefix,
            rule=rule.name,
            score=rule.score,
            threshold=rule.thresholds[0],
            by_language=dict(zip(masks.step.languages, rule.thresholds[1:], strict=True)),
            reached=int(masks.has_reached.sum()),
            broken=int(broken.sum()),
            alone=int((broken & others_hold).sum()),
            quantiles=_find_quantiles(values, masks.has_reached),
            quantiles_by_language={
                language: _find_quantiles(values, masks.has_reached & rows)
                for language, rows in self._languages.items()
                if (masks.has_reached & rows).any()
            },
            would_keep=self._try_thresholds(masks, rule, values, others_hold),
            examples=self._find_examples(masks, rule, values, others_hold),
        )

    def _try_thresholds(
        self, masks: _StepMasks, rule: ThresholdRule, values: NDArray[Any], others_hold: NDArray[np.bool_]
    ) -> dict[str, int]:
        """Count what the step would keep with other thresholds: those that keep round shares of what they decide."""
        decided = others_hold
        if masks.tables is not None:
            has_common = np.array([threshold == rule.thresholds[0] for threshold in rule.thresholds])
            decided = others_hold & has_common[masks.tables]
        sample = _take_sample(values[decided])
        if not len(sample):
            return {}
        is_min = rule.name.startswith("min_")
        shares = [1 - share for share in _KEPT_SHARES] if is_min else list(_KEPT_SHARES)
        counts = {}
        for threshold in np.quantile(sample, shares, method="lower" if is_min else "higher").tolist():
            name = f"{threshold:.4g}"  # what is counted is what is shown
            broken = self._find_breaking(masks, rule, _replace_common(rule.thresholds, rule, float(name)))
            counts[name] = int(np.count_nonzero(others_hold & ~broken))
        return counts

    def _find_examples(
        self, masks: _StepMasks, rule: ThresholdRule, values: NDArray[Any], others_hold: NDArray[np.bool_]
    ) -> list[BorderDocument]:
        """Find the documents nearest to the threshold that it alone decides about, on both sides."""
        rows = np.flatnonzero(others_hold & (masks.tables == 0) if masks.tables is not None else others_hold)
        if rule.thresholds[0] is None or not len(rows):
            return []
        broken = masks.breaks[rule.name]
        examples = []
        for is_kept in (True, False):
            side = rows[broken[rows] != is_kept]
            distances = np.abs(values[side] - rule.thresholds[0])
            if len(side) > _NUM_EXAMPLES:
                near = np.flatnonzero(distances <= np.partition(distances, _NUM_EXAMPLES - 1)[_NUM_EXAMPLES - 1])
                side, distances = side[near], distances[near]
            nearest = side[np.argsort(distances, kind="stable")[:_NUM_EXAMPLES]]
            examples += [
                BorderDocument(place=self._name_place(row), value=values[row].item(), is_kept=is_kept)
                for row in nearest.tolist()
            ]
        return examples

    def _name_place(self, row: int) -> str:
        origin = self._table.table.column(ORIGIN)[row].as_py()
        file = self._manifest.files.get(file_key(origin["file"]))
        path = file.relative if file is not None else file_key(origin["file"])
        return format_position(self._table.source, path, origin["position"])

    def _count_overlaps(self) -> list[tuple[str, str, int]]:
        pairs = [
            (f"{masks.step.prefix}.{first}", f"{masks.step.prefix}.{second}", int(np.count_nonzero(one & other)))
            for masks in self._steps
            for (first, one), (second, other) in combinations(masks.breaks.items(), 2)
        ]
        return sorted((pair for pair in pairs if pair[2]), key=lambda pair: -pair[2])[:_MAX_OVERLAPS]


def _find_quantiles(values: NDArray[Any], rows: NDArray[np.bool_]) -> list[float]:
    """Find the quantiles of some documents, of an even sample if there are many. They are values that occur."""
    sample = _take_sample(values[rows])
    return np.quantile(sample, QUANTILES, method="lower").tolist() if len(sample) else []


def _take_sample(values: NDArray[Any]) -> NDArray[Any]:
    return values[:: -(-len(values) // _SAMPLE_ROWS) or 1]


def _replace_common(thresholds: Sequence[float | None], rule: ThresholdRule, value: float | None) -> list[float | None]:
    """Replace the threshold of all languages: those that have the common one keep having it."""
    return [value if old == rule.thresholds[0] else old for old in thresholds]
