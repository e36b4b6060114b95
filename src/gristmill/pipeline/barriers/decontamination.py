"""The barrier of `decontaminate`: all documents of its sources in, the units of each source's next stage out.

Tasks search and judge the units (`judge.py`); the parent finds which n-grams are common in a source. The next stage
reads each document with tags, without its contaminated passages, or not at all: its texts are edited as they are read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import TooMuchContaminationError
from gristmill.core.records import TEXT
from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import (
    BarrierOutcome,
    list_stored_inputs,
    list_training_inputs,
    pair_with_notes,
    replace_texts,
)
from gristmill.pipeline.barriers.exchange import Exchange, Part, RecordWriting
from gristmill.pipeline.barriers.judge import FINDING, Search, find_hits, judge_unit
from gristmill.pipeline.barriers.record_files import read_records
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.stored import WholeRecords
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.pipeline.work_folder import work_path
from gristmill.shards.manifest import BenchmarkCheck, Decontaminated
from gristmill.steps.decontaminate.decontaminate import CONTAMINATED, with_tags
from gristmill.steps.decontaminate.item_index import HIT, build_index
from gristmill.text.comparison_words import cut_spans, find_word_spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.record_files import Receipt
    from gristmill.pipeline.stages.stage_context import SliceResult
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.shards.stored_files import StoredFile
    from gristmill.steps.decontaminate.decontaminate import ResolvedDecontaminate
    from gristmill.steps.decontaminate.item_index import ItemIndex
    from gristmill.storage.locations import Location


MIN_COMMON_DOCUMENTS = 100
"""An n-gram of no more documents of a source than these is never common in it."""
_MIN_DROPPED = 10
"""A source may always lose this many documents, regardless of their share of it."""


@dataclass(frozen=True, slots=True)
class DecontaminateBarrier:
    """Finds the items of benchmarks in all sources that come to one step.

    Raises `TooMuchContaminationError` where a source would lose too many documents.
    """

    step: ResolvedDecontaminate

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        check = _Check(self.step, run)
        units = [(unit, result) for source in sources for unit, result in source.unit_results()]
        judged = check.judge_units(units)
        check.check_limits(units, judged)
        return BarrierOutcome(
            units=check.make_next_units(units, judged),
            entry_account=self.step.name,
            decontaminated=check.make_manifest_entry(units, judged),
            evidence=_gather_evidence(units, judged),
        )


class _Check:
    """One step over all units of all sources that come to it."""

    def __init__(self, step: ResolvedDecontaminate, run: BarrierRun) -> None:
        self._step = step
        self._run = run
        self._index: ItemIndex = build_index(step.items, ngram=step.ngram, min_words=step.min_words)
        self._described = fingerprint.describe_steps([step])
        self._is_common: dict[str, NDArray[np.bool_]] = {}

    def judge_units(self, units: Sequence[tuple[StageUnit, SliceResult]]) -> Sequence[Receipt]:
        """Search all units, find out which n-grams are common in each source, and judge the units."""
        context, exchange = self._run.context, Exchange(self._run, "decontaminate")
        parts = []
        for number, (unit, result) in enumerate(units):
            inputs = tuple(list_training_inputs(result))
            name = fingerprint.of(unit.fingerprint, "search", self._described)
            parts.append((name, Part(number, source=unit.source.name, inputs=inputs)))
        searched = exchange.run(
            partial(find_hits, self._index), parts, "searching", writes={"hits": RecordWriting(HIT)}
        )
        self._is_common = self._find_common_keys(units, searched.receipts)
        commons = {source: np.flatnonzero(common).tolist() for source, common in self._is_common.items()}
        judging = [
            (fingerprint.of(name, "judge", commons[part.source], context.keep_dropped, context.seed), part)
            for name, part in parts
        ]
        search = Search(self._step, self._index, context.seed, context.keep_dropped)
        writes = {"findings": RecordWriting(FINDING), "evidence": RecordWriting(np.dtype(np.uint8), is_published=True)}
        stage = partial(judge_unit, search, self._is_common)
        return exchange.run(stage, judging, "judging", reads={"hits": searched.whole("hits")}, writes=writes).receipts

    def _find_common_keys(
        self, units: Sequence[tuple[StageUnit, SliceResult]], searched: Sequence[Receipt]
    ) -> dict[str, NDArray[np.bool_]]:
        """Find the keys that are in too many documents of a source to say anything about one of them."""
        num_documents = {unit.source.name: 0 for unit, _ in units}
        frequencies = {source: np.zeros(self._index.num_keys, np.int64) for source in num_documents}
        for (unit, result), searched_unit in zip(units, searched, strict=True):
            source = unit.source.name
            num_documents[source] += sum(stored.num_rows for stored in list_training_inputs(result))
            hits = read_records(self._run.context.work, searched_unit.whole["hits"], HIT)
            pairs = np.unique(hits["row"].astype(np.uint64) << np.uint64(32) | hits["key"])
            keys = (pairs & np.uint64(0xFFFFFFFF)).astype(np.int64)
            frequencies[source] += np.bincount(keys, minlength=self._index.num_keys)
        return {
            source: frequency > max(MIN_COMMON_DOCUMENTS, self._step.max_common_share * num_documents[source])
            for source, frequency in frequencies.items()
        }

    def check_limits(self, units: Sequence[tuple[StageUnit, SliceResult]], judged: Sequence[Receipt]) -> None:
        """Raise `TooMuchContaminationError` if a source would lose too many documents."""
        if self._step.action != "drop":
            return
        totals: Counter[str] = Counter()
        losses: Counter[str] = Counter()
        for (unit, result), judged_unit in zip(units, judged, strict=True):
            totals[unit.source.name] += sum(stored.num_rows for stored in list_training_inputs(result))
            losses[unit.source.name] += judged_unit.counts["num_documents"]
        for source, loss in losses.items():
            if loss > max(_MIN_DROPPED, self._step.max_source_loss * totals[source]):
                raise TooMuchContaminationError(
                    f"decontaminate: source {source} would lose {loss:,} of {totals[source]:,} documents "
                    f"({loss / totals[source]:.0%}); allowed are {self._step.max_source_loss:.0%}",
                    help=f"see {self._run.context.root / work_path('*.evidence.jsonl')}; use action: tag or cut, or "
                    "raise max_source_loss; finished work is kept",
                )

    def make_next_units(
        self, units: Sequence[tuple[StageUnit, SliceResult]], judged: Sequence[Receipt]
    ) -> dict[str, list[StageUnit]]:
        """Make the units of the next stage, by source; each is known by what was found in it."""
        next_units: dict[str, list[StageUnit]] = {}
        for (unit, result), judged_unit in zip(units, judged, strict=True):
            if not result.split_files:
                continue
            findings = self._read_findings(judged_unit)
            names = {passage: self._name_item(passage) for passage in np.unique(findings["passage"]).tolist()}
            inputs, first_row = [], 0
            for stored in list_stored_inputs(result):
                is_checked = stored.split == TRAIN
                file = judged_unit.whole["findings"] if is_checked else None
                stop = first_row + stored.num_rows if is_checked else first_row
                start_stop = np.searchsorted(findings["row"], [first_row, stop])
                num_contaminated = len(np.unique(findings["row"][slice(*start_stop)]))
                inputs.append(CheckedInput(stored, self._step.action, file, first_row, names, num_contaminated))
                first_row = stop
            decided = judged_unit.whole["findings"].xxh3, sorted(names.items()), self._step.action
            name = fingerprint.of(unit.fingerprint, "decontaminate", decided)
            next_units.setdefault(unit.source.name, []).append(StageUnit(unit.source, name, tuple(inputs)))
        return next_units

    def make_manifest_entry(
        self, units: Sequence[tuple[StageUnit, SliceResult]], judged: Sequence[Receipt]
    ) -> Decontaminated:
        """Make the entry of the manifest: what was looked for, and what was found, by benchmark and source."""
        documents: dict[str, Counter[str]] = {}
        items: dict[str, dict[str, set[int]]] = {}
        for (unit, _), judged_unit in zip(units, judged, strict=True):
            source = unit.source.name
            for benchmark, row, item in self._list_found_items(self._read_findings(judged_unit)):
                items.setdefault(benchmark, {}).setdefault(source, set()).add(item)
                if row is not None:
                    documents.setdefault(benchmark, Counter())[source] += 1
        return Decontaminated(
            action=self._step.action,
            benchmarks=self._describe_benchmarks(items),
            found={
                benchmark: {
                    source: {"documents": documents[benchmark][source], "items": len(by_source[source])}
                    for source in sorted(by_source)
                }
                for benchmark, by_source in sorted(items.items())
            },
            common_ngrams={source: int(np.count_nonzero(common)) for source, common in sorted(self._is_common.items())},
        )

    def _list_found_items(self, findings: NDArray[Any]) -> Iterator[tuple[str, int | None, int]]:
        """List the items found in a unit: benchmark, row, item. The row is None where it has come before."""
        known_rows: set[tuple[str, int]] = set()
        for row, passage, *_ in findings.tolist():
            benchmark = self._name_item(passage).partition("/")[0]
            is_new = (benchmark, row) not in known_rows
            known_rows.add((benchmark, row))
            yield benchmark, row if is_new else None, self._index.passages[passage].item

    def _describe_benchmarks(self, items: Mapping[str, Mapping[str, set[int]]]) -> dict[str, BenchmarkCheck]:
        num_items = Counter(name.partition("/")[0] for name in self._index.names)
        described = {}
        for benchmark, count in sorted(num_items.items()):
            unchecked = {
                reason: [name for name in names if name.partition("/")[0] == benchmark]
                for reason, names in self._index.unchecked.items()
            }
            described[benchmark] = BenchmarkCheck(
                items=count,
                found=len(set().union(*items.get(benchmark, {}).values())),
                unchecked={reason: names for reason, names in unchecked.items() if names},
            )
        return described

    def _read_findings(self, judged_unit: Receipt) -> NDArray[Any]:
        return read_records(self._run.context.work, judged_unit.whole["findings"], FINDING)

    def _name_item(self, passage: int) -> str:
        return self._index.names[self._index.passages[passage].item]


def _gather_evidence(
    units: Sequence[tuple[StageUnit, SliceResult]], judged: Sequence[Receipt]
) -> dict[str, list[StoredFile]]:
    evidence: dict[str, list[StoredFile]] = {}
    for (unit, _), judged_unit in zip(units, judged, strict=True):
        if judged_unit.whole["evidence"].bytes:
            evidence.setdefault(unit.source.name, []).append(judged_unit.whole["evidence"])
    return evidence


@dataclass(frozen=True, slots=True)
class CheckedInput(WholeRecords):
    """A stored stream of documents that were checked."""

    stored: StoredInput
    action: str
    findings: StoredFile | None
    """The findings of the whole unit; None for held-out records, which are not checked."""
    first_row: int
    """The number of the stream's first document in the unit."""
    names: Mapping[int, str]
    """The names of the items, by passage."""
    num_contaminated: int
    """The number of documents of the stream that hold an item."""

    @property
    def num_rows(self) -> int:
        return self.stored.num_rows

    @property
    def counters(self) -> Mapping[str, int]:
        """The number of contaminated documents."""
        return {CONTAMINATED: self.num_contaminated} if self.num_contaminated else {}

    def count_dropped(self, num_records: int) -> Mapping[str, int]:
        """Count the documents that were dropped."""
        return {CONTAMINATED: self.num_rows - num_records} if num_records < self.num_rows else {}

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the documents that stay, as they are after the step."""
        findings = np.empty(0, FINDING) if self.findings is None else read_records(root, self.findings, FINDING)
        for batch, in_batch in pair_with_notes(self.stored.batches(root, seed), findings, self.first_row):
            yield self._apply(batch, in_batch)

    def _apply(self, batch: pa.RecordBatch, findings: NDArray[Any]) -> pa.RecordBatch:
        if self.action == "tag":
            items: dict[int, list[str]] = {}
            shares: dict[int, float] = {}
            for row, passage, coverage, _, _ in findings.tolist():
                name = self.names[passage]
                if name not in items.setdefault(row, []):
                    items[row].append(name)
                shares[row] = max(shares.get(row, 0.0), coverage)
            return with_tags(batch, items, shares)
        if not len(findings):
            return batch
        is_kept = np.ones(batch.num_rows, np.bool_)
        texts: dict[int, str] = {}
        if self.action == "drop":
            is_kept[findings["row"]] = False
        else:
            for row in np.unique(findings["row"]).tolist():
                passages = findings[findings["row"] == row]
                spans = zip(passages["start"].tolist(), passages["stop"].tolist(), strict=True)
                texts[row] = cut_spans(batch.column(TEXT)[row].as_py(), spans)
                is_kept[row] = len(find_word_spans(texts[row])) > 0
        return replace_texts("decontaminate", batch, texts, is_kept, help="use action: drop, or fix the record")
