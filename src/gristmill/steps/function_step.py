"""What the steps that call a function of the user have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from gristmill.core.function import Function
from gristmill.core.step import LocalStep
from gristmill.steps.record_functions import each_record

if TYPE_CHECKING:
    import pyarrow as pa


class FunctionStep(LocalStep, frozen=True, kw_only=True):
    """Base of `map`, `filter` and `map_batches`."""

    whole_record: ClassVar[bool] = True

    call: Any
    """`file.py:function`, or in Python any callable."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "call", Function.of(self.call))

    @property
    def function(self) -> Function:
        function: Function = self.call
        return function

    def resolved(self, folder: str) -> Self:
        """With the function's file as an absolute path. The function itself is imported where it is called."""
        return msgspec.structs.replace(self, call=self.function.in_folder(folder))

    def replay(self, record: pa.RecordBatch) -> None:
        """Call the function on the record."""
        self.function(*each_record(record))
