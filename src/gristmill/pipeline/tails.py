"""What packed units have left over, packed once more: the last shards of a source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gristmill.core.books import Account
from gristmill.engine.tasks import Task
from gristmill.pipeline import fingerprint
from gristmill.pipeline.join import JoinTask, run_join
from gristmill.pipeline.legs import UnitResults, UnitWork
from gristmill.pipeline.work import PartResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gristmill.pipeline.legs import LegRunner
    from gristmill.pipeline.sink import Part
    from gristmill.pipeline.work import Stage

_TAIL_BYTES = 64 << 20
"""So many leftovers are packed by one task."""


def pack_leftovers(
    runner: LegRunner, stage: Stage, units: Sequence[UnitWork], results: Iterable[PartResult]
) -> tuple[list[UnitWork], Counter[str]]:
    """More units of the same source, made and with their receipts, and what they add to the account of `pack`."""
    carried = [(unit, result.leftovers) for unit, result in zip(units, results, strict=True) if result.leftovers]
    tails, tasks = [], []
    for some in _groups(carried):
        source = some[0][0].source
        name = fingerprint.of([unit.fingerprint for unit, _ in some], "tail")
        tail = UnitWork(source, name, (), some[0][0].epoch)
        tails.append(tail)
        if runner.result(tail) is None:
            leftovers = tuple(PartResult(parts=parts, books=[]) for _, parts in some)
            tasks.append(Task(tail.fingerprint, JoinTask(source.name, leftovers, tail.stem, is_tail=True)))
    runner.run_all(run_join, stage, tasks, "packing what is left over")
    measures: Counter[str] = Counter()
    for result in UnitResults(runner, tails):
        measures.update(Account.from_dict(result.books[-1]).measures)
    return tails, measures


def _groups(carried: Sequence[tuple[UnitWork, list[Part]]]) -> Iterator[list[tuple[UnitWork, list[Part]]]]:
    """Consecutive units of one epoch with about `_TAIL_BYTES` of leftovers."""
    group: list[tuple[UnitWork, list[Part]]] = []
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
