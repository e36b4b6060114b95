"""What a worker of a stage calls. It imports what workers need and no more: each import is paid for in every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.pipeline.stages.join import JoinTask, run_join
from gristmill.pipeline.stages.slice_run import run_slice

if TYPE_CHECKING:
    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.stages.slice_task import SliceResult


def run_unit_task(task: Task, context: Context) -> SliceResult | None:
    """Run a task of a unit: a `SliceTask` or a `JoinTask`; `context.state` is the `LoadedContext`."""
    return run_join(task, context) if isinstance(task.payload, JoinTask) else run_slice(task, context)
