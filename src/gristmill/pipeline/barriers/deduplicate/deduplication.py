"""The barrier of `deduplicate`: all documents of its sources in, the units of each source's next stage out.

Every kind of task reads what earlier ones have scattered, and scatters for the next; the parent only names files:

| tasks | by | find | scatter by |
|---|---|---|---|
| sign | stream | digests, sketches, keys of bands | hash |
| merge | streams | nothing: pieces become large, where they would be too small | hash |
| copies | hash of digests | equal texts | range |
| mark | range | a bit for each exact copy | |
| candidates | hash of keys | pairs with a band in common, members of large groups | range of the first document |
| send | range | sketches and ranks of these members | hash of keys |
| likely | hash of keys | likely pairs of large groups | range of the first document |
| carry | range | pairs, each once, and sketches for other ranges | range of the second document |
| compare | range | pairs that their sketches do not reject | range of both |
| link | ranges | components (rounds) | range of both |
| scatter | range | members of clusters, their texts as sets | cluster |
| choose | cluster | near copies | range of both |
| redirect | range | last survivors of exact copies | range of both |
| gather | range | sorted lists of removals | |

A range is some consecutive units: about 2^17 documents (a 256th of `partition_bytes`), or the 256th part of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.base import BarrierOutcome
from gristmill.pipeline.barriers.deduplicate.cluster_tasks import (
    ChosenRemovals,
    LinkedDocuments,
    ScatteredMembers,
    link_documents,
    make_member_type,
    needs_texts,
    run_choose,
    run_link,
    scatter_members,
)
from gristmill.pipeline.barriers.deduplicate.decision import Decision
from gristmill.pipeline.barriers.deduplicate.documents import (
    Documents,
    DocumentUnit,
    PartitionContext,
    PartitionTask,
    SignContext,
    collect_barrier_units,
    cut_ranges,
)
from gristmill.pipeline.barriers.deduplicate.merge import PieceMerger
from gristmill.pipeline.barriers.deduplicate.pair_tasks import (
    CandidatePairs,
    CarriedPairs,
    ComparedPairs,
    CopyPairs,
    LikelyPairs,
    MarkedCopies,
    SketchesByGroup,
    make_carried_type,
    make_sent_type,
    mark_copies,
    run_candidates,
    run_carry,
    run_compare,
    run_copies,
    run_likely,
    send_sketches,
)
from gristmill.pipeline.barriers.deduplicate.record_files import CROWDED, DIGEST, KEY, NUMBER, PAIR, SIMILAR
from gristmill.pipeline.barriers.deduplicate.removals import (
    REMOVAL,
    RangeRemovals,
    ScatteredRemovals,
    redirect_copies,
    run_gather,
)
from gristmill.pipeline.barriers.deduplicate.sign import (
    DocumentSigner,
    SignedStream,
    SignResult,
    SignTask,
    read_against_units,
    run_sign,
)
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.work_folder import stored_path, work_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.deduplicate.documents import BarrierUnit
    from gristmill.pipeline.barriers.deduplicate.record_files import PartitionedFile
    from gristmill.pipeline.stages.stage_context import StageContext
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

    T = TypeVar("T", bound=msgspec.Struct)

_MAX_CLUSTER_PARTITIONS = 1 << 16


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
            entry_counters=decision.count_clusters_by_source(),
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
        self._merger = PieceMerger(self._sign_context, self._fingerprint, step.partition_bytes, self._run_tasks)
        self._counts: dict[str, int] = {}

    def _make_sort_key(self, unit: BarrierUnit) -> tuple[bool, int, str]:
        source = unit.unit.source.name
        return not unit.is_reference, self._find_priority(source), source

    def _find_priority(self, source: str) -> int:
        prefer = self._step.prefer
        return prefer.index(source) if source in prefer else len(prefer)

    def run(self) -> Decision:
        """Decide which documents stay; the same for any tasks, workers and sizes of partitions."""
        signed = self._sign_streams()
        documents = self._number_documents(signed)
        context = PartitionContext.extend(self._sign_context, documents=documents)
        copies = self._find_copies(signed, context)
        near: list[ChosenRemovals] = []
        if self._step.kind != "exact" and signed:
            near = self._find_near_duplicates(signed, copies, context)
        return Decision(
            self._step,
            documents,
            self._units,
            self._gather_removals(copies, near, context),
            self._counts,
            open_stem(context.root, work_path(fingerprint.of(self._fingerprint, "removals")), context.run_id),
        )

    def _count_partitions(self, record_bytes: int, records_per_document: int = 1) -> int:
        """Count the partitions of at most `partition_bytes`: a power of two, as `PartitionedFile.read` needs it."""
        num_bytes = self._num_documents * records_per_document * record_bytes
        return 1 << max(0, -(-num_bytes // self._step.partition_bytes) - 1).bit_length()

    def _read_by_hash(
        self, name: str, streams: Sequence[PartitionedFile], kind: np.dtype[Any], context: PartitionContext
    ) -> PartitionContext:
        """Make the context of tasks that read records of all streams by hash."""
        num_partitions = self._count_partitions(kind.itemsize, self._step.num_band_keys if kind == KEY else 1)
        merged = self._merger.merge(name, streams, kind, context.documents.starts[:-1], num_partitions)
        return PartitionContext.extend(
            context,
            inputs={name: merged.files},
            input_starts=merged.starts,
            num_partitions=merged.num_partitions,
        )

    def _sign_streams(self) -> list[SignedStream]:
        """Give the signatures of all streams; those that the stage has not signed for this step are signed here."""
        signer = DocumentSigner(self._step)
        annotations = [unit.annotation for unit in self._units]
        unsigned = [number for number, known in enumerate(annotations) if known is None or known.made_by != signer.name]
        tasks = []
        for number in unsigned:
            stream = self._units[number].stream
            name = fingerprint.of(stream.file.path, signer.name)
            tasks.append(Task(name, SignTask(stream, stored_path(name))))
        results = self._run_tasks(run_sign, self._sign_context, tasks, SignResult, "signatures")
        for number, result in zip(unsigned, results, strict=True):
            annotations[number] = result.annotation
        return [SignedStream.of(annotation) for annotation in annotations if annotation is not None]

    def _number_documents(self, signed: Sequence[SignedStream]) -> Documents:
        units = [
            DocumentUnit(unit.unit.source.name, unit.num_rows, files.documents, files.sketches, unit.stream)
            for unit, files in zip(self._units, signed, strict=True)
        ]
        return Documents(
            root=self._sign_context.work,
            units=tuple(units),
            starts=np.cumsum([0, *(unit.num_rows for unit in units)], dtype=np.int64),
            range_starts=cut_ranges(self._units, self._step.partition_bytes),
            # Reference documents come before all that may be removed.
            priorities=np.array(
                [0 if unit.is_reference else 1 + self._find_priority(unit.unit.source.name) for unit in self._units],
                np.uint64,
            ),
            num_reference=sum(unit.num_rows for unit in self._units if unit.is_reference),
            prefer_longest=self._step.prefer_longest,
            num_permutations=self._step.sketch_bytes,
        )

    def _find_copies(self, signed: Sequence[SignedStream], context: PartitionContext) -> list[CopyPairs]:
        """Find all documents that have the text of a better one."""
        if not signed:
            return []
        stage = self._read_by_hash("digests", [unit.digests for unit in signed], DIGEST, context)
        return self._run_tasks(run_copies, stage, self._make_tasks("copies", stage.num_partitions), CopyPairs, "copies")

    def _find_near_duplicates(
        self, signed: Sequence[SignedStream], copies: Sequence[CopyPairs], context: PartitionContext
    ) -> list[ChosenRemovals]:
        """Find all documents that are similar to a better one that stays; exact copies are left out."""
        compared = self._compare_candidates(signed, copies, context)
        self._count("pairs", sum(result.num_pairs for result in compared))
        edges = tuple(result.edges for result in compared)
        num_edges = sum(result.num_similar for result in compared)
        linked = link_documents(edges, num_edges, context, self._link_round)
        scattered, num_partitions = self._scatter_members(compared, linked, context)
        member = make_member_type(context.documents.num_permutations)
        inputs = {
            "members": self._merger.join("members", (result.members for result in scattered), member),
            "shingles": tuple(result.shingles for result in scattered),
            "similar": self._merger.join("similar", (result.similar for result in scattered), SIMILAR),
        }
        context = PartitionContext.extend(context, inputs=inputs)
        tasks = self._make_tasks("choose", num_partitions)
        chosen = self._run_tasks(run_choose, context, tasks, ChosenRemovals, "choosing")
        self._count("pairs", sum(result.num_pairs for result in chosen))
        self._count("pairs_by_text", sum(result.num_by_text for result in chosen))
        return chosen

    def _compare_candidates(
        self, signed: Sequence[SignedStream], copies: Sequence[CopyPairs], context: PartitionContext
    ) -> list[ComparedPairs]:
        """Compare the sketches of all pairs with a band in common."""
        num_ranges = context.documents.num_ranges
        stage = PartitionContext.extend(
            context, inputs={"copies": self._merger.join("copies", (each.by_copy for each in copies), PAIR)}
        )
        marked = self._run_tasks(mark_copies, stage, self._make_tasks("mark", num_ranges), MarkedCopies, "copies")
        stage = self._read_by_hash("keys", [unit.keys for unit in signed], KEY, context)
        stage = PartitionContext.extend(stage, files={"copy_bits": tuple(result.bits for result in marked)})
        tasks = self._make_tasks("candidates", stage.num_partitions)
        candidates = self._run_tasks(run_candidates, stage, tasks, CandidatePairs, "candidates")
        self._count("band_groups", sum(result.num_groups for result in candidates))
        self._count("largest_band_group", max(result.largest_group for result in candidates))
        self._count("capped_band_groups", sum(result.num_capped for result in candidates))
        pair_files = [each.pairs for each in candidates]
        pair_files += [each.pairs for each in self._pair_large_groups(candidates, context)]
        stage = PartitionContext.extend(context, inputs={"pairs": self._merger.join("candidates", pair_files, PAIR)})
        carried = self._run_tasks(run_carry, stage, self._make_tasks("carry", num_ranges), CarriedPairs, "candidates")
        kind = make_carried_type(context.documents.num_permutations)
        inputs = {
            "pairs": self._merger.join("pairs", (each.pairs for each in carried), PAIR),
            "carried": self._merger.join("carried", (each.sketches for each in carried), kind),
        }
        stage = PartitionContext.extend(context, inputs=inputs)
        return self._run_tasks(run_compare, stage, self._make_tasks("compare", num_ranges), ComparedPairs, "comparing")

    def _pair_large_groups(self, candidates: Sequence[CandidatePairs], context: PartitionContext) -> list[LikelyPairs]:
        """Pair the members of groups too large to take all pairs of; their sketches come from all ranges."""
        kind = make_sent_type(context.documents.num_permutations)
        num_bytes = sum(each.crowded.num_records for each in candidates) * kind.itemsize
        if not num_bytes:
            return []
        num_ranges = context.documents.num_ranges
        num_partitions = -(-num_bytes // self._merger.grow_partitions(num_bytes))
        crowded = self._merger.join("crowded", (each.crowded for each in candidates), CROWDED)
        stage = PartitionContext.extend(context, inputs={"crowded": crowded}, num_partitions=num_partitions)
        tasks = self._make_tasks(f"send to {num_partitions}", num_ranges)
        sent = self._run_tasks(send_sketches, stage, tasks, SketchesByGroup, "large groups")
        sketches = self._merger.join("sent", (each.sketches for each in sent), kind)
        stage = PartitionContext.extend(context, inputs={"sent": sketches})
        return self._run_tasks(
            run_likely, stage, self._make_tasks("likely", num_partitions), LikelyPairs, "large groups"
        )

    def _link_round(self, context: PartitionContext, number: int, num_tasks: int) -> list[LinkedDocuments]:
        edges = self._merger.join(f"edges {number}", context.inputs["edges"], PAIR)
        context = PartitionContext.extend(context, inputs={"edges": edges})
        tasks = self._make_tasks(f"link {number}", num_tasks, context.documents.num_ranges)
        return self._run_tasks(run_link, context, tasks, LinkedDocuments, "clusters")

    def _scatter_members(
        self, compared: Sequence[ComparedPairs], linked: Sequence[LinkedDocuments], context: PartitionContext
    ) -> tuple[list[ScatteredMembers], int]:
        """Deal the members of clusters to partitions; return how many there are."""
        num_members = 2 * sum(result.num_edges for result in linked)  # at most: the smallest, and the others
        member_bytes = self._step.sketch_bytes + (self._estimate_text_bytes() if needs_texts(self._step) else 0)
        num_bytes, num_ranges = num_members * member_bytes // 2, context.documents.num_ranges
        partition_bytes, block_bytes = self._step.partition_bytes, None
        if self._merger.is_on_store:
            partition_bytes = block_bytes = self._merger.grow_partitions(num_bytes, num_ranges)
        num_partitions = min(max(1, num_bytes // partition_bytes), _MAX_CLUSTER_PARTITIONS)
        stage = PartitionContext.extend(
            context,
            inputs={"edges": self._merger.join("stars", (each.edges for each in linked), PAIR)},
            files={"similar": tuple(result.similar for result in compared)},
            num_partitions=num_partitions,
            block_bytes=block_bytes,
        )
        tasks = self._make_tasks(f"scatter to {num_partitions}", num_ranges)
        return self._run_tasks(scatter_members, stage, tasks, ScatteredMembers, "members"), stage.num_partitions

    def _estimate_text_bytes(self) -> int:
        """Estimate the size of a document's set of shingles: one of 8 bytes for each word of about 6."""
        return sum(unit.num_bytes for unit in self._units) // max(1, self._num_documents)

    def _gather_removals(
        self, copies: Sequence[CopyPairs], near: Sequence[ChosenRemovals], context: PartitionContext
    ) -> list[RangeRemovals]:
        """Gather what is removed from each range of documents."""
        num_ranges = context.documents.num_ranges
        scattered = [result.scattered for result in near]
        inputs = {
            "copies": self._merger.join("copies of survivors", (each.by_survivor for each in copies), PAIR),
            "near": self._merger.join("near copies", (each.removals for each in scattered), REMOVAL),
        }
        stage = PartitionContext.extend(context, inputs=inputs)
        tasks = self._make_tasks("redirect", num_ranges)
        scattered += self._run_tasks(redirect_copies, stage, tasks, ScatteredRemovals, "survivors")
        inputs = {
            "removals": self._merger.join("removals", (each.removals for each in scattered), REMOVAL),
            "survivors": self._merger.join("survivors", (each.survivors for each in scattered), NUMBER),
        }
        stage = PartitionContext.extend(context, inputs=inputs)
        return self._run_tasks(run_gather, stage, self._make_tasks("gather", num_ranges), RangeRemovals, "removals")

    def _count(self, name: str, number: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + number

    def _make_tasks(self, kind: str, num_tasks: int, num_partitions: int | None = None) -> list[Task]:
        """Make one task for each partition, or for as many consecutive ones as make this number of tasks."""
        num_partitions = num_tasks if num_partitions is None else num_partitions
        tasks = []
        for number in range(num_tasks):
            # Where ranges end depends on `partition_bytes`: what was scattered for others is of no use.
            name = fingerprint.of(self._fingerprint, kind, number, num_tasks, self._step.partition_bytes)
            first, stop = (each * num_partitions // num_tasks for each in (number, number + 1))
            tasks.append(Task(name, PartitionTask(first, stored_path(name), stop - first)))
        return tasks

    def _run_tasks(
        self, function: Callable[..., T], context: StageContext, tasks: Sequence[Task], kind: type[T], desc: str
    ) -> list[T]:
        # A task alone is done sooner than a worker is ready for it.
        is_alone = len(tasks) == 1
        return self._runner.run_missing(function, context, tasks, kind, f"deduplicate: {desc}", in_process=is_alone)
