"""`filter`: keep the records for which a function of yours says true."""

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
    `- filter: {call: functions.py:is_english}`, with the file beside the recipe. A record for which it raises, or
    returns anything else, is quarantined, and the others go on.

    >>> from gristmill.core.sample_batches import documents, texts
    >>> applied = Filter(call=lambda record: "e" in record["text"]).apply(documents(["hi", "hello"]), seed=0)
    >>> texts(applied.batch), applied.dropped
    (['hello'], {'rejected': 1})
    """

    preserves_text: ClassVar[bool] = True

    def call_on(self, batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        keep = np.zeros(batch.num_rows, dtype=bool)
        num_rejected = 0

        def take(row: int, verdict: object) -> None:
            nonlocal num_rejected
            if not isinstance(verdict, (bool, np.bool_)):
                raise RefusedRecord("not_a_bool", f"{self.function.name} returned {verdict!r:.200}, not True or False")
            keep[row] = verdict
            num_rejected += not verdict

        bad: list[QuarantinedRecord] = []
        call_on_records(self.function.resolve(), batch, take, bad, stops=stops)
        dropped = {"rejected": num_rejected} if num_rejected else {}
        return StepResult(batch.filter(pa.array(keep)), dropped, quarantined=bad)
