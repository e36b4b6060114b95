"""The step `redact`: a local step, which looks at one batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pyarrow.compute as pc

from gristmill.core.records import TEXT, StepResult
from gristmill.core.step import LocalStep
from gristmill.steps.edit_columns import put_columns

if TYPE_CHECKING:
    import pyarrow as pa

_ADDRESS = r"[\w.+-]+@[\w-]+\.[\w.-]*\w"


class Redact(LocalStep, tag="redact", frozen=True, kw_only=True):
    """Replace mail addresses in the text by `replacement`."""

    needs: ClassVar[tuple[str, ...]] = (TEXT,)

    replacement: str = "<address>"

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        texts = batch.column(TEXT)
        num_addresses = pc.sum(pc.count_substring_regex(texts, _ADDRESS)).as_py() or 0
        redacted = pc.replace_substring_regex(texts, _ADDRESS, self.replacement)
        # Not batch.set_column: records that are carried along as JSON hold the text, too.
        changed, quarantined = put_columns(self, batch, {TEXT: redacted})
        return StepResult(changed, quarantined=quarantined, counters={"addresses": num_addresses})
