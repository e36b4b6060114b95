"""The exchange under all barriers: stages of tasks, each of which reads what the stage before has scattered.

A stage is a function of a `Partition`, which has the records of one partition or the batches of one unit, and returns
arrays by name. It knows no files. The exchange gives it a task for each partition, writes what it returns as its
`RecordWriting` says (scattered by ranges of numbers, by groups, or whole), and keeps a `Receipt`: a run that
was killed resumes. A worker holds one partition at a time, and the parent nothing for each record.

Pieces that would be too small to read are merged first (`merge.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.merge import MergeContext, make_merge_tasks, plan_join, plan_merge, run_join, run_merge
from gristmill.pipeline.barriers.record_files import (
    PartitionWriter,
    Receipt,
    RunWriter,
    read_records,
    scatter_records,
    write_records,
)
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.outputs.sinks import open_stream_sink
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.stages.stage_context import StageContext
from gristmill.pipeline.work_folder import stored_path, work_path
from gristmill.shards.stored_files import StoredFile
from gristmill.steps.deduplicate.partitions import grow_partition_bytes
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.barriers.base import BarrierRun
    from gristmill.pipeline.barriers.merge import MergePlan
    from gristmill.pipeline.barriers.record_files import PartitionedFile
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.storage.locations import Location

    Stage = Callable[["Partition"], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RecordWriting:
    """The way in which the records of one name are written."""

    kind: np.dtype[Any]
    by: tuple[str, ...] = ()
    """Scattered by the ranges of the numbers in these fields; once where two of them are in the same range."""
    num_partitions: int = 0
    """Scattered by groups modulo this number: the stage returns (records, groups), or an iterator of such pieces."""
    has_runs: bool = False
    """A piece is (numbers, groups, sizes): runs of numbers, each of which belongs to one group."""
    notes_bounds: bool = True
    """On a store receipts say where partitions begin."""
    block_bytes: int | None = None
    """How much is written at once, if it is more than usual."""
    is_published: bool = False
    """Lines of bytes, which are written to the output: only there a move is cheap."""
    is_stream: bool = False
    """Record batches, each a block of an Arrow stream; the receipt has `rows`, `bytes` and `checksums` of blocks."""


class Readable(Protocol):
    """Records that a stage reads."""

    def gather(self, number: int, count: int) -> NDArray[Any]:
        """Read all records of `count` consecutive partitions."""

    def pieces(self, number: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Read a partition piece by piece, each with the number of the first record of its stream."""


@dataclass(frozen=True, slots=True)
class Scattered:
    """Records in partitioned files."""

    root: Location
    kind: np.dtype[Any]
    files: tuple[PartitionedFile, ...]
    starts: NDArray[np.int64] | None = None
    """Of records with rows: the number that the first row of each file has."""
    num_partitions: int | None = None
    """Partitions to read; None: as many as the files have."""
    is_joined: bool = True
    """Small pieces are joined before they are read."""

    def __add__(self, other: Scattered) -> Scattered:
        return replace(self, files=self.files + other.files)

    @property
    def num_records(self) -> int:
        return sum(file.num_records for file in self.files)

    def gather(self, number: int, count: int) -> NDArray[Any]:
        places = [
            (file, start, stop)
            for file in self.files
            for start, stop in file.locate(self.root, self.kind, number, file.num_partitions, count)
        ]
        # Piece by piece: all of them and one array of all would be twice the memory, and twice as many fresh pages.
        records = np.empty(sum(stop - start for _, start, stop in places), self.kind)
        num_read = 0
        for file, start, stop in places:
            records[num_read : num_read + stop - start] = file.read_located(self.root, self.kind, start, stop)
            num_read += stop - start
        return records

    def pieces(self, number: int) -> Iterator[tuple[int, NDArray[Any]]]:
        starts = np.zeros(len(self.files), np.int64) if self.starts is None else self.starts
        for start, file in zip(starts.tolist(), self.files, strict=True):
            for records in file.read(self.root, self.kind, number, self.num_partitions):
                yield start, records


@dataclass(frozen=True, slots=True)
class Whole:
    """Records in one file for each task of the stage that wrote them."""

    root: Location
    kind: np.dtype[Any]
    files: tuple[StoredFile, ...]

    def gather(self, number: int, count: int) -> NDArray[Any]:  # noqa: ARG002
        return read_records(self.root, self.files[number], self.kind)

    def pieces(self, number: int) -> Iterator[tuple[int, NDArray[Any]]]:  # noqa: ARG002
        """Read the files of all tasks, each with its number."""
        for each, file in enumerate(self.files):
            yield each, read_records(self.root, file, self.kind)


def _ignore(*_: object, **__: object) -> None:
    """Report to no one."""


@dataclass(frozen=True, slots=True)
class Part:
    """The work of one task: a partition, or some consecutive ones; or the streams of a unit."""

    number: int
    num_partitions: int = 1
    source: str = ""
    inputs: tuple[StoredInput, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """The input of a stage for one task."""

    part: Part
    reads: Mapping[str, Readable]
    root: Location | None = None
    """The folder of the unit's streams."""
    at: Callable[[int], object] = _ignore
    """Reports which piece is in work."""
    report: Callable[..., object] = _ignore
    """Reports what was done: `records`, `bytes`."""

    @property
    def number(self) -> int:
        return self.part.number

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Read all records of this name."""
        return self.reads[name].gather(self.part.number, self.part.num_partitions)

    def pieces(self, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """Read records piece by piece, each with the number of the first record of its stream."""
        for number, piece in enumerate(self.reads[name].pieces(self.part.number)):
            self.at(number)
            yield piece

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read the documents of the unit, with the number of each batch's first row in it."""
        assert self.root is not None
        first_row = 0
        for stored in self.part.inputs:
            for number, batch in enumerate(stored.batches(self.root)):
                self.at(number)
                self.report(records=batch.num_rows, bytes=batch.nbytes)
                yield first_row, batch
                first_row += batch.num_rows


@dataclass(frozen=True, slots=True)
class Left:
    """The results of all tasks of a stage."""

    root: Location
    writes: Mapping[str, RecordWriting]
    receipts: Sequence[Receipt]

    def scattered(self, name: str, *, is_joined: bool = True) -> Scattered:
        """Find the records that were scattered under a name."""
        files = tuple(receipt.scattered[name] for receipt in self.receipts)
        return Scattered(self.root, self.writes[name].kind, files, is_joined=is_joined)

    def whole(self, name: str) -> Whole:
        """Find the records that were written whole, by task."""
        files = tuple(receipt.whole[name] for receipt in self.receipts)
        return Whole(self.root, self.writes[name].kind, files)

    def counts(self, name: str) -> list[int]:
        """List a count of all tasks."""
        return [receipt.counts[name] for receipt in self.receipts]

    def numbers(self, name: str) -> list[list[int]]:
        """List the numbers of all tasks."""
        return [receipt.numbers[name] for receipt in self.receipts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContext(StageContext):
    """The context that all tasks of a stage share."""

    name: str
    stage: Stage
    reads: Mapping[str, Readable]
    writes: Mapping[str, RecordWriting]
    borders: NDArray[np.int64]


def run_stage(task: Task, context: Context) -> Receipt:
    """Run a stage on one part; `context.state` is the `ExchangeContext`."""
    state: ExchangeContext = context.state
    part: Part = task.payload
    results = state.stage(Partition(part, state.reads, state.work, context.at, context.count))
    stem = open_stem(state.work, stored_path(task.id), state.run_id)
    receipt = Receipt(stage=state.name, scattered={}, whole={}, counts={}, numbers={})
    for name, result in results.items():
        write = state.writes.get(name)
        if write is not None and write.is_published:
            receipt.whole[name] = _write_lines(state, task.id, name, result)
        elif write is not None and write.is_stream:
            with open_stream_sink(result[0].schema, stem, framed=False) as sink:
                for batch in result:
                    sink.add(batch)
                [file] = sink.commit().split_files
            receipt.whole[name] = file.data
            blocks = {"rows": file.row_blocks, "bytes": file.data_blocks, "checksums": file.block_checksums}
            receipt.numbers.update(blocks)
        elif write is None and isinstance(result, int):
            receipt.counts[name] = int(result)
        elif write is None:
            receipt.numbers[name] = result.tolist() if isinstance(result, np.ndarray) else list(result)
        elif write.by:
            receipt.scattered[name] = _scatter_by_ranges(stem, name, result, write, state.borders)
        elif write.num_partitions:
            receipt.scattered[name] = _scatter_by_groups(stem, name, result, write)
        else:
            receipt.whole[name] = write_records(stem, f".{name}", result)
    return receipt


def _scatter_by_ranges(
    stem: OutputStem, name: str, records: NDArray[Any], write: RecordWriting, borders: NDArray[np.int64]
) -> PartitionedFile:
    first, *others = (np.searchsorted(borders, records[field], side="right") - 1 for field in write.by)
    all_records, partitions = [records], [first]
    for ranges in others:
        is_apart = ranges != first
        all_records.append(records[is_apart])
        partitions.append(ranges[is_apart])
    everything: NDArray[Any] = np.concatenate(all_records)
    return scatter_records(stem, f".{name}", everything, np.concatenate(partitions), len(borders) - 1)


def _scatter_by_groups(stem: OutputStem, name: str, result: Any, write: RecordWriting) -> PartitionedFile:
    block_bytes = {} if write.block_bytes is None else {"block_bytes": write.block_bytes}
    open_writer = RunWriter if write.has_runs else PartitionWriter
    with open_writer(stem, f".{name}", write.num_partitions, notes_bounds=write.notes_bounds, **block_bytes) as writer:
        for records, groups, *sizes in (result,) if isinstance(result, tuple) else result:
            partitions = (groups % groups.dtype.type(write.num_partitions)).astype(np.int64, copy=False)
            if isinstance(writer, RunWriter):
                writer.scatter_runs(records, partitions, *sizes)
            else:
                writer.scatter(records, partitions)
        return writer.close()


def _write_lines(state: ExchangeContext, task: str, name: str, lines: Sequence[bytes]) -> StoredFile:
    path = f"{work_path(open_stem(state.work, stored_path(task), state.run_id).name)}.{name}.jsonl"
    with PendingFile(state.root / path, state.run_id) as file:
        for line in lines:
            file.write(line)
        file.commit()
    return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)


class Exchange:
    """Runs the stages of one barrier, and merges what they leave wherever pieces would be small."""

    def __init__(
        self,
        run: BarrierRun,
        step: str,
        name: str = "",
        *,
        partition_bytes: int = 1 << 25,
        borders: NDArray[np.int64] | None = None,
    ) -> None:
        """Open the exchange of a step.

        Args:
            run: The run of the barrier.
            step: The name of the step, for progress.
            name: A fingerprint of all units; the names of tasks for partitions depend on it.
            partition_bytes: How large a partition should be.
            borders: The first number of each range, then the number after the last one.
        """
        self._context = run.context
        self._runner = run.runner
        self._step = step
        self._name = name
        self._partition_bytes = partition_bytes
        self._borders = np.zeros(1, np.int64) if borders is None else borders
        self.is_on_store = is_remote(run.context.work)

    def run(
        self,
        stage: Stage,
        parts: int | Sequence[tuple[str, Part]],
        desc: str,
        *,
        reads: Mapping[str, Readable] | None = None,
        writes: Mapping[str, RecordWriting] | None = None,
        num_partitions: int | None = None,
        label: str | None = None,
    ) -> Left:
        """Run a stage: by units, whose tasks are given by name, or by partitions.

        With `num_partitions` each task has some consecutive ones of these. `label` distinguishes stages of one
        function, whose tasks have other names.
        """
        writes = writes or {}
        label = f"{desc}/{label or ''}"
        reads = {name: self._join(f"{label}/{name}", each) for name, each in (reads or {}).items()}
        if isinstance(parts, int):
            parts = self._make_parts(label, parts, num_partitions or parts, writes)
        tasks = [Task(name, part) for name, part in parts]
        context = ExchangeContext.extend(
            self._context, name=desc, stage=stage, reads=reads, writes=writes, borders=self._borders
        )
        return Left(self._context.work, writes, self._run_tasks(run_stage, context, tasks, desc))

    def _make_parts(
        self, label: str, num_tasks: int, num_partitions: int, writes: Mapping[str, RecordWriting]
    ) -> list[tuple[str, Part]]:
        # Where ranges end depends on `partition_bytes`: what was scattered for others is of no use.
        described = [num_tasks, self._partition_bytes, [write.num_partitions for write in writes.values()]]
        parts = []
        for number in range(num_tasks):
            first, stop = (each * num_partitions // num_tasks for each in (number, number + 1))
            parts.append((fingerprint.of(self._name, label, number, described), Part(first, stop - first)))
        return parts

    def _run_tasks(
        self, function: Callable[[Task, Context], Receipt], context: StageContext, tasks: Sequence[Task], desc: str
    ) -> list[Receipt]:
        # A task alone is done sooner than a worker is ready for it.
        is_alone = len(tasks) == 1
        return self._runner.run_missing(function, context, tasks, Receipt, f"{self._step}: {desc}", in_process=is_alone)

    def grow_partitions(self, num_bytes: int, num_writers: int = 0) -> int:
        """Choose the size of partitions of this many bytes in all, so that they are read in large pieces."""
        piece_bytes = self._context.layout.min_piece_bytes
        return grow_partition_bytes(num_bytes, self._partition_bytes, num_writers, piece_bytes=piece_bytes)

    def merge(
        self,
        name: str,
        streams: Sequence[PartitionedFile],
        kind: np.dtype[Any],
        starts: NDArray[np.int64],
        num_partitions: int,
    ) -> Scattered:
        """Merge streams whose first rows have these numbers, if they would be read in small pieces."""
        plan = self._plan(plan_merge, streams, kind, num_partitions)
        if plan is None:
            return Scattered(self._context.work, kind, tuple(streams), starts, num_partitions, is_joined=False)
        files = self._run_merge(run_merge, plan, streams, starts, kind, name)
        starts = starts[[group.start for group in plan.groups]]
        return Scattered(self._context.work, kind, files, starts, plan.num_partitions, is_joined=False)

    def _join(self, name: str, records: Readable) -> Readable:
        """Join files that tasks have scattered, if the pieces of their partitions are small."""
        if not (isinstance(records, Scattered) and records.is_joined and records.files):
            return records
        plan = self._plan(plan_join, records.files, records.kind, records.files[0].num_partitions)
        if plan is None:
            return records
        starts = np.zeros(len(records.files), np.int64)
        return replace(records, files=self._run_merge(run_join, plan, records.files, starts, records.kind, name))

    def _plan(
        self,
        choose: Callable[..., MergePlan | None],
        files: Sequence[PartitionedFile],
        kind: np.dtype[Any],
        num_partitions: int,
    ) -> MergePlan | None:
        sizes = [file.num_records * kind.itemsize for file in files]
        return choose(sizes, num_partitions, self._partition_bytes, self._context.layout, on_store=self.is_on_store)

    def _run_merge(
        self,
        function: Callable[[Task, Context], Receipt],
        plan: MergePlan,
        files: Sequence[PartitionedFile],
        starts: NDArray[np.int64],
        kind: np.dtype[Any],
        name: str,
    ) -> tuple[PartitionedFile, ...]:
        # Where ranges end, and so what is in files, depends on `partition_bytes`.
        described = fingerprint.of(self._name, name, len(files), self._partition_bytes)
        tasks = make_merge_tasks(plan, files, starts, described)
        context = MergeContext.extend(self._context, kind=kind, num_partitions=plan.num_partitions)
        merged = self._run_tasks(function, context, tasks, "merging")
        return tuple(receipt.scattered["merged"] for receipt in merged)
