"""The tasks of `decontaminate`: a unit is searched for n-grams, and later judged by those that are not common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.records import ORIGIN, TEXT
from gristmill.core.seeds import hash_origins
from gristmill.pipeline.barriers.deduplicate.record_files import RecordWriter, TaskFiles, read_records
from gristmill.pipeline.stages.outputs.dropped import SAMPLES, LowestHashSamples
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import StageContext
from gristmill.pipeline.work_folder import work_path
from gristmill.shards.stored_files import StoredFile
from gristmill.steps.decontaminate.item_index import HIT
from gristmill.steps.decontaminate.plain_text import find_plain_words
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import Count  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.steps.decontaminate.decontaminate import ResolvedDecontaminate
    from gristmill.steps.decontaminate.item_index import ItemIndex


FINDING = np.dtype([("row", "<u4"), ("passage", "<u4"), ("coverage", "<f8"), ("start", "<u8"), ("stop", "<u8")])
"""A passage in a document, from one character to another."""

_CONTEXT_CHARS = 60
_MAX_CHARS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchContext(StageContext):
    """The context of both kinds of tasks."""

    step: ResolvedDecontaminate
    index: ItemIndex
    is_common: dict[str, NDArray[np.bool_]]
    """For each source the keys that are common in it. Empty while units are searched."""


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A task for the training documents of one unit."""

    source: str
    inputs: tuple[StoredInput, ...]
    stem: str
    hits: StoredFile | None = None
    """The hits of the unit, once they are known."""


class SearchedUnit(TaskFiles, frozen=True, kw_only=True):
    """The n-grams of benchmarks that occur in a unit."""

    hits: StoredFile


class JudgedUnit(TaskFiles, frozen=True, kw_only=True):
    """The items that were found in a unit."""

    findings: StoredFile
    evidence: StoredFile
    """JSON lines for `dropped/`: an item next to the passage that holds it."""
    num_documents: Count
    """The number of documents that hold an item."""


def run_search(task: Task, context: Context) -> SearchedUnit:
    """Find the n-grams of benchmarks in a unit; `context.state` is the `SearchContext`."""
    stage: SearchContext = context.state
    search: SearchTask = task.payload
    with RecordWriter(open_stem(stage.work, search.stem, stage.run_id), ".hits") as writer:
        for number, (first_row, batch) in enumerate(_read_batches(stage, search)):
            context.at(number)
            context.count(records=batch.num_rows, bytes=batch.nbytes)
            hits = stage.index.find_hits(batch.column(TEXT))
            hits["row"] += np.uint32(first_row)
            writer.add(hits)
        return SearchedUnit(hits=writer.commit())


def run_judge(task: Task, context: Context) -> JudgedUnit:
    """Decide which items are in the documents of a unit, and write down the evidence."""
    stage: SearchContext = context.state
    search: SearchTask = task.payload
    stem = open_stem(stage.work, search.stem, stage.run_id)
    # What is published must be in the output: only there a move is cheap.
    evidence_path = f"{work_path(stem.name)}.evidence.jsonl"
    assert search.hits is not None
    hits = read_records(stage.work, search.hits, HIT)
    step = stage.step
    matches = stage.index.find_matches(hits, stage.is_common[search.source], step.min_coverage, step.window)
    findings = np.zeros(len(matches), FINDING)
    for name in ("row", "passage", "coverage"):
        findings[name] = matches[name]
    evidence = _EvidenceLines(stage, search.source)
    with PendingFile(stage.root / evidence_path, stem.run_id) as file:
        for number, (first_row, batch) in enumerate(_read_batches(stage, search) if len(matches) else ()):
            context.at(number)
            bounds = np.searchsorted(matches["row"], [first_row, first_row + batch.num_rows]).tolist()
            for place in range(*bounds):
                text = batch.column(TEXT)[int(matches["row"][place]) - first_row].as_py()
                words = int(matches["first"][place]), int(matches["stop"][place])
                item = stage.index.passages[int(matches["passage"][place])].text
                findings["start"][place], findings["stop"][place] = find_plain_words(text, *words, item)
                for line in evidence.add(findings[place], batch, int(findings["row"][place]) - first_row):
                    file.write(line)
        for line in evidence.finish():
            file.write(line)
        file.commit()
        stored = StoredFile(path=evidence_path, bytes=file.num_bytes, xxh3=file.checksum)
    with RecordWriter(stem, ".findings") as writer:
        writer.add(findings)
        num_documents = len(np.unique(findings["row"]))
        return JudgedUnit(findings=writer.commit(), evidence=stored, num_documents=num_documents)


def _read_batches(stage: SearchContext, search: SearchTask) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read the documents of a unit, with the number of each batch's first row in the unit."""
    first_row = 0
    for stored_input in search.inputs:
        for batch in stored_input.batches(stage.work):
            yield first_row, batch
            first_row += batch.num_rows


class _EvidenceLines:
    """The lines that show an item next to the passage that holds it: samples, or all where the recipe keeps all."""

    def __init__(self, stage: SearchContext, source: str) -> None:
        self._stage = stage
        self._source = source
        self._samples = LowestHashSamples()
        self._keeps_all = stage.keep_dropped not in (None, SAMPLES)

    def add(self, finding: Any, batch: pa.RecordBatch, row: int) -> Iterator[bytes]:
        """Add a finding in a document; yields its line if all are kept."""
        passage = self._stage.index.passages[int(finding["passage"])]
        name = self._stage.index.names[passage.item]
        [hashed] = hash_origins(self._stage.seed, f"decontaminate {name}", batch.column(ORIGIN).slice(row, 1)).tolist()
        benchmark = name.partition("/")[0]
        if not (self._keeps_all or self._samples.accepts((benchmark,), hashed)):
            return
        text = batch.column(TEXT)[row].as_py()
        start, stop = int(finding["start"]), int(finding["stop"])
        origin = batch.column(ORIGIN)[row].as_py()
        line = {
            "source": self._source,
            **{key: origin[key] for key in ("file", "position", "part")},
            "step": self._stage.step.name,
            "reason": benchmark,
            "item": name,
            "item_part": passage.part,
            "coverage": float(finding["coverage"]),
            "item_text": passage.text[:_MAX_CHARS],
            "passage": text[start : min(stop, start + _MAX_CHARS)],
            "before": text[max(start - _CONTEXT_CHARS, 0) : start],
            "after": text[stop : stop + _CONTEXT_CHARS],
            "hash": hashed,
        }
        encoded = msgspec.json.encode(line) + b"\n"
        if self._keeps_all:
            yield encoded
        else:
            self._samples.add((benchmark,), hashed, encoded)

    def finish(self) -> Iterator[bytes]:
        """Yield the samples, which are known only now."""
        for _, line in self._samples.lines():
            yield line
