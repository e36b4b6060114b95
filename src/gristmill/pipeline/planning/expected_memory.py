"""The memory that a run will need, and the number of its workers: estimates for the plan, which shape no bytes.

A worker takes what its imports take, one cell with its batches, and what each step says that it holds
(`Step.expected_bytes`). The stage that needs most decides, since a worker frees what no later stage needs. The tasks of
a barrier hold what it says (`GlobalStep.expected_barrier_bytes`) in place of that.

The constants are fitted to peaks of workers on 200 MB of JSON lines, so these pairs (expected and peak, MiB) show the
fit and prove nothing: a length filter 138 and 138, the same to Parquet 250 and 254, a vocabulary of 50,000 tokens 226
and 227, packed 354 and 362, one of 152,000 packed 467 and 482, languages 283 and 282. Two recipes that were not fitted:
20 MB packed 245 and 264, languages to packed rows 354 and 321. Parents took 89 to 410, where 200 to 401 are expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.quantities import format_bytes, format_count
from gristmill.engine.machine.resources import count_usable_workers, read_memory_available

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.core.step import Step

_WORKER_BYTES = 138 << 20
_PARENT_BYTES = 200 << 20
_WORKERS_SHARE = 0.8
"""The share of the free memory that workers may take; the engine leaves the same to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMemory:
    """The number of workers of a run, what limits it, and the memory that all of them will need."""

    num_workers: int
    limited_by: str
    """`cores`, `quota`, `memory` or `tasks`; `process` if the run stays in this process."""
    worker_bytes: int
    parent_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.num_workers * self.worker_bytes + self.parent_bytes

    def __str__(self) -> str:
        if not self.num_workers:
            return f"memory: about {format_bytes(self.total_bytes)}, all in this process"
        workers = f"{format_count(self.num_workers, 'worker')} (limited by {self.limited_by})"
        each = f"{format_bytes(self.worker_bytes)} a worker, {format_bytes(self.parent_bytes)} the parent"
        return f"{workers}; memory: about {format_bytes(self.total_bytes)} at most, {each}"


def expect_memory(
    stages: Iterable[Sequence[Step]], *, slice_bytes: int, num_tasks: int, in_process: bool, barrier_bytes: int = 0
) -> ExpectedMemory:
    """Estimate the memory of a run.

    Args:
        stages: The steps of each stage of each source, with those of the output in the last ones.
        slice_bytes: The size of its largest task.
        num_tasks: The number of tasks of its first stage.
        in_process: Whether it has no worker processes.
        barrier_bytes: The most that a task of a barrier holds.
    """
    stages = list(stages)
    needs = [sum(step.expected_bytes(slice_bytes) for step in steps) for steps in stages]
    worker_bytes = _WORKER_BYTES + max([*needs, barrier_bytes])
    if in_process:
        return ExpectedMemory(num_workers=0, limited_by="process", worker_bytes=0, parent_bytes=worker_bytes)
    # The plan loads what its trial needs, and proves tokenizers; it packs and writes nothing.
    loaded = max((sum(step.expected_bytes(0) for step in steps if step.loaded_content) for steps in stages), default=0)
    num_cores, limited_by = count_usable_workers()
    limits = {
        limited_by: num_cores,
        "memory": max(1, int(_WORKERS_SHARE * read_memory_available()) // worker_bytes),
        "tasks": max(1, num_tasks),
    }
    smallest = min(limits, key=lambda name: limits[name])
    return ExpectedMemory(
        num_workers=limits[smallest],
        limited_by=smallest,
        worker_bytes=worker_bytes,
        parent_bytes=_PARENT_BYTES + loaded,
    )
