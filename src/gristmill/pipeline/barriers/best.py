"""The barrier of `keep_best` and `cap`: all documents sorted by group and key, of which each group keeps a beginning.

A sample sort over the exchange: units sort 32 bytes a document and tell some of them; these cut the order into
partitions of about 64 MiB, however large a group is. Each partition tells the size of its first and last
group, the parent adds them up, and then each partition knows the rank of every document. The parent holds 64 samples of
a unit, and nothing for each document.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from gristmill.core.records import select_rows
from gristmill.core.splits import TRAIN
from gristmill.pipeline.barriers.base import BarrierOutcome, list_stored_inputs, list_training_inputs, pair_with_notes
from gristmill.pipeline.barriers.exchange import Exchange, Part, RecordWriting
from gristmill.pipeline.barriers.record_files import make_records, read_records
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.shards.manifest import KeptBest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.exchange import Partition
    from gristmill.pipeline.barriers.record_files import Receipt
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.shards.stored_files import StoredFile
    from gristmill.steps.keep_best import Cap, KeepBest
    from gristmill.storage.locations import Location

RANKED = np.dtype([("group", "<u8"), ("key", "<u8"), ("number", "<i8"), ("amount", "<i8")])
ROW = np.dtype([("row", "<u4")])
_NUM_SAMPLES = 64
_NUM_BORDERS = 23
_ORDER = ("group", "key", "number")


@dataclass(frozen=True, slots=True)
class BestBarrier:
    """Keeps the best documents of each group; what is held out stays as it is."""

    step: KeepBest | Cap

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        units = [pair for source in sorted(sources, key=lambda each: each.name) for pair in source.unit_results()]
        inputs = [list_training_inputs(result) for _, result in units]
        receipts, best = self._find_removed([unit for unit, _ in units], inputs, run)
        removed = iter(receipts)
        next_units: dict[str, list[StageUnit]] = {source.name: [] for source in sources}
        for unit, result in units:
            file = next(removed).whole["removed"]
            streams: list[StoredInput | WithoutRows] = []
            first_row = 0
            for stored in list_stored_inputs(result):
                if stored.split != TRAIN:
                    streams.append(stored)
                    continue
                streams.append(WithoutRows(stored, file, first_row, self.step.reason))
                first_row += stored.num_rows
            if streams:
                name = fingerprint.of(unit.fingerprint, self.step.name, file.xxh3)
                next_units[unit.source.name].append(StageUnit(unit.source, name, tuple(streams)))
        return BarrierOutcome(units=next_units, entry_account=self.step.name, best=best)

    def _find_removed(
        self, units: Sequence[StageUnit], inputs: Sequence[Sequence[StoredInput]], run: BarrierRun
    ) -> tuple[Sequence[Receipt], KeptBest | None]:
        """Rank all documents, and gather by unit the rows that go; tell where the values were cut."""
        if not units:
            return [], None
        described = msgspec.to_builtins(self.step)
        parts = []
        for number, (unit, streams) in enumerate(zip(units, inputs, strict=True)):
            name = fingerprint.of(unit.fingerprint, "rank", described, unit.source.name)
            parts.append((name, Part(number, source=unit.source.name, inputs=tuple(streams))))
        exchange = Exchange(run, self.step.name, fingerprint.of([name for name, _ in parts]))
        ranked = exchange.run(partial(rank_unit, self.step), parts, "ranking", writes={"ranked": RecordWriting(RANKED)})
        starts = np.cumsum([0, *(sum(stored.num_rows for stored in streams) for streams in inputs)])
        num_bytes = int(starts[-1]) * RANKED.itemsize
        cuts = choose_cuts(ranked.numbers("samples"), starts, num_bytes // run.plan.layout.bucket_bytes + 1)
        num_partitions = len(cuts) + 1
        scattered = exchange.run(
            partial(scatter_ranked, cuts, starts),
            len(units),
            "scattering",
            reads={"ranked": ranked.whole("ranked")},
            writes={"ranked": RecordWriting(RANKED, num_partitions=num_partitions)},
        )
        reads = {"ranked": scattered.scattered("ranked")}
        counted = exchange.run(count_ends, num_partitions, "counting", reads=reads)
        before, sizes = add_up_ends(counted.numbers("ends"))
        borders = choose_borders(self.step, ranked.numbers("samples"))
        chosen = exchange.run(
            partial(choose_best, self.step, starts, before, sizes, borders),
            num_partitions,
            "choosing",
            reads=reads,
            writes={"removed": RecordWriting(ROW, num_partitions=len(units))},
        )
        reads = {"removed": chosen.scattered("removed")}
        gathered = exchange.run(
            gather_rows, len(units), "removals", reads=reads, writes={"removed": RecordWriting(ROW)}
        )
        return gathered.receipts, self._describe_cut(borders, chosen.numbers("bars"), chosen.numbers("worst"))

    def _describe_cut(
        self, borders: Sequence[float], bars: Sequence[Sequence[int]], worst: Sequence[Sequence[int]]
    ) -> KeptBest | None:
        """Describe the values that were kept and dropped, from the counts of all partitions."""
        if not borders:
            return None
        num_kept, num_dropped = np.sum(bars, axis=0).reshape(2, -1).tolist()
        keys = [key for of_partition in worst for key in of_partition]
        threshold = float(self.step.find_values(np.array([max(keys)], np.uint64))[0]) if keys else None
        return KeptBest(by=self.step.by, threshold=threshold, borders=list(borders), kept=num_kept, dropped=num_dropped)


def rank_unit(step: KeepBest | Cap, partition: Partition) -> dict[str, Any]:
    """Describe the documents of a unit, sorted, and tell some of them. Numbers count from the start of the unit."""
    pieces = [np.empty(0, RANKED)]
    for first_row, batch in partition.batches():
        groups = step.find_groups(batch, partition.part.source)
        numbers = np.arange(first_row, first_row + batch.num_rows)
        keys, amounts = step.find_keys(batch), step.find_amounts(batch)
        pieces.append(make_records(RANKED, group=groups, key=keys, number=numbers, amount=amounts))
    ranked = _sort(np.concatenate(pieces))
    places = np.unique(np.linspace(0, max(len(ranked) - 1, 0), _NUM_SAMPLES, dtype=np.int64))
    samples = ranked[places[places < len(ranked)]]
    return {"ranked": ranked, "samples": [value for name in _ORDER for value in samples[name].tolist()]}


def _sort(ranked: NDArray[Any]) -> NDArray[Any]:
    return ranked[np.lexsort((ranked["number"], ranked["key"], ranked["group"]))]


def choose_cuts(
    samples: Sequence[Sequence[int]], starts: NDArray[np.int64], num_partitions: int
) -> list[tuple[int, int, int]]:
    """Choose where partitions begin: some of the samples of all units, with numbers over all units."""
    everything = []
    for sample, start in zip(samples, starts.tolist(), strict=False):
        third = len(sample) // 3
        ranked = zip(sample[:third], sample[third : 2 * third], sample[2 * third :], strict=True)
        everything += [(group, key, start + number) for group, key, number in ranked]
    everything.sort()
    places = {len(everything) * number // num_partitions for number in range(1, num_partitions)}
    return [everything[place] for place in sorted(places - {0})]


def scatter_ranked(
    cuts: Sequence[tuple[int, int, int]], starts: NDArray[np.int64], partition: Partition
) -> dict[str, Any]:
    """Scatter the documents of a unit by partitions of the whole order; numbers count over all units from here on."""
    ranked = partition["ranked"]
    ranked["number"] += starts[partition.number]
    bounds = [0, *(_find_place(ranked, cut) for cut in cuts), len(ranked)]
    return {"ranked": (ranked, np.repeat(np.arange(len(cuts) + 1), np.diff(bounds)))}


def _find_place(ranked: NDArray[Any], cut: tuple[int, int, int]) -> int:
    """Find the first document that does not come before a cut."""
    start, stop = 0, len(ranked)
    for name, value in zip(_ORDER, cut, strict=True):
        column = ranked[name][start:stop]
        wanted = column.dtype.type(value)
        start, stop = (start + int(np.searchsorted(column, wanted, side)) for side in ("left", "right"))
    return start


def count_ends(partition: Partition) -> dict[str, Any]:
    """Count the documents and amounts of the first and the last group of a partition."""
    ranked = partition["ranked"]
    ends = []
    for group in (ranked["group"].min(), ranked["group"].max()) if len(ranked) else ():
        in_group = ranked["group"] == group
        ends += [int(group), int(np.count_nonzero(in_group)), int(ranked["amount"][in_group].sum())]
    return {"ends": np.array(ends, np.uint64)}


def add_up_ends(ends: Sequence[Sequence[int]]) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """Add up the groups at the borders of partitions.

    Returns for each partition how many documents, and how much, of its first group come before it; and the sizes of
    all groups at borders.

    >>> add_up_ends([[5, 2, 2, 7, 3, 30], [7, 4, 40, 7, 4, 40], [], [7, 1, 10, 9, 1, 1]])
    ([(0, 0), (3, 30), (0, 0), (7, 70)], {5: 2, 7: 8, 9: 1})
    """
    before: list[tuple[int, int]] = []
    totals: dict[int, tuple[int, int]] = {}
    for numbers in ends:
        before.append(totals.get(numbers[0], (0, 0)) if numbers else (0, 0))
        for group, count, amount in {tuple(numbers[start : start + 3]) for start in range(0, len(numbers), 3)}:
            known = totals.get(group, (0, 0))
            totals[group] = known[0] + count, known[1] + amount
    return before, {group: count for group, (count, _) in sorted(totals.items())}


def choose_best(
    step: KeepBest | Cap,
    starts: NDArray[np.int64],
    before: Sequence[tuple[int, int]],
    border_sizes: Mapping[int, int],
    borders: Sequence[float],
    partition: Partition,
) -> dict[str, Any]:
    """Find the documents of a partition that go, by unit; count the values of those that stay and that go."""
    ranked = _sort(partition["ranked"])
    groups, firsts, sizes = np.unique(ranked["group"], return_index=True, return_counts=True)
    amounts = np.cumsum(ranked["amount"])
    amounts -= np.repeat(amounts[firsts] - ranked["amount"][firsts], sizes)
    ranks = np.arange(len(ranked)) - np.repeat(firsts, sizes)
    all_sizes = sizes.astype(np.int64)
    if len(groups):  # the first and the last group may begin before the partition, and go on after it
        ranks[: sizes[0]] += before[partition.number][0]
        amounts[: sizes[0]] += before[partition.number][1]
        all_sizes[[0, -1]] = [border_sizes[group] for group in groups[[0, -1]].tolist()]
    is_removed = ~step.find_kept(ranks, amounts, np.repeat(all_sizes, sizes)) & (ranked["group"] != 0)
    numbers = ranked["number"][is_removed]
    units = np.searchsorted(starts, numbers, side="right") - 1
    removed = make_records(ROW, row=numbers - starts[units]), units
    if not borders:
        return {"removed": removed, "bars": np.empty(0, np.int64), "worst": np.empty(0, np.uint64)}
    values = step.find_values(ranked["key"])
    has_value = ~np.isnan(values)
    bars = np.searchsorted(borders, values, side="right") + is_removed * (len(borders) + 1)
    counts = np.bincount(bars[has_value], minlength=2 * (len(borders) + 1))
    return {"removed": removed, "bars": counts, "worst": np.sort(ranked["key"][has_value & ~is_removed])[-1:]}


def choose_borders(step: KeepBest | Cap, samples: Sequence[Sequence[int]]) -> list[float]:
    """Choose where bars of a histogram begin: evenly between the values of nearly all samples, in four digits."""
    keys = [key for sample in samples for key in sample[len(sample) // 3 : 2 * len(sample) // 3]]
    values = step.find_values(np.array(keys, np.uint64))
    values = values[np.isfinite(values)]
    if not len(values):
        return []
    low, high = np.quantile(values, [0.01, 0.99], method="nearest")
    return sorted({float(f"{border:.4g}") for border in np.linspace(low, high, _NUM_BORDERS).tolist()})


def gather_rows(partition: Partition) -> dict[str, Any]:
    """Sort the rows of a unit that go."""
    return {"removed": np.sort(partition["removed"])}


@dataclass(frozen=True, slots=True)
class WithoutRows:
    """A stored stream without some of its records."""

    stored: StoredInput
    removed: StoredFile
    """The rows of the whole unit that go."""
    first_row: int
    """The number of the stream's first record in the unit."""
    reason: str

    is_copy: ClassVar[bool] = False
    counters: ClassVar[Mapping[str, int]] = {}

    @property
    def num_rows(self) -> int:
        return self.stored.num_rows

    def count_dropped(self, num_records: int) -> Mapping[str, int]:
        """Count the records that go."""
        return {self.reason: self.num_rows - num_records} if num_records < self.num_rows else {}

    def batches(self, root: Location, seed: int = 0) -> Iterator[pa.RecordBatch]:
        """Read the records that stay."""
        for batch, is_kept in self._read(root, seed):
            yield select_rows(batch, is_kept)

    def dropped_batches(self, root: Location, seed: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Read the records that go, with their reason."""
        for batch, is_kept in self._read(root, seed):
            yield self.reason, select_rows(batch, ~is_kept)

    def _read(self, root: Location, seed: int) -> Iterator[tuple[pa.RecordBatch, NDArray[np.bool_]]]:
        removed = read_records(root, self.removed, ROW)
        for batch, in_batch in pair_with_notes(self.stored.batches(root, seed), removed, self.first_row):
            is_kept = np.ones(batch.num_rows, np.bool_)
            is_kept[in_batch["row"]] = False
            yield batch, is_kept
