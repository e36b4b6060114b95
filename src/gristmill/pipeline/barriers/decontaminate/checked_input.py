"""What `decontaminate` leaves of a stored stream: documents with tags, without the contaminated ones, or cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gristmill.core.records import TEXT
from gristmill.pipeline.barriers.decontaminate.judge import FINDING
from gristmill.pipeline.barriers.deduplicate.record_files import read_records
from gristmill.pipeline.barriers.edited_stream import pair_with_notes, replace_texts
from gristmill.steps.decontaminate.decontaminate import CONTAMINATED, with_tags
from gristmill.text.shingles.word_spans import find_word_spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.shards.manifests.stored_files import StoredFile
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class CheckedInput:
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

    is_copy: ClassVar[bool] = False

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
                texts[row] = cut_spans(batch.column(TEXT)[row].as_py(), findings[findings["row"] == row])
                is_kept[row] = len(find_word_spans(texts[row])) > 0
        return replace_texts("decontaminate", batch, texts, is_kept, help="use action: drop, or fix the record")


def cut_spans(text: str, findings: NDArray[Any]) -> str:
    """Return the text without these passages, which may overlap.

    >>> cut_spans("what is this now", np.array([(0, 0, 1.0, 5, 7), (0, 1, 1.0, 6, 12)], FINDING))
    'what  now'
    """
    pieces, position = [], 0
    for start, stop in sorted(zip(findings["start"].tolist(), findings["stop"].tolist(), strict=True)):
        pieces.append(text[position : max(start, position)])
        position = max(position, stop)
    return "".join([*pieces, text[position:]])
