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
    from collections.abc import Iterable, Sequence

    from gristmill.pipeline.legs import LegRunner
    from gristmill.pipeline.work import Stage

_UNITS_PER_TAIL = 4096
"""The leftovers of so many units are packed by one task: at most as many rows, half full."""


def pack_leftovers(
    runner: LegRunner, stage: Stage, units: Sequence[UnitWork], results: Iterable[PartResult]
) -> tuple[list[UnitWork], Counter[str]]:
    """More units of the same source, made and with their receipts, and what they add to the account of `pack`."""
    carried = [(unit, result.leftovers) for unit, result in zip(units, results, strict=True) if result.leftovers]
    tails, tasks = [], []
    for first in range(0, len(carried), _UNITS_PER_TAIL):
        some = carried[first : first + _UNITS_PER_TAIL]
        source = some[0][0].source
        tail = UnitWork(source, fingerprint.of([unit.fingerprint for unit, _ in some], "tail"), ())
        tails.append(tail)
        if runner.result(tail) is None:
            leftovers = tuple(PartResult(parts=parts, books=[]) for _, parts in some)
            tasks.append(Task(tail.fingerprint, JoinTask(source.name, leftovers, tail.stem, is_tail=True)))
    runner.run_all(run_join, stage, tasks, "packing what is left over")
    measures: Counter[str] = Counter()
    for result in UnitResults(runner, tails):
        measures.update(Account.from_dict(result.books[-1]).measures)
    return tails, measures
