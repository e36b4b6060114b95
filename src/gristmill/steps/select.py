"""`select`: keep only some columns. They are written, not the record as it was read."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.records import ORIGIN, RECORD, SPLIT, StepResult
from gristmill.core.step import LocalStep
from gristmill.steps.records.columns import require_column


class Select(LocalStep, tag="select", frozen=True, kw_only=True):
    """Keep these columns, in this order. The text is called `text`, whatever it is called in the files.

    >>> from gristmill.core.sample_batches import documents
    >>> Select(columns=["url"]).apply(documents(["hi"], url=["a.org"]), seed=0).batch.column_names
    ['origin', 'url']
    """

    selects_columns: ClassVar[bool] = True

    columns: list[str]

    def __post_init__(self) -> None:
        if not self.columns:
            raise UsageError("select needs at least one column")
        if len(set(self.columns)) < len(self.columns):
            raise UsageError(f"select names a column twice: {', '.join(self.columns)}")
        if RECORD in self.columns:
            raise UsageError('select: "record" is the whole record as it was read, not a column')

    def columns_needed(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        for column in self.columns:
            require_column(self.name, column, schema)
        reserved = [name for name in (ORIGIN, SPLIT) if name in schema.names and name not in self.columns]
        fields = [schema.field(name) for name in [*reserved, *self.columns]]
        return pa.schema(fields, schema.metadata)

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return StepResult(batch.select(self.output_schema(batch.schema).names))
