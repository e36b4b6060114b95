"""Stored streams that a barrier edits: notes on rows find their batches, and new texts replace the old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import TEXT, StepResult, select_rows
from gristmill.core.step import LocalStep
from gristmill.steps.records.put_columns import put_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


class _EditText(LocalStep, tag="edit_text", frozen=True, kw_only=True):
    """The step in whose name texts are replaced: no column is added."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return StepResult(batch)


def pair_with_notes(
    batches: Iterable[pa.RecordBatch], notes: NDArray[Any], first_row: int
) -> Iterator[tuple[pa.RecordBatch, NDArray[Any]]]:
    """Pair each batch with its notes, whose `row` then counts from the start of the batch.

    `notes` are those of a whole unit, by `row`; the stream begins at row `first_row` of the unit.
    """
    row = first_row
    for batch in batches:
        in_batch = notes[slice(*np.searchsorted(notes["row"], [row, row + batch.num_rows]))].copy()
        in_batch["row"] -= np.uint32(row)
        yield batch, in_batch
        row += batch.num_rows


def replace_texts(
    step: str, batch: pa.RecordBatch, texts: Mapping[int, str], is_kept: NDArray[np.bool_], help: str | None = None
) -> pa.RecordBatch:
    """Replace the texts of some rows, also in the JSON records; only rows that are kept are left.

    Raises:
        UsageError: A JSON record cannot be edited; the message names the step, and `help` says what to do.
    """
    if texts:
        column = [texts.get(row, text) for row, text in enumerate(batch.column(TEXT).to_pylist())]
        batch, quarantined = put_columns(_EditText(), batch, {TEXT: pa.array(column, batch.column(TEXT).type)})
        if quarantined:
            raise UsageError(f"{step}: the text of a record cannot be edited: {quarantined[0].message}", help=help)
    return select_rows(batch, is_kept)
