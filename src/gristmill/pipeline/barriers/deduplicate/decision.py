"""What has been decided: removal lists for the next stage, a table of removed documents, limits that stop a run."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import TooManyDuplicatesError
from gristmill.core.records import ORIGIN_TYPE
from gristmill.pipeline.barriers.deduplicate.removals import COUNT, REMOVAL, RemovalList, StoredSurvivors, make_range
from gristmill.pipeline.barriers.record_files import read_records
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.shards.formats.shard_format import ShardFormat, write_shard
from gristmill.shards.manifest import Deduplicated, DuplicateCluster
from gristmill.shards.stored_files import InputFile, StoredFile, file_key
from gristmill.steps.deduplicate.deduplicate import DUPLICATE, NEAR_DUPLICATE, DeduplicateAgainst
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.documents import BarrierUnit, Documents
    from gristmill.pipeline.barriers.record_files import Receipt
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.steps.deduplicate.deduplicate import Deduplicate

TABLE_SCHEMA = pa.schema(
    {
        "removed": ORIGIN_TYPE,
        "source": pa.string(),
        "survivor": ORIGIN_TYPE,
        "survivor_source": pa.string(),
        "similarity": pa.float64(),
        "is_estimate": pa.bool_(),
        "reason": pa.string(),
    }
)
_ROWS_AT_ONCE = 1 << 18
_NUM_LARGEST = 20
_NUM_SAMPLES = 3
_SAMPLE_CHARS = 400
_CHARS_BEFORE = 100
"""Of a text that begins as the one that was kept, this much is shown before the first difference."""
_MIN_REMOVED = 10
"""A source may always lose this many documents, regardless of their share of it."""


@dataclass(slots=True)
class _ClusterSummary:
    """The sizes of all clusters, and the largest of them."""

    sizes: Counter[int] = field(default_factory=Counter)
    """Clusters by their size, as powers of two."""
    largest: list[tuple[int, int]] = field(default_factory=list)
    """The sizes of the largest clusters, negative, with their survivors; sorted."""

    def add(self, survivors: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        powers = np.ceil(np.log2(np.maximum(sizes, 2))).astype(np.int64)
        self.sizes.update(dict(zip(*(each.tolist() for each in np.unique(powers, return_counts=True)), strict=True)))
        order = np.lexsort((survivors, -sizes))[:_NUM_LARGEST]
        candidates = zip((-sizes[order]).tolist(), survivors[order].tolist(), strict=True)
        self.largest = sorted([*self.largest, *candidates])[:_NUM_LARGEST]

    def describe_sizes(self) -> dict[str, int]:
        """Count the clusters of 2, 3-4, 5-8, … documents."""
        counts = {}
        for power, count in sorted(self.sizes.items()):
            first, last = 2 ** (power - 1) + 1, 2**power
            counts[f"{first}-{last}" if last > 2 else "2"] = count
        return counts


@dataclass
class Decision:
    """The documents that one step removes, over all its sources.

    They are read from the files of the ranges, one range after another: memory does not grow with the documents.
    """

    step: Deduplicate
    documents: Documents
    units: Sequence[BarrierUnit]
    """The streams of all units in the order of their documents."""
    ranges: Sequence[Receipt]
    """What is removed from each range of documents."""
    counts: Mapping[str, int]
    """Numbers for the manifest: pairs compared, band groups."""
    table_stem: OutputStem
    """Where the table of removed documents goes, which is published."""

    def __post_init__(self) -> None:
        self._clusters = _ClusterSummary()
        self._loss: dict[str, Counter[str]] = {}
        self._num_clusters: Counter[str] = Counter()
        self._next_units: dict[str, list[StageUnit]] = {}
        self._num_removed = 0
        self._read_ranges()

    def _read_ranges(self) -> None:
        """Look at each range once: make its units, and count what they lose."""
        starts = self.documents.starts.tolist()
        streams = list(zip(self.units, starts, strict=False))
        bounds = np.searchsorted(starts, self.documents.range_starts).tolist()
        for number, removed in enumerate(self.ranges):
            content = _RangeContent(removed, self.documents, self.step)
            self._num_removed += len(content.removals)
            self._clusters.add(content.clusters["document"], content.clusters["count"])
            range_streams = streams[bounds[number] : bounds[number + 1]]
            # The streams of a unit are side by side, and in one range.
            for name, group in itertools.groupby(range_streams, key=lambda stream: stream[0].fingerprint):
                self._add_unit(name, list(group), content)

    def _add_unit(self, name: str, streams: Sequence[tuple[BarrierUnit, int]], content: _RangeContent) -> None:
        barrier_unit, first = streams[0]
        if barrier_unit.is_against:
            return
        inputs = []
        loss = self._loss.setdefault(barrier_unit.unit.source.name, Counter({"in": 0}))
        for stream, start in streams:
            removed = content.make_removal_list(start, start + stream.num_rows)
            inputs.append(StoredSurvivors(stream.stream, removed))
            loss.update({"in": stream.num_rows, **removed.dropped})
            self._num_clusters[barrier_unit.unit.source.name] += content.count_clusters(start, start + stream.num_rows)
        source = barrier_unit.unit.source
        hashed = content.hash_removals(first, streams[-1][1] + streams[-1][0].num_rows)
        changed_name = fingerprint.of(name, "deduplicate", hashed)
        self._next_units.setdefault(source.name, []).append(StageUnit(source, changed_name, tuple(inputs)))

    def make_next_units(self) -> dict[str, list[StageUnit]]:
        """Make the units of the next stage, by source; each is known by what was removed from it."""
        return self._next_units

    def count_removed_by_source(self) -> dict[str, dict[str, int]]:
        """Count for each source the documents that came, and those that were removed, by reason."""
        return {source: dict(counts) for source, counts in sorted(self._loss.items())}

    def count_clusters_by_source(self) -> dict[str, dict[str, int]]:
        """Count for each source the documents that stand for others.

        A copy that comes or goes in another unit changes it, and no byte of the unit that keeps the document.
        """
        return {source: {"clusters": count} for source, count in sorted(self._num_clusters.items())}

    def check_limits(self) -> None:
        """Raise `TooManyDuplicatesError` where a source loses too much, or a cluster is too large."""
        for source, counts in self.count_removed_by_source().items():
            num_removed = counts.get(DUPLICATE, 0) + counts.get(NEAR_DUPLICATE, 0)
            if num_removed > max(_MIN_REMOVED, self.step.max_source_loss * counts["in"]):
                raise self._make_limit_error(
                    f"deduplicate: source {source} would lose {num_removed:,} of {counts['in']:,} documents "
                    f"({num_removed / counts['in']:.0%}); allowed are {self.step.max_source_loss:.0%}",
                    "max_source_loss",
                )
        largest = -self._clusters.largest[0][0] if self._clusters.largest else 0
        if largest > self.step.max_cluster:
            raise self._make_limit_error(
                f"deduplicate: {largest:,} documents are said to be copies of one; allowed are "
                f"{self.step.max_cluster:,}",
                "max_cluster",
            )

    def _make_limit_error(self, message: str, limit: str) -> TooManyDuplicatesError:
        table = self.write_table()
        error = TooManyDuplicatesError(
            message,
            help="each removed document and the one kept for it are listed in "
            f"{self.table_stem.root / table.path}; clean the source before this step, change threshold, or raise "
            f"{limit}; finished work is kept",
        )
        for cluster in self.describe_largest()[:3]:
            samples = "\n".join(f"  {sample!r}" for sample in cluster.samples)
            where = f"{cluster.path}, position {cluster.position:,}"
            error.add_note(f"{cluster.size:,} documents like the one of {cluster.source} in {where}:\n{samples}")
        return error

    def make_manifest_entry(self) -> Deduplicated:
        """Make the entry of the manifest about the step."""
        against = self.step if isinstance(self.step, DeduplicateAgainst) else None
        return Deduplicated(
            file=self.write_table(),
            rows=self._num_removed,
            verify=self.step.verify,
            loss=self.count_removed_by_source(),
            cluster_sizes=self._clusters.describe_sizes(),
            largest=self.describe_largest(),
            counts=dict(sorted(self.counts.items())),
            against={
                file_key(file.id): InputFile(
                    source="against", path=file.path, relative=file.relative, bytes=file.num_bytes, version=file.version
                )
                for file in (against.files if against else [])
            },
            against_read=msgspec.to_builtins(against.read) if against else {},
        )

    def describe_largest(self) -> list[DuplicateCluster]:
        """Describe the largest clusters, each with the beginnings of some of its texts."""
        samples: dict[int, list[int]] = {survivor: [] for _, survivor in self._clusters.largest}
        wanted = np.array(sorted(samples), np.int64)
        for removals in self._read_removals() if samples else ():
            of_wanted = removals[np.isin(removals["survivor"], wanted)]
            for survivor, document in zip(of_wanted["survivor"].tolist(), of_wanted["document"].tolist(), strict=True):
                if len(samples[survivor]) < _NUM_SAMPLES - 1:
                    samples[survivor].append(document)
        shown = np.unique([*samples, *itertools.chain(*samples.values())]).astype(np.int64)
        # One pass over the streams that hold them: each would else be read once for each of its texts.
        texts = dict(zip(shown.tolist(), self.documents.texts(shown).to_pylist(), strict=True))
        return [
            self._describe_cluster(survivor, -size, [texts[document] for document in (survivor, *samples[survivor])])
            for size, survivor in self._clusters.largest
        ]

    def _describe_cluster(self, survivor: int, size: int, texts: Sequence[str | None]) -> DuplicateCluster:
        [description] = self.documents.describe(np.array([survivor]))
        unit = self.units[int(self.documents.find_units(np.array([survivor]))[0])]
        paths = {file.id: file.path for file in unit.unit.source.files}
        return DuplicateCluster(
            size=size,
            source="against" if unit.is_against else unit.unit.source.name,
            path=paths.get(int(description["file"]), ""),
            position=int(description["position"]),
            samples=_cut_alike([text or "" for text in texts]),
        )

    def _read_removals(self) -> Iterator[NDArray[Any]]:
        """Read all removals in the order of their documents, `_ROWS_AT_ONCE` at a time; only the last are fewer."""
        rest = np.empty(0, REMOVAL)
        for removed in self.ranges:
            rest = np.concatenate([rest, read_records(self.documents.root, removed.whole["removals"], REMOVAL)])
            while len(rest) >= _ROWS_AT_ONCE:
                yield rest[:_ROWS_AT_ONCE]
                rest = rest[_ROWS_AT_ONCE:]
        if len(rest):
            yield rest

    def write_table(self) -> StoredFile:
        """Write a Parquet file with every removed document and the one kept in its place."""
        path = f"{self.table_stem.stem}.parquet"
        with PendingFile(self.table_stem.root / path, self.table_stem.run_id) as file:
            write_shard(ShardFormat.of("parquet"), TABLE_SCHEMA, self._make_table_batches(), file)
            file.commit()
        return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)

    def _make_table_batches(self) -> Iterator[pa.RecordBatch]:
        reasons = pa.array([NEAR_DUPLICATE, DUPLICATE])
        for removals in self._read_removals():
            is_exact = removals["is_exact"]
            columns = [
                _make_origins(self.documents.describe(removals["document"])),
                self._find_sources(removals["document"]),
                _make_origins(removals),
                self._find_sources(removals["survivor"]),
                pa.array(np.ascontiguousarray(removals["similarity"])),
                pa.array(~is_exact & (self.step.verify == "signature")),
                reasons.take(pa.array(is_exact.astype(np.int8))),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=TABLE_SCHEMA)

    def _find_sources(self, documents: NDArray[np.int64]) -> pa.Array:
        names = pa.array(["against" if unit.is_against else unit.unit.source.name for unit in self.units], pa.string())
        return names.take(pa.array(self.documents.find_units(documents)))


class _RangeContent:
    """The removals and clusters of one range, in memory."""

    def __init__(self, removed: Receipt, documents: Documents, step: Deduplicate) -> None:
        self._files = removed
        self._counts_clusters = step.count
        self.removals = read_records(documents.root, removed.whole["removals"], REMOVAL)
        self.clusters = read_records(documents.root, removed.whole["clusters"], COUNT)

    def make_removal_list(self, first: int, stop: int) -> RemovalList:
        """Make the removal list of the stream with these documents."""
        start, end = self._find(self.removals, first, stop)
        first_cluster, last_cluster = self._find(self.clusters, first, stop)
        num_exact = int(np.count_nonzero(self.removals["is_exact"][start:end]))
        dropped = {DUPLICATE: num_exact, NEAR_DUPLICATE: end - start - num_exact}
        counts = None
        if self._counts_clusters:
            counts = make_range(self._files.whole["clusters"], self.clusters, first_cluster, last_cluster)
        return RemovalList(
            first_document=first,
            removals=make_range(self._files.whole["removals"], self.removals, start, end),
            counts=counts,
            dropped={reason: count for reason, count in dropped.items() if count},
        )

    def count_clusters(self, first: int, stop: int) -> int:
        """Count the documents of a stream that stand for others."""
        start, end = self._find(self.clusters, first, stop)
        return end - start

    def hash_removals(self, first: int, stop: int) -> str:
        """Hash all that the decision does to a unit's documents, by their positions in the unit."""
        removals = self.removals[slice(*self._find(self.removals, first, stop))]
        content = [removals["document"] - first, removals["is_exact"]]
        if self._counts_clusters:
            clusters = self.clusters[slice(*self._find(self.clusters, first, stop))]
            content += [clusters["document"] - first, clusters["count"]]
        return xxhash.xxh3_128_hexdigest(b"".join(array.tobytes() for array in content))

    @staticmethod
    def _find(records: NDArray[Any], first: int, stop: int) -> tuple[int, int]:
        """Find the records of documents from `first` to `stop`."""
        start, end = np.searchsorted(records["document"], [first, stop]).tolist()
        return start, end


def _make_origins(records: NDArray[Any]) -> pa.StructArray:
    fields: list[Any] = [pa.array(np.ascontiguousarray(records[each.name])) for each in ORIGIN_TYPE]
    return pa.StructArray.from_arrays(fields, fields=list(ORIGIN_TYPE))


def _cut_alike(texts: Sequence[str]) -> list[str]:
    """Cut the same parts out of all texts: the beginning, and what is around the first difference of the first two."""
    first, second = texts[0], texts[1] if len(texts) > 1 else texts[0]
    pairs = enumerate(zip(first, second, strict=False))
    difference = next((number for number, (a, b) in pairs if a != b), 0)
    start = difference - _CHARS_BEFORE if difference > _SAMPLE_CHARS // 2 else 0
    if not start:
        return [text[:_SAMPLE_CHARS] for text in texts]
    room = _SAMPLE_CHARS - _CHARS_BEFORE
    return [f"{text[:_CHARS_BEFORE]} … {text[start : start + room]}" for text in texts]
