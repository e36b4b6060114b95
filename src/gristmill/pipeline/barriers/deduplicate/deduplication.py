"""The barrier of `deduplicate`: all documents of its sources in, the units of each source's next stage out.

Every stage of the exchange reads what earlier ones have scattered, and scatters for the next:

| stage | by | find | scatter by |
|---|---|---|---|
| sign | stream | digests, sketches, keys of bands | hash |
| merging | streams | nothing: pieces become large, where they would be too small | hash |
| copies | hash of digests | equal texts | range |
| marking | range | a bit for each exact copy | |
| candidates | hash of keys | pairs with a band in common, members of large groups | range of the first document |
| large groups | range | sketches and ranks of these members | hash of keys |
| likely pairs | hash of keys | likely pairs of large groups | range of the first document |
| sketches | range | pairs, each once, and sketches for other ranges | range of the second document |
| comparing | range | pairs that their sketches do not reject | range of both |
| clusters | ranges | components (rounds) | range of both |
| members | range | members of clusters, their texts as sets | cluster |
| choosing | cluster | near copies | range of both |
| survivors | range | last survivors of exact copies | range of both |
| removals | range | sorted lists of removals | |

A range is some consecutive units: about 2^17 documents (a 256th of `partition_bytes`), or the 256th part of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.base import BarrierOutcome
from gristmill.pipeline.barriers.deduplicate.cluster_tasks import (
    BYTES_PER_EDGE,
    SHINGLE,
    choose_removals,
    link_edges,
    make_member_type,
    needs_texts,
    scatter_members,
)
from gristmill.pipeline.barriers.deduplicate.decision import Decision
from gristmill.pipeline.barriers.deduplicate.documents import (
    Documents,
    DocumentUnit,
    SignContext,
    collect_barrier_units,
    cut_ranges,
)
from gristmill.pipeline.barriers.deduplicate.pair_tasks import (
    carry_sketches,
    compare_candidates,
    find_candidates,
    find_equal_texts,
    make_carried_type,
    make_sent_type,
    mark_copies,
    pair_large_groups,
    send_sketches,
)
from gristmill.pipeline.barriers.deduplicate.removals import (
    COUNT,
    REMOVAL,
    REMOVAL_WRITES,
    gather_removals,
    redirect_copies,
)
from gristmill.pipeline.barriers.deduplicate.sign import (
    DocumentSigner,
    SignedStream,
    SignResult,
    SignTask,
    read_against_units,
    run_sign,
)
from gristmill.pipeline.barriers.exchange import Exchange, Left, RecordWriting, Scattered
from gristmill.pipeline.barriers.record_files import CROWDED, DIGEST, KEY, PAIR, SIMILAR
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.work_folder import stored_path, work_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource
    from gristmill.pipeline.barriers.deduplicate.documents import BarrierUnit
    from gristmill.pipeline.barriers.exchange import Readable
    from gristmill.pipeline.barriers.record_files import PartitionedFile, Receipt
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

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
        self._run = run
        self._units = sorted(units, key=self._make_sort_key)  # stable: units of a source stay in order
        self._num_documents = sum(unit.num_rows for unit in units)
        self._fingerprint = fingerprint.of(
            [unit.fingerprint for unit in self._units], fingerprint.describe_steps([step])
        )
        self._signed = self._sign_streams()
        self._documents = self._number_documents()
        self._exchange = Exchange(
            run,
            "deduplicate",
            self._fingerprint,
            partition_bytes=step.partition_bytes,
            borders=self._documents.range_starts,
        )
        self._num_ranges = self._documents.num_ranges
        self._counts: dict[str, int] = {}

    def _make_sort_key(self, unit: BarrierUnit) -> tuple[bool, int, str]:
        source = unit.unit.source.name
        return not unit.is_reference, self._find_priority(source), source

    def _find_priority(self, source: str) -> int:
        prefer = self._step.prefer
        return prefer.index(source) if source in prefer else len(prefer)

    def run(self) -> Decision:
        """Decide which documents stay; the same for any tasks, workers and sizes of partitions."""
        removals: Sequence[Receipt] = ()
        if self._signed:
            digests = self._read_by_hash("digests", [unit.digests for unit in self._signed], DIGEST)
            writes = {"by_survivor": RecordWriting(PAIR, by=("first",)), "by_copy": RecordWriting(PAIR, by=("second",))}
            stage = partial(find_equal_texts, self._documents)
            copies = self._exchange.run(
                stage, digests.num_partitions or 1, "copies", reads={"digests": digests}, writes=writes
            )
            near = None if self._step.kind == "exact" else self._find_near_duplicates(copies)
            removals = self._gather_removals(copies, near)
        context = self._run.context
        return Decision(
            self._step,
            self._documents,
            self._units,
            removals,
            self._counts,
            open_stem(context.root, work_path(fingerprint.of(self._fingerprint, "removals")), context.run_id),
        )

    def _read_by_hash(self, name: str, streams: Sequence[PartitionedFile], kind: np.dtype[Any]) -> Scattered:
        """Read records of all streams by hash, in a power of two of partitions, as `PartitionedFile.read` needs it."""
        num_records = self._num_documents * (self._step.num_band_keys if kind == KEY else 1)
        num_bytes = num_records * kind.itemsize
        num_partitions = 1 << max(0, -(-num_bytes // self._step.partition_bytes) - 1).bit_length()
        return self._exchange.merge(name, streams, kind, self._documents.starts[:-1], num_partitions)

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
        context = SignContext.extend(self._run.context, step=self._step)
        desc = "deduplicate: signatures"
        results = self._run.runner.run_missing(run_sign, context, tasks, SignResult, desc, in_process=len(tasks) == 1)
        for number, result in zip(unsigned, results, strict=True):
            annotations[number] = result.annotation
        return [SignedStream.of(annotation) for annotation in annotations if annotation is not None]

    def _number_documents(self) -> Documents:
        units = [
            DocumentUnit(unit.unit.source.name, unit.num_rows, files.documents, files.sketches, unit.stream)
            for unit, files in zip(self._units, self._signed, strict=True)
        ]
        return Documents(
            root=self._run.context.work,
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

    def _find_near_duplicates(self, copies: Left) -> Left:
        """Find all documents that are similar to a better one that stays; exact copies are left out."""
        compared = self._compare_candidates(self._find_candidate_pairs(copies))
        self._count("pairs", sum(compared.counts("num_pairs")))
        linked = link_documents(
            self._exchange,
            compared.scattered("edges"),
            sum(compared.counts("num_similar")),
            self._step,
            self._num_ranges,
        )
        reads, num_partitions = self._scatter_members(compared, linked)
        stage = partial(choose_removals, self._step, self._documents)
        chosen = self._exchange.run(stage, num_partitions, "choosing", reads=reads, writes=REMOVAL_WRITES)
        self._count("pairs", sum(chosen.counts("num_pairs")))
        self._count("pairs_by_text", sum(chosen.counts("num_by_text")))
        return chosen

    def _find_candidate_pairs(self, copies: Left) -> Scattered:
        """Find all pairs of originals with a band in common."""
        exchange, documents = self._exchange, self._documents
        bits = {"bits": RecordWriting(np.dtype(np.uint8))}
        reads: dict[str, Readable] = {"copies": copies.scattered("by_copy")}
        marked = exchange.run(partial(mark_copies, documents), self._num_ranges, "marking", reads=reads, writes=bits)
        keys = self._read_by_hash("keys", [unit.keys for unit in self._signed], KEY)
        candidates = exchange.run(
            partial(find_candidates, documents),
            keys.num_partitions or 1,
            "candidates",
            reads={"keys": keys, "bits": marked.whole("bits")},
            writes={"pairs": RecordWriting(PAIR, by=("first",)), "crowded": RecordWriting(CROWDED, by=("document",))},
        )
        self._count("band_groups", sum(candidates.counts("num_groups")))
        self._count("largest_band_group", max(candidates.counts("largest_group")))
        self._count("capped_band_groups", sum(candidates.counts("num_capped")))
        crowded = candidates.scattered("crowded")
        kind = make_sent_type(documents.num_permutations)
        num_bytes = crowded.num_records * kind.itemsize
        if not num_bytes:
            return candidates.scattered("pairs")
        # Groups too large to take all pairs of: the sketches of their members come from all ranges.
        num_partitions = -(-num_bytes // exchange.grow_partitions(num_bytes))
        sent = exchange.run(
            partial(send_sketches, documents),
            self._num_ranges,
            "large groups",
            reads={"crowded": crowded},
            writes={"sent": RecordWriting(kind, num_partitions=num_partitions)},
        )
        likely = exchange.run(
            partial(pair_large_groups, documents),
            num_partitions,
            "likely pairs",
            reads={"sent": sent.scattered("sent")},
            writes={"pairs": RecordWriting(PAIR, by=("first",))},
        )
        return candidates.scattered("pairs") + likely.scattered("pairs")

    def _compare_candidates(self, pairs: Scattered) -> Left:
        """Compare the sketches of all candidates."""
        documents = self._documents
        kind = make_carried_type(documents.num_permutations)
        carried = self._exchange.run(
            partial(carry_sketches, documents),
            self._num_ranges,
            "sketches",
            reads={"pairs": pairs},
            writes={
                "pairs": RecordWriting(PAIR, by=("second",)),
                "carried": RecordWriting(kind, num_partitions=self._num_ranges),
            },
        )
        return self._exchange.run(
            partial(compare_candidates, self._step, documents),
            self._num_ranges,
            "comparing",
            reads={name: carried.scattered(name) for name in ("pairs", "carried")},
            writes={"similar": RecordWriting(SIMILAR), "edges": RecordWriting(PAIR, by=("second", "first"))},
        )

    def _scatter_members(self, compared: Left, linked: Left) -> tuple[dict[str, Readable], int]:
        """Deal the members of clusters to partitions; return them, and how many partitions there are."""
        num_members = 2 * sum(linked.counts("num_edges"))  # at most: the smallest, and the others
        # A set of shingles has 8 bytes for each word of about 6.
        text_bytes = sum(unit.num_bytes for unit in self._units) // max(1, self._num_documents)
        member_bytes = self._step.sketch_bytes + (text_bytes if needs_texts(self._step) else 0)
        num_bytes = num_members * member_bytes // 2
        partition_bytes, block_bytes = self._step.partition_bytes, None
        if self._exchange.is_on_store:
            partition_bytes = block_bytes = self._exchange.grow_partitions(num_bytes, self._num_ranges)
        size = min(max(1, num_bytes // partition_bytes), _MAX_CLUSTER_PARTITIONS)
        scattered = self._exchange.run(
            partial(scatter_members, self._step, self._documents),
            self._num_ranges,
            "members",
            reads={"edges": linked.scattered("edges"), "similar": compared.whole("similar")},
            writes={
                "shingles": RecordWriting(SHINGLE, num_partitions=size, has_runs=True, block_bytes=block_bytes),
                "members": RecordWriting(make_member_type(self._documents.num_permutations), num_partitions=size),
                "similar": RecordWriting(SIMILAR, num_partitions=size),
            },
        )
        reads: dict[str, Readable] = {name: scattered.scattered(name) for name in ("members", "similar")}
        return {**reads, "shingles": scattered.scattered("shingles", is_joined=False)}, size

    def _gather_removals(self, copies: Left, near: Left | None) -> Sequence[Receipt]:
        """Gather what is removed from each range of documents."""
        none = Scattered(self._run.context.work, REMOVAL, ())
        redirected = self._exchange.run(
            partial(redirect_copies, self._documents),
            self._num_ranges,
            "survivors",
            reads={
                "copies": copies.scattered("by_survivor"),
                "near": none if near is None else near.scattered("removed"),
            },
            writes=REMOVAL_WRITES,
        )
        removals, survivors = redirected.scattered("removed"), redirected.scattered("kept")
        if near is not None:
            removals, survivors = near.scattered("removed") + removals, near.scattered("kept") + survivors
        gathered = self._exchange.run(
            gather_removals,
            self._num_ranges,
            "removals",
            reads={"removals": removals, "survivors": survivors},
            writes={"removals": RecordWriting(REMOVAL), "clusters": RecordWriting(COUNT)},
        )
        return gathered.receipts

    def _count(self, name: str, number: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + number


def link_documents(exchange: Exchange, edges: Scattered, num_edges: int, step: Deduplicate, num_ranges: int) -> Left:
    """Run rounds until nothing changes, or one task has seen all edges."""
    for number in count(1):
        num_bytes = num_edges * BYTES_PER_EDGE
        num_tasks = max(1, min(num_ranges, -(-num_bytes // step.partition_bytes)))
        linked = exchange.run(
            link_edges,
            num_tasks,
            "clusters",
            reads={"edges": edges},
            writes={"edges": RecordWriting(PAIR, by=("second", "first"))},
            num_partitions=num_ranges,
            label=str(number),
        )
        if num_tasks == 1 or not any(linked.counts("is_changed")):
            return linked
        edges, num_edges = linked.scattered("edges"), sum(linked.counts("num_edges"))
    raise AssertionError
