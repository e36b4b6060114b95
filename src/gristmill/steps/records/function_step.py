"""The bases of steps that call a function of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from gristmill.core.step import LocalStep
from gristmill.runtime.function import Function
from gristmill.steps.records.columns import add_columns
from gristmill.steps.records.record_functions import decode_records

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.core.records import StepResult
    from gristmill.core.step import StepKernel


class FunctionStep(LocalStep, frozen=True, kw_only=True):
    """The base of `map`, `filter` and `map_batches`."""

    needs_whole_record: ClassVar[bool] = True
    may_add_keys: ClassVar[bool] = True

    call: Any
    """`file.py:function`, or in Python any callable."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "call", Function.of(self.call))

    @property
    def function(self) -> Function:
        function: Function = self.call
        return function

    def resolve(self, folder: str) -> Self:
        """Make the path of the function's file absolute. The function itself is imported where it is called."""
        return msgspec.structs.replace(self, call=self.function.in_folder(folder))

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return self.call_on(batch, stops=False)

    def call_on(self, batch: pa.RecordBatch, *, stops: bool) -> StepResult:
        """Return the batch after the function; with `stops` only up to the first record for which it raises."""
        raise NotImplementedError

    def load_stopping(self) -> StepKernel:
        return _StoppingKernel(self)

    def replay(self, record: pa.RecordBatch) -> None:
        """Call the function on the record."""
        self.function(*decode_records(record))


class MappingStep(FunctionStep, frozen=True, kw_only=True):
    """The base of steps whose function returns records, which may have new columns."""

    columns: dict[str, str] = msgspec.field(default_factory=dict)
    """New columns and their types."""

    def columns_added(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return add_columns(self.name, schema, self.columns)


class _StoppingKernel:
    """A kernel that does not call the user's function again after it has raised."""

    def __init__(self, step: FunctionStep) -> None:
        self._step = step

    def begin_cell(self) -> None:
        """Do nothing: no batch depends on an earlier one."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return self._step.call_on(batch, stops=True)
