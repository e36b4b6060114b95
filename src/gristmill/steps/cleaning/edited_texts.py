"""Edits of texts: only the documents that need one become Python strings, are edited, and are put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.records import TEXT, StepResult
from gristmill.steps.records.put_columns import put_columns

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gristmill.core.step import LocalStep


def edit_texts(
    step: LocalStep,
    batch: pa.RecordBatch,
    needs_edit: NDArray[np.bool_],
    edit: Callable[[str, Counter[str]], str],
    counters: Counter[str],
) -> StepResult:
    """Edit the texts of some rows. `edit` returns the new text, and counts what it did in `counters`.

    The result says which rows have another text than before.
    """
    texts = batch.column(TEXT)
    is_changed = np.zeros(batch.num_rows, np.bool_)
    new_texts = {}
    for row in np.flatnonzero(needs_edit).tolist():
        text = texts[row].as_py()
        new_text = edit(text, counters)
        if new_text != text:
            is_changed[row] = True
            new_texts[row] = new_text
    if not new_texts:
        return StepResult(batch, counters=dict(counters))
    edited = pc.replace_with_mask(
        texts, pa.array(is_changed), pa.array([new_texts[row] for row in sorted(new_texts)], texts.type)
    )
    changed_batch, quarantined = put_columns(step, batch, {TEXT: edited}, is_changed)
    # A row that is quarantined shifts the others, so that no pair of texts could be shown.
    changed_rows = None if quarantined else is_changed
    return StepResult(changed_batch, quarantined=quarantined, counters=dict(counters), changed_rows=changed_rows)


def find_matches(texts: pa.Array, pattern: str) -> NDArray[np.bool_]:
    """For each text whether a pattern of RE2 occurs in it; a missing text has no match."""
    matches: NDArray[np.bool_] = pc.fill_null(pc.match_substring_regex(texts, pattern), False).to_numpy(
        zero_copy_only=False
    )
    return matches
