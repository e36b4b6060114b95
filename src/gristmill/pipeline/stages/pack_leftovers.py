"""Packing the documents that units have left over: the last shards of a source (`packing`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.engine.tasks import Task
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.join import JoinTask, run_join
from gristmill.pipeline.stages.runner import StageResults
from gristmill.pipeline.stages.slices.slice_task import SliceResult
from gristmill.pipeline.stages.unit_tasks import StageUnit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.pipeline.stages.outputs.split_files import SplitFile
    from gristmill.pipeline.stages.outputs.unit_output import PackedRows
    from gristmill.pipeline.stages.runner import StageRunner
    from gristmill.pipeline.stages.stage_context import StageContext

_GROUP_BYTES = 64 << 20
"""One task packs about this many bytes of leftovers."""


def pack_leftovers(
    runner: StageRunner,
    stage: StageContext,
    output: PackedRows,
    units: Iterable[StageUnit],
    results: Iterable[SliceResult],
) -> tuple[list[StageUnit], Counter[str]]:
    """Pack the leftovers of a source's units into more units, and count what they add to the account of `pack`.

    To the runner leftovers are slices that wait to be joined, in a stage that packs them with `output`.
    """
    leftovers = [(unit, result.leftovers) for unit, result in zip(units, results, strict=True) if result.leftovers]
    if not leftovers:
        return [], Counter()
    source = leftovers[0][0].source
    leftover_units, tasks = [], []
    for group in _group_leftovers(leftovers):
        name = fingerprint.of([unit.fingerprint for unit, _ in group], "tail")
        unit = StageUnit(source, name, (), group[0][0].epoch)
        leftover_units.append(unit)
        if runner.find_result(unit) is None:
            slices = tuple(SliceResult(split_files=files, books=[]) for _, files in group)
            tasks.append(Task(unit.fingerprint, JoinTask(source.name, slices, unit.stem)))
    leftover_stage = replace(stage, sources={source.name: replace(stage.sources[source.name], output=output)})
    runner.run_tasks(run_join, leftover_stage, tasks, "packing leftovers")
    counters: Counter[str] = Counter()
    for result in StageResults(runner, leftover_units):
        counters.update(result.books[-1].counters)
    return leftover_units, counters


def _group_leftovers(
    leftovers: Sequence[tuple[StageUnit, list[SplitFile]]],
) -> Iterator[list[tuple[StageUnit, list[SplitFile]]]]:
    """Group consecutive units of one epoch with about `_GROUP_BYTES` of leftovers."""
    group: list[tuple[StageUnit, list[SplitFile]]] = []
    num_bytes = 0
    for unit, files in leftovers:
        # Rows must not hold documents of two epochs: an epoch is complete before the next one begins.
        if group and group[-1][0].epoch != unit.epoch:
            yield group
            group, num_bytes = [], 0
        group.append((unit, files))
        num_bytes += sum(file.data.bytes for file in files)
        if num_bytes >= _GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group
