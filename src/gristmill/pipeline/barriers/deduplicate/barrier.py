"""Between two legs: all documents in, for each source the units of its next leg out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from gristmill.core.records import TEXT_TYPE
from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.deduplicate.compare import ComparedPairs, CompareTask, run_compare, run_compare_pairs
from gristmill.pipeline.barriers.deduplicate.decision import Decision
from gristmill.pipeline.barriers.deduplicate.documents import DedupContext, Documents, DocumentUnit
from gristmill.pipeline.barriers.deduplicate.match import (
    CandidatePairs,
    CopyPairs,
    PartitionTask,
    pack_bits,
    run_candidates,
    run_copies,
)
from gristmill.pipeline.barriers.deduplicate.record_files import ALIKE, DIGEST, KEY, PAIR, RecordWriter, read_records
from gristmill.pipeline.barriers.deduplicate.reference_units import read_against_units
from gristmill.pipeline.barriers.deduplicate.sign import SignedUnit, SignTask, run_sign
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.sink import OutputStem
from gristmill.pipeline.work_folder import WORK_FOLDER
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.clusters import Removals, SimilarityGraph, merge_removals, verify_removals
from gristmill.steps.deduplicate.similarity import SimilarPairs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec
    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.barrier_units import BarrierUnit
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.runner import StageRunner, StageUnit
    from gristmill.pipeline.stages.slice_task import StageContext
    from gristmill.shards.manifest import Deduplicated
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

    T = TypeVar("T", bound=msgspec.Struct)

_BITS_AT_ONCE = 1 << 23
_PAIRS_PER_TASK = 1 << 17


def deduplicate_units(
    step: Deduplicate, plan: Plan, runner: StageRunner, stage: StageContext, units: Sequence[BarrierUnit]
) -> tuple[dict[str, list[StageUnit]], Deduplicated]:
    """By source the units of its next leg, and what the manifest says of the step.

    Raises:
        TooManyDuplicatesError: A limit of the step is passed.
    """
    against = read_against_units(step, plan, runner, stage)
    decision = Deduplication(step, runner, stage, [*against, *units]).run()
    decision.check_limits()
    return decision.make_next_units(), decision.entry()


class Deduplication:
    """One step over all units of all sources that come to it."""

    def __init__(
        self, step: Deduplicate, runner: StageRunner, stage: StageContext, units: Sequence[BarrierUnit]
    ) -> None:
        self._step = step
        self._runner = runner
        self._units = sorted(units, key=self._make_sort_key)  # stable: those of a source stay in order
        self._num_documents = sum(unit.num_rows for unit in units)
        self._code = fingerprint.describe_steps([step])
        self._whole = fingerprint.of([unit.fingerprint for unit in self._units], self._code)
        self._stage = DedupContext(
            stage.root,
            stage.run_id,
            stage.seed,
            stage.max_quarantine,
            stage.sources,
            stage.keep_dropped,
            stage.watch,
            step,
        )
        self._counts: dict[str, int] = {}

    def _make_sort_key(self, unit: BarrierUnit) -> tuple[bool, int, str]:
        source = unit.unit.source.name
        return not unit.is_reference, self._priority(source), source

    def _priority(self, source: str) -> int:
        prefer = self._step.prefer
        return prefer.index(source) if source in prefer else len(prefer)

    def run(self) -> Decision:
        """Who stays and who goes; the same whatever the tasks, the workers and the sizes of partitions."""
        signed = self._sign_units()
        self._stage = replace(self._stage, documents=self._number_documents(signed))
        copies = self._find_copies(signed)
        near = Removals.none()
        if self._step.kind == "near" and signed:
            near = self._find_near_duplicates(signed, copies)
        num_fixed = self._stage.known.num_reference
        is_open = copies.documents >= num_fixed
        gone = Removals(copies.documents[is_open], copies.survivors[is_open], copies.similarities[is_open])
        removals, is_exact = merge_removals(near, gone)
        place = OutputStem(self._stage.root, self._stem("removals"), self._stage.run_id)
        return Decision(self._step, self._stage.known, self._units, removals, is_exact, self._counts, place)

    def _num_partitions(self, record_bytes: int, records_each: int = 1) -> int:
        num_bytes = self._num_documents * records_each * record_bytes
        return max(1, -(-num_bytes // self._step.partition_bytes))

    def _sign_units(self) -> list[SignedUnit]:
        num_digests = self._num_partitions(DIGEST.itemsize)
        num_keys = self._num_partitions(KEY.itemsize, self._step.bands)
        described = [self._step.kind, self._step.ngram, self._step.bands, self._step.rows, num_digests, num_keys]
        if self._step.kind == "near" and self._units:
            # Kernels that are not in the cache yet are compiled here once, and not by every worker at the same time.
            self._step.minhash.sign(pa.array(["warm"], TEXT_TYPE))
        tasks = []
        for unit in self._units:
            name = fingerprint.of(unit.fingerprint, "sign", described)
            tasks.append(Task(name, SignTask(unit.inputs, f"{WORK_FOLDER}/work/{name}", num_digests, num_keys)))
        return self._run_tasks(run_sign, tasks, SignedUnit, "signatures")

    def _number_documents(self, signed: Sequence[SignedUnit]) -> Documents:
        units = [
            DocumentUnit(unit.unit.source.name, unit.num_rows, found.documents.path, found.sketches.path, unit.inputs)
            for unit, found in zip(self._units, signed, strict=True)
        ]
        return Documents(
            root=self._stage.root,
            units=tuple(units),
            starts=np.cumsum([0, *(unit.num_rows for unit in units)], dtype=np.int64),
            # What always stays comes before all that may go.
            priorities=np.array(
                [0 if unit.is_reference else 1 + self._priority(unit.unit.source.name) for unit in self._units],
                np.uint64,
            ),
            num_reference=sum(unit.num_rows for unit in self._units if unit.is_reference),
            prefer_longest=self._step.prefer_longest,
            num_permutations=self._step.bands * self._step.rows,
        )

    def _find_copies(self, signed: Sequence[SignedUnit]) -> Removals:
        """All documents that have the text of a better one."""
        if not signed:
            return Removals.none()
        inputs = tuple(unit.digests for unit in signed)
        tasks = self._make_partition_tasks("copies", inputs[0].num_partitions)
        self._stage = replace(self._stage, inputs=inputs)
        found = [
            read_records(self._stage.root, part.copies, PAIR)
            for part in self._run_tasks(run_copies, tasks, CopyPairs, "copies")
        ]
        pairs = np.concatenate(found)
        order = np.argsort(pairs["second"])
        return Removals(pairs["second"][order], pairs["first"][order], np.ones(len(pairs)))

    def _find_near_duplicates(self, signed: Sequence[SignedUnit], copies: Removals) -> Removals:
        """All documents that are alike to a better one that stays, copies aside."""
        inputs = tuple(unit.keys for unit in signed)
        self._stage = replace(
            self._stage, inputs=inputs, exact_copies_bitmap=self._write_copies_bitmap(copies.documents)
        )
        tasks = self._make_partition_tasks("candidates", inputs[0].num_partitions)
        candidates = self._run_tasks(run_candidates, tasks, CandidatePairs, "candidates")
        self._counts = {
            "band_groups": sum(part.num_groups for part in candidates),
            "largest_band_group": max(part.largest_group for part in candidates),
            "capped_band_groups": sum(part.num_capped for part in candidates),
        }
        self._stage = replace(self._stage, inputs=tuple(part.pairs for part in candidates))
        tasks = self._make_partition_tasks("compare", inputs[0].num_partitions)
        alike = self._count_alike(self._run_tasks(run_compare, tasks, ComparedPairs, "comparing"))
        missing = self._make_pair_tasks(
            SimilarityGraph(alike.pairs, self._stage.known.ranks).missing_pairs(), "survivors"
        )
        more = self._count_alike(self._run_tasks(run_compare_pairs, missing, ComparedPairs, "survivors"))
        return self._choose_removals(SimilarPairs.concatenate(alike, more))

    def _choose_removals(self, alike: SimilarPairs) -> Removals:
        documents, num_rounds = self._stage.known, itertools.count(1)
        if self._step.verify == "signature":
            return SimilarityGraph(alike.pairs, documents.ranks).removals(alike.similarities, documents.num_reference)

        def compare_texts(pairs: Pairs) -> NDArray[np.float64]:
            tasks = self._make_pair_tasks(pairs, f"verify {next(num_rounds)}", by_text=True)
            compared = self._run_tasks(run_compare_pairs, tasks, ComparedPairs, "verifying")
            self._counts["pairs_by_text"] += len(pairs)
            return self._read_alike(compared).similarities

        return verify_removals(alike, documents.ranks, documents.num_reference, self._step.threshold, compare_texts)

    def _write_copies_bitmap(self, copies: NDArray[np.int64]) -> str:
        """A file with a bit for each document, set for these."""
        place = OutputStem(self._stage.root, self._stem("hidden"), self._stage.run_id)
        with RecordWriter(place, ".bits") as file:
            for start in range(0, self._num_documents, _BITS_AT_ONCE):
                file.add(pack_bits(copies, start, min(start + _BITS_AT_ONCE, self._num_documents)))
            return file.commit().path

    def _make_pair_tasks(self, pairs: Pairs, stage: str, *, by_text: bool = False) -> list[Task]:
        tasks = []
        for number, start in enumerate(range(0, len(pairs), _PAIRS_PER_TASK)):
            name = fingerprint.of(self._whole, stage, number)
            some = pairs.slice(start, start + _PAIRS_PER_TASK)
            tasks.append(Task(name, CompareTask(some, f"{WORK_FOLDER}/work/{name}", by_text)))
        return tasks

    def _count_alike(self, compared: Sequence[ComparedPairs]) -> SimilarPairs:
        self._counts["pairs"] = self._counts.get("pairs", 0) + sum(part.num_pairs for part in compared)
        self._counts["pairs_by_text"] = self._counts.get("pairs_by_text", 0) + sum(
            part.num_by_text for part in compared
        )
        return self._read_alike(compared)

    def _read_alike(self, compared: Sequence[ComparedPairs]) -> SimilarPairs:
        """What tasks have compared, in their order."""
        parts = [read_records(self._stage.root, part.alike, ALIKE) for part in compared]
        found = np.concatenate([np.empty(0, ALIKE), *parts])
        pairs = Pairs(found["first"].copy(), found["second"].copy())
        return SimilarPairs(pairs, found["similarity"].copy(), found["is_exact"].copy())

    def _make_partition_tasks(self, stage: str, num_partitions: int) -> list[Task]:
        tasks = []
        for number in range(num_partitions):
            name = fingerprint.of(self._whole, stage, number, num_partitions)
            tasks.append(Task(name, PartitionTask(number, f"{WORK_FOLDER}/work/{name}")))
        return tasks

    def _stem(self, name: str) -> str:
        return f"{WORK_FOLDER}/work/{fingerprint.of(self._whole, name)}"

    def _run_tasks(self, function: Callable[..., T], tasks: Sequence[Task], kind: type[T], desc: str) -> list[T]:
        """Of all tasks in order; those that have a receipt are not run again."""
        undone = [task for task in tasks if self._runner.find_receipt(task.id, kind) is None]
        # A task alone is done sooner than a worker is ready for it.
        self._runner.run_tasks(function, self._stage, undone, f"deduplicate: {desc}", here=len(tasks) == 1)
        found = [self._runner.find_receipt(task.id, kind) for task in tasks]
        return [result for result in found if result is not None]
