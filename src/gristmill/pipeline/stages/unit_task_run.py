"""What a worker of a stage calls. It imports what workers need and no more: each import is paid for in every worker."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from gristmill.pipeline.stages.join import JoinTask, run_join
from gristmill.pipeline.stages.slice_run import run_slice
from gristmill.storage.wait_clock import wait_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.slice_task import SliceResult


STORE_COUNT = "store:"
"""How the names of counts of stores begin."""


def run_unit_task(task: Task, context: Context) -> SliceResult | None:
    """Run a task of a unit: a `SliceTask` or a `JoinTask`; `context.state` is the `LoadedContext`."""
    return run_join(task, context) if isinstance(task.payload, JoinTask) else run_slice(task, context)


def run_measured(function: Callable[[Task, Context], Any], task: Task, context: Context) -> Any:
    """Run any task, and count how long it waited for stores and what it read there, if it did."""
    clock = wait_clock
    before = (clock.seconds, clock.num_reads, clock.num_bytes)
    started = perf_counter()
    result = function(task, context)
    if use := clock.read_since(*before, perf_counter() - started):
        context.count(**{f"{STORE_COUNT}{name}": amount for name, amount in use.items()})
    return result
