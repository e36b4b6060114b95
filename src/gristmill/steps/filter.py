"""`filter`: keep the records for which your own function returns true."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from gristmill.core.records import QuarantinedRecord, StepResult
from gristmill.steps.records.function_step import FunctionStep
from gristmill.steps.records.record_functions import RefusedRecord, call_on_records


class Filter(FunctionStep, tag="filter", frozen=True, kw_only=True):
    """Keep the records for which the function returns true.

    The function gets a record as a dict and returns True or False; the others are dropped as `rejected`. In a recipe:
    `- filter: {call: functions.py:is_english}`, with the file beside the recipe. If the function raises, or returns
    anything else, the record is quarantined and the run continues.

    >>> from gristmill.core.sample_batches import documents, texts
    >>> applied = Filter(call=lambda record: "e" in record["text"]).apply(documents(["hi", "hello"]), seed=0)
    >>> texts(applied.batch), applied.dropped
    (['hello'], {'rejected': 1})
    """

    preserves_text: ClassVar[bool] = True

    def call_on(self, batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        is_kept = np.zeros(batch.num_rows, dtype=bool)
        num_rejected = 0

        def use_result(row: int, result: object) -> None:
            nonlocal num_rejected
            if not isinstance(result, (bool, np.bool_)):
                raise RefusedRecord("not_a_bool", f"{self.function.name} returned {result!r:.200}, not True or False")
            is_kept[row] = result
            num_rejected += not result

        quarantined: list[QuarantinedRecord] = []
        call_on_records(self.function.resolve(), batch, use_result, quarantined, stops=stops)
        dropped = {"rejected": num_rejected} if num_rejected else {}
        return StepResult(batch.filter(pa.array(is_kept)), dropped, quarantined=quarantined)
