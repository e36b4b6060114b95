"""A few real records through every local step, before any work starts.

Steps that run the user's own code do so in a worker: a function that crashes or never returns on a sample record must
not take the plan with it. The run itself finds such a record and sets it aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.errors import ItemTimeoutError, OutOfMemoryError, UsageError, WorkerDiedError
from gristmill.core.recipe import runs_foreign_code
from gristmill.engine.tasks import Task, run_tasks
from gristmill.pipeline.quarantine import num_allowed
from gristmill.steps.read import open_reader

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.core.records import SourceFile
    from gristmill.core.step import LocalStep
    from gristmill.engine.tasks import Context
    from gristmill.steps.read import Read

_MAX_RECORDS = 100
_MAX_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What is to be tried."""

    read: Read
    file: SourceFile
    schema: pa.Schema
    steps: tuple[LocalStep, ...]
    expected: pa.Schema
    """Of what comes out."""
    seed: int
    max_quarantine: float


def try_sample(sample: Sample, *, apart: bool) -> tuple[tuple[LocalStep, ...], list[str]]:
    """The steps settled, and what the user should know. `apart`: the user's own code in a process of its own."""
    if not (apart and runs_foreign_code(sample.steps)):
        return settle(sample), []
    tasks = [Task(f"sample of {sample.file.path}", sample)]
    try:
        [(_, steps)] = run_tasks(
            _run_sample, tasks, workers=1, timeout=_MAX_SECONDS, retries=0, desc="sample", progress=False
        )
    except (WorkerDiedError, OutOfMemoryError) as error:
        note = f"a sample record ends its worker: the run will find it and set it aside ({error.message})"
        return sample.steps, [note]
    except UsageError as error:  # without the notes of the engine: it is about the recipe
        raise UsageError(error.message, help=error.help, **error.context) from None
    except ItemTimeoutError:
        if any(step.foreign_code for step in sample.steps):
            raise UsageError(
                f"the chat template has not come to an end with the first records in {_MAX_SECONDS:g} s",
                help="look for a loop in it; gristmill template check shows what it does",
            ) from None
        note = f"the sample took more than {_MAX_SECONDS:g} s and was not checked to the end: give the run a timeout"
        return sample.steps, [note]
    return steps, []


def settle(sample: Sample) -> tuple[LocalStep, ...]:
    """Send the first records through the steps and give the steps back, settled."""
    settled: list[LocalStep] = []
    for cell in open_reader(sample.read, sample.file, sample.schema).read_cells(0, 1):
        batch = cell.batch.slice(0, _MAX_RECORDS)
        for step in sample.steps:
            settled.append(step.settled(batch))
            batch = _apply(settled[-1], batch, sample)
        if not batch.schema.equals(sample.expected):
            raise UsageError(
                f"the steps give other columns than they should: {batch.schema.names}, not {sample.expected.names}"
            )
        break
    return tuple(settled) or sample.steps


def _apply(step: LocalStep, batch: pa.RecordBatch, sample: Sample) -> pa.RecordBatch:
    kernel = step.load()
    kernel.begin_task()
    applied = kernel.apply(batch, sample.seed)
    num_bad = len(applied.bad)
    if num_bad == batch.num_rows and num_bad > num_allowed(num_bad, sample.max_quarantine):
        first = applied.bad[0]
        raise UsageError(
            f"step {step.name}: none of {num_bad} sample records could be used; the first, in {sample.file.path} at "
            f"position {first.position}: {first.message}",
            help="mend the step, or the recipe's field names",
        )
    return applied.batch


def _run_sample(task: Task, context: Context) -> tuple[LocalStep, ...]:  # noqa: ARG001
    return settle(task.payload)
