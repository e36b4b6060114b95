"""What a worker of a stage calls. It imports what workers need and no more: each import is paid for in every worker."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from gristmill.engine.tasks import Unfinished
from gristmill.pipeline.stages.join import JoinTask, run_join
from gristmill.pipeline.stages.slices.slice_run import run_slice
from gristmill.storage.stores.collected_uploads import collect_uploads
from gristmill.storage.wait_clock import wait_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.slices.slice_task import SliceResult


STORE_COUNT = "store:"
"""How the names of counts of stores begin."""


def run_unit_task(task: Task, context: Context) -> SliceResult | None:
    """Run a task of a unit: a `SliceTask` or a `JoinTask`; `context.state` is the `LoadedContext`."""
    return run_join(task, context) if isinstance(task.payload, JoinTask) else run_slice(task, context)


def run_measured(function: Callable[[Task, Context], Any], task: Task, context: Context) -> Any:
    """Run any task, and count how long it waited for stores and what it read there, if it did.

    It need not wait for the end of its uploads, only for those of the task before: so no more than two hold memory.
    """
    before = wait_clock.show(perf_counter())
    with collect_uploads() as uploads:
        result = function(task, context)
        with wait_clock.waiting():
            context.wait_for_last_task()
    after = wait_clock.show(perf_counter())
    if after.reads > before.reads or after.wait_ms > before.wait_ms:
        names = (f"{STORE_COUNT}{name}" for name in after._fields)
        context.count(**{name: new - old for name, new, old in zip(names, after, before, strict=True)})
    return Unfinished(result, uploads.complete) if uploads else result
