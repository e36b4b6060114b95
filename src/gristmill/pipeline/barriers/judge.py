"""The stages of `decontaminate`: a unit is searched for n-grams, and later judged by those that are not common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.records import ORIGIN, TEXT
from gristmill.core.seeds import hash_origins
from gristmill.pipeline.stages.outputs.dropped import SAMPLES, LowestHashSamples
from gristmill.steps.decontaminate.item_index import HIT
from gristmill.steps.decontaminate.plain_text import find_plain_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.steps.decontaminate.decontaminate import ResolvedDecontaminate
    from gristmill.steps.decontaminate.item_index import ItemIndex


FINDING = np.dtype([("row", "<u4"), ("passage", "<u4"), ("coverage", "<f8"), ("start", "<u8"), ("stop", "<u8")])
"""A passage in a document, from one character to another."""

_CONTEXT_CHARS = 60
_MAX_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Search:
    """The n-grams that are searched for, in all units."""

    step: ResolvedDecontaminate
    index: ItemIndex
    seed: int
    keep_dropped: object


def find_hits(index: ItemIndex, partition: Partition) -> dict[str, Any]:
    """Find the n-grams of benchmarks in a unit."""
    all_hits = [np.empty(0, HIT)]
    for first_row, batch in partition.batches():
        hits = index.find_hits(batch.column(TEXT))
        hits["row"] += np.uint32(first_row)
        all_hits.append(hits)
    return {"hits": np.concatenate(all_hits)}


def judge_unit(search: Search, is_common: Mapping[str, NDArray[np.bool_]], partition: Partition) -> dict[str, Any]:
    """Decide which items are in the documents of a unit, and write down the evidence."""
    step, index = search.step, search.index
    matches = index.find_matches(partition["hits"], is_common[partition.part.source], step.min_coverage, step.window)
    findings = np.zeros(len(matches), FINDING)
    for name in ("row", "passage", "coverage"):
        findings[name] = matches[name]
    evidence = _EvidenceLines(search, partition.part.source)
    lines: list[bytes] = []
    for first_row, batch in partition.batches() if len(matches) else ():
        bounds = np.searchsorted(matches["row"], [first_row, first_row + batch.num_rows]).tolist()
        for place in range(*bounds):
            text = batch.column(TEXT)[int(matches["row"][place]) - first_row].as_py()
            words = int(matches["first"][place]), int(matches["stop"][place])
            item = index.passages[int(matches["passage"][place])].text
            findings["start"][place], findings["stop"][place] = find_plain_words(text, *words, item)
            lines += evidence.add(findings[place], batch, int(findings["row"][place]) - first_row)
    num_documents = len(np.unique(findings["row"]))
    return {"findings": findings, "evidence": [*lines, *evidence.finish()], "num_documents": num_documents}


class _EvidenceLines:
    """The lines that show an item next to the passage that holds it: samples, or all where the recipe keeps all."""

    def __init__(self, search: Search, source: str) -> None:
        self._search = search
        self._source = source
        self._samples = LowestHashSamples()
        self._keeps_all = search.keep_dropped not in (None, SAMPLES)

    def add(self, finding: Any, batch: pa.RecordBatch, row: int) -> Iterator[bytes]:
        """Add a finding in a document; yields its line if all are kept."""
        passage = self._search.index.passages[int(finding["passage"])]
        name = self._search.index.names[passage.item]
        [hashed] = hash_origins(self._search.seed, f"decontaminate {name}", batch.column(ORIGIN).slice(row, 1)).tolist()
        benchmark = name.partition("/")[0]
        if not (self._keeps_all or self._samples.accepts((benchmark,), hashed)):
            return
        text = batch.column(TEXT)[row].as_py()
        start, stop = int(finding["start"]), int(finding["stop"])
        origin = batch.column(ORIGIN)[row].as_py()
        line = {
            "source": self._source,
            **{key: origin[key] for key in ("file", "position", "part")},
            "step": self._search.step.name,
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
