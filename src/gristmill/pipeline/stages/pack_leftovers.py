"""What packed units have left over, packed once more: the last shards of a source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gristmill.engine.tasks import Task
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.join import JoinTask, run_join
from gristmill.pipeline.stages.runner import StageResults, StageUnit
from gristmill.pipeline.stages.slice_task import SliceResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.sink import SplitFile
    from gristmill.pipeline.stages.slice_task import StageContext

_TAIL_BYTES = 64 << 20
"""So many leftovers are packed by one task."""


def pack_leftovers(
    runner: StageRunner, stage: StageContext, units: Sequence[StageUnit], results: Iterable[SliceResult]
) -> tuple[list[StageUnit], Counter[str]]:
    """More units of the same source, made and with their receipts, and what they add to the account of `pack`."""
    carried = [(unit, result.leftovers) for unit, result in zip(units, results, strict=True) if result.leftovers]
    tails, tasks = [], []
    for some in _group_leftovers(carried):
        source = some[0][0].source
        name = fingerprint.of([unit.fingerprint for unit, _ in some], "tail")
        tail = StageUnit(source, name, (), some[0][0].epoch)
        tails.append(tail)
        if runner.find_result(tail) is None:
            leftovers = tuple(SliceResult(split_files=parts, books=[]) for _, parts in some)
            tasks.append(Task(tail.fingerprint, JoinTask(source.name, leftovers, tail.stem, is_tail=True)))
    runner.run_tasks(run_join, stage, tasks, "packing what is left over")
    counters: Counter[str] = Counter()
    for result in StageResults(runner, tails):
        counters.update(result.books[-1].counters)
    return tails, counters


def _group_leftovers(
    carried: Sequence[tuple[StageUnit, list[SplitFile]]],
) -> Iterator[list[tuple[StageUnit, list[SplitFile]]]]:
    """Consecutive units of one epoch with about `_TAIL_BYTES` of leftovers."""
    group: list[tuple[StageUnit, list[SplitFile]]] = []
    num_bytes = 0
    for unit, parts in carried:
        if group and group[-1][0].epoch != unit.epoch:
            yield group
            group, num_bytes = [], 0
        group.append((unit, parts))
        num_bytes += sum(part.data.bytes for part in parts)
        if num_bytes >= _TAIL_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group
