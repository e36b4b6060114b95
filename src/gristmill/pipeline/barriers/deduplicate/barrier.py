"""The barrier of `deduplicate`: all documents of its sources in, the units of each source's next stage out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.base import BarrierOutcome
from gristmill.pipeline.barriers.deduplicate.barrier_units import collect_barrier_units
from gristmill.pipeline.barriers.deduplicate.compare import ComparedPairs, CompareTask, run_compare, run_compare_pairs
from gristmill.pipeline.barriers.deduplicate.contexts import (
    CandidateContext,
    CompareContext,
    PartitionContext,
    SignContext,
)
from gristmill.pipeline.barriers.deduplicate.decision import Decision
from gristmill.pipeline.barriers.deduplicate.documents import Documents, DocumentUnit
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
from gristmill.pipeline.barriers.deduplicate.sign import (
    DocumentSigner,
    SignedStream,
    SignResult,
    SignTask,
    run_sign,
)
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.work_folder import stored_path, work_path
from gristmill.steps.deduplicate.candidates import Pairs
from gristmill.steps.deduplicate.clusters import Removals, SimilarityGraph, merge_removals, verify_removals
from gristmill.steps.deduplicate.similarity import SimilarPairs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec
    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.deduplicate.barrier_units import BarrierUnit
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

    T = TypeVar("T", bound=msgspec.Struct)

_BITS_AT_ONCE = 1 << 23
_PAIRS_PER_TASK = 1 << 17


@dataclass(frozen=True, slots=True)
class DeduplicateBarrier:
    """Removes duplicates over all sources that come to one step, and lists them for the manifest.

    Raises `TooManyDuplicatesError` where a limit of the step is exceeded.
    """

    step: Deduplicate

    @property
    def annotator(self) -> DocumentSigner:
        return DocumentSigner(self.step)

    def pass_sources(self, sources: Sequence[BarrierSource], run: BarrierRun) -> BarrierOutcome:
        units = read_against_units(self.step, run)
        for source in sources:
            units += collect_barrier_units(source.unit_results())
        decision = Deduplication(self.step, run, units).run()
        decision.check_limits()
        return BarrierOutcome(
            units=decision.make_next_units(),
            entry_account=self.step.name,
            deduplicated=decision.make_manifest_entry(),
        )


class Deduplication:
    """One step over all units of all sources that come to it."""

    def __init__(self, step: Deduplicate, run: BarrierRun, units: Sequence[BarrierUnit]) -> None:
        self._step = step
        self._runner = run.runner
        self._units = sorted(units, key=self._make_sort_key)  # stable: units of a source stay in order
        self._num_documents = sum(unit.num_rows for unit in units)
        self._fingerprint = fingerprint.of(
            [unit.fingerprint for unit in self._units], fingerprint.describe_steps([step])
        )
        self._sign_context = SignContext.extend(run.context, step=step)
        self._counts: dict[str, int] = {}

    def _make_sort_key(self, unit: BarrierUnit) -> tuple[bool, int, str]:
        source = unit.unit.source.name
        return not unit.is_reference, self._find_priority(source), source

    def _find_priority(self, source: str) -> int:
        prefer = self._step.prefer
        return prefer.index(source) if source in prefer else len(prefer)

    def run(self) -> Decision:
        """Decide which documents stay; the same whatever the tasks, the workers and the sizes of partitions."""
        signed = self._sign_streams()
        documents = self._number_documents(signed)
        context = CompareContext.extend(self._sign_context, documents=documents)
        copies = self._find_copies(signed, context)
        near = Removals.none()
        if self._step.kind != "exact" and signed:
            near = self._find_near_duplicates(signed, copies, context)
        # Reference documents stay even where they are copies of each other.
        is_removable = copies.documents >= documents.num_reference
        exact = Removals(
            copies.documents[is_removable], copies.survivors[is_removable], copies.similarities[is_removable]
        )
        removals, is_exact = merge_removals(near, exact)
        return Decision(
            self._step,
            documents,
            self._units,
            removals,
            is_exact,
            self._counts,
            self._make_stem("removals"),
            open_stem(context.root, work_path(fingerprint.of(self._fingerprint, "removals")), context.run_id),
        )

    def _count_partitions(self, record_bytes: int, records_per_document: int = 1) -> int:
        """Count the partitions of at most `partition_bytes`: a power of two, as `PartitionedFile.read` needs it."""
        num_bytes = self._num_documents * records_per_document * record_bytes
        return 1 << max(0, -(-num_bytes // self._step.partition_bytes) - 1).bit_length()

    def _sign_streams(self) -> list[SignedStream]:
        """Give the signatures of all streams; those that the stage has not signed for this step are signed here."""
        signer = DocumentSigner(self._step)
        annotations = [unit.annotation for unit in self._units]
        unsigned = [number for number, known in enumerate(annotations) if known is None or known.made_by != signer.name]
        tasks = []
        for number in unsigned:
            stream = self._units[number].stream
            name = fingerprint.of(stream.path, signer.name)
            tasks.append(Task(name, SignTask(stream, stored_path(name))))
        results = self._run_tasks(run_sign, self._sign_context, tasks, SignResult, "signatures")
        for number, result in zip(unsigned, results, strict=True):
            annotations[number] = result.annotation
        return [SignedStream.of(annotation) for annotation in annotations if annotation is not None]

    def _number_documents(self, signed: Sequence[SignedStream]) -> Documents:
        units = [
            DocumentUnit(unit.unit.source.name, unit.num_rows, files.documents.path, files.sketches.path, unit.stream)
            for unit, files in zip(self._units, signed, strict=True)
        ]
        return Documents(
            root=self._sign_context.work,
            units=tuple(units),
            starts=np.cumsum([0, *(unit.num_rows for unit in units)], dtype=np.int64),
            # Reference documents come before all that may be removed.
            priorities=np.array(
                [0 if unit.is_reference else 1 + self._find_priority(unit.unit.source.name) for unit in self._units],
                np.uint64,
            ),
            num_reference=sum(unit.num_rows for unit in self._units if unit.is_reference),
            prefer_longest=self._step.prefer_longest,
            num_permutations=self._step.sketch_bytes,
        )

    def _find_copies(self, signed: Sequence[SignedStream], context: CompareContext) -> Removals:
        """Find all documents that have the text of a better one."""
        if not signed:
            return Removals.none()
        inputs = tuple(unit.digests for unit in signed)
        num_partitions = self._count_partitions(DIGEST.itemsize)
        tasks = self._make_partition_tasks("copies", num_partitions)
        partitions = PartitionContext.extend(context, inputs=inputs, num_partitions=num_partitions)
        results = self._run_tasks(run_copies, partitions, tasks, CopyPairs, "copies")
        pairs = np.concatenate([read_records(context.work, result.copies, PAIR) for result in results])
        order = np.argsort(pairs["second"])
        return Removals(pairs["second"][order], pairs["first"][order], np.ones(len(pairs)))

    def _find_near_duplicates(
        self, signed: Sequence[SignedStream], copies: Removals, context: CompareContext
    ) -> Removals:
        """Find all documents that are similar to a better one that stays; exact copies are left out."""
        inputs = tuple(unit.keys for unit in signed)
        num_partitions = self._count_partitions(KEY.itemsize, self._step.num_band_keys)
        tasks = self._make_partition_tasks("candidates", num_partitions)
        bitmap = self._write_copies_bitmap(copies.documents)
        keys = CandidateContext.extend(
            context, inputs=inputs, num_partitions=num_partitions, exact_copies_bitmap=bitmap
        )
        candidates = self._run_tasks(run_candidates, keys, tasks, CandidatePairs, "candidates")
        self._counts = {
            "band_groups": sum(result.num_groups for result in candidates),
            "largest_band_group": max(result.largest_group for result in candidates),
            "capped_band_groups": sum(result.num_capped for result in candidates),
        }
        tasks = self._make_partition_tasks("compare", num_partitions)
        inputs = tuple(result.pairs for result in candidates)
        pairs = PartitionContext.extend(context, inputs=inputs, num_partitions=num_partitions)
        alike = self._count_alike(self._run_tasks(run_compare, pairs, tasks, ComparedPairs, "comparing"))
        # Two survivors that no band brought together may still be similar.
        missing = SimilarityGraph(alike.pairs, context.documents.ranks).missing_pairs()
        tasks = self._make_pair_tasks(missing, "survivors")
        more = self._count_alike(self._run_tasks(run_compare_pairs, context, tasks, ComparedPairs, "survivors"))
        return self._choose_removals(SimilarPairs.concatenate(alike, more), context)

    def _choose_removals(self, alike: SimilarPairs, context: CompareContext) -> Removals:
        documents, round_numbers = context.documents, itertools.count(1)
        if self._step.verify == "signature" or self._step.kind == "image":
            return SimilarityGraph(alike.pairs, documents.ranks).removals(alike.similarities, documents.num_reference)

        def compare_texts(pairs: Pairs) -> NDArray[np.float64]:
            tasks = self._make_pair_tasks(pairs, f"verify {next(round_numbers)}", by_text=True)
            compared = self._run_tasks(run_compare_pairs, context, tasks, ComparedPairs, "verifying")
            self._counts["pairs_by_text"] += len(pairs)
            return self._read_alike(compared).similarities

        return verify_removals(alike, documents.ranks, documents.num_reference, self._step.threshold, compare_texts)

    def _write_copies_bitmap(self, copies: NDArray[np.int64]) -> str:
        """Write a file with a bit for each document, set for these; gives its path."""
        with RecordWriter(self._make_stem("hidden"), ".bits") as writer:
            for start in range(0, self._num_documents, _BITS_AT_ONCE):
                writer.add(pack_bits(copies, start, min(start + _BITS_AT_ONCE, self._num_documents)))
            return writer.commit().path

    def _make_pair_tasks(self, pairs: Pairs, kind: str, *, by_text: bool = False) -> list[Task]:
        tasks = []
        for number, start in enumerate(range(0, len(pairs), _PAIRS_PER_TASK)):
            name = fingerprint.of(self._fingerprint, kind, number)
            chunk = pairs.slice(start, start + _PAIRS_PER_TASK)
            tasks.append(Task(name, CompareTask(chunk, stored_path(name), by_text)))
        return tasks

    def _make_partition_tasks(self, kind: str, num_partitions: int) -> list[Task]:
        tasks = []
        for number in range(num_partitions):
            name = fingerprint.of(self._fingerprint, kind, number, num_partitions)
            tasks.append(Task(name, PartitionTask(number, stored_path(name))))
        return tasks

    def _count_alike(self, compared: Sequence[ComparedPairs]) -> SimilarPairs:
        """Read what tasks have compared, and count it."""
        for name, number in (
            ("pairs", sum(result.num_pairs for result in compared)),
            ("pairs_by_text", sum(result.num_by_text for result in compared)),
        ):
            self._counts[name] = self._counts.get(name, 0) + number
        return self._read_alike(compared)

    def _read_alike(self, compared: Sequence[ComparedPairs]) -> SimilarPairs:
        """Read what tasks have compared, in their order."""
        pieces = [read_records(self._sign_context.work, result.alike, ALIKE) for result in compared]
        records = np.concatenate([np.empty(0, ALIKE), *pieces])
        pairs = Pairs(records["first"].copy(), records["second"].copy())
        return SimilarPairs(pairs, records["similarity"].copy(), records["is_exact"].copy())

    def _make_stem(self, name: str) -> OutputStem:
        path = stored_path(fingerprint.of(self._fingerprint, name))
        return open_stem(self._sign_context.work, path, self._sign_context.run_id)

    def _run_tasks(
        self, function: Callable[..., T], context: StageContext, tasks: Sequence[Task], kind: type[T], desc: str
    ) -> list[T]:
        # A task alone is done sooner than a worker is ready for it.
        is_alone = len(tasks) == 1
        return self._runner.run_missing(function, context, tasks, kind, f"deduplicate: {desc}", here=is_alone)
