"""What has been decided: removal lists for the next stage, a table of removed documents, limits that stop a run."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import TooManyDuplicatesError
from gristmill.core.records import ORIGIN_TYPE
from gristmill.pipeline.barriers.deduplicate.record_files import make_records, write_records
from gristmill.pipeline.barriers.deduplicate.removal_lists import (
    COUNT,
    REMOVAL,
    RecordRange,
    RemovalList,
    StoredSurvivors,
)
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.shards.formats.shard_format import ShardFormat, write_shard
from gristmill.shards.manifest import Deduplicated, DuplicateCluster, InputFile, StoredFile, file_key
from gristmill.steps.deduplicate.deduplicate import DUPLICATE, NEAR_DUPLICATE, DeduplicateAgainst
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.barrier_units import BarrierUnit
    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.steps.deduplicate.clusters import Removals
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
_SAMPLE_CHARS = 200
_MIN_REMOVED = 10
"""A source may always lose this many documents, whatever share of it they are."""


@dataclass(frozen=True)
class Decision:
    """The documents that one step removes, over all its sources."""

    step: Deduplicate
    documents: Documents
    units: Sequence[BarrierUnit]
    """The streams of all units in the order of their documents."""
    removals: Removals
    is_exact: NDArray[np.bool_]
    """For each removal, whether the text equals that of the survivor."""
    counts: Mapping[str, int]
    """Numbers for the manifest: pairs compared, band groups."""
    stem: OutputStem
    """Where the removal lists go."""
    table_stem: OutputStem
    """Where the table of removed documents goes, which is published."""

    @cached_property
    def _clusters(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The documents that stand for others, sorted, and the size of each cluster, survivor included."""
        survivors, counts = np.unique(self.removals.survivors, return_counts=True)
        return survivors, counts + 1

    def make_next_units(self) -> dict[str, list[StageUnit]]:
        """Make the units of the next stage, by source; each is known by what was removed from it."""
        removals = make_records(
            REMOVAL,
            document=self.removals.documents,
            survivor=self.removals.survivors,
            similarity=self.removals.similarities,
            is_exact=self.is_exact,
        )
        path = write_records(self.stem, ".removals", removals).path
        survivors, counts = self._clusters
        counts_path = write_records(self.stem, ".counts", make_records(COUNT, document=survivors, count=counts)).path
        units: dict[str, list[StageUnit]] = {}
        streams = zip(self.units, self.documents.starts.tolist(), strict=False)
        # The streams of a unit are side by side.
        for name, group in itertools.groupby(streams, key=lambda stream: stream[0].fingerprint):
            inputs, starts = [], []
            for barrier_unit, start in group:
                removed = self._make_removal_list(start, start + barrier_unit.num_rows, path, counts_path)
                inputs.append(StoredSurvivors(barrier_unit.stream, removed))
                starts += [start, start + barrier_unit.num_rows]
            if not barrier_unit.is_against:
                source = barrier_unit.unit.source
                changed_name = fingerprint.of(name, "deduplicate", self._hash_removals(starts[0], starts[-1]))
                units.setdefault(source.name, []).append(StageUnit(source, changed_name, tuple(inputs)))
        return units

    def _make_removal_list(self, first: int, stop: int, path: str, counts_path: str) -> RemovalList:
        start, end = map(int, np.searchsorted(self.removals.documents, [first, stop]))
        first_cluster, last_cluster = map(int, np.searchsorted(self._clusters[0], [first, stop]))
        return RemovalList(
            first_document=first,
            removals=RecordRange(path, start, end),
            counts=RecordRange(counts_path, first_cluster, last_cluster) if self.step.count else None,
            dropped=self._count_dropped(start, end),
            num_clusters=last_cluster - first_cluster,
        )

    def _count_dropped(self, start: int, stop: int) -> dict[str, int]:
        """Count the removals from `start` to `stop` by reason."""
        num_exact = int(np.count_nonzero(self.is_exact[start:stop]))
        counts = {DUPLICATE: num_exact, NEAR_DUPLICATE: stop - start - num_exact}
        return {reason: count for reason, count in counts.items() if count}

    def _hash_removals(self, first: int, stop: int) -> str:
        """Hash all that the decision does to a unit's documents, by their positions in the unit."""
        removed = slice(*np.searchsorted(self.removals.documents, [first, stop]))
        content = [self.removals.documents[removed] - first, self.is_exact[removed]]
        if self.step.count:
            survivors, counts = self._clusters
            in_unit = slice(*np.searchsorted(survivors, [first, stop]))
            content += [survivors[in_unit] - first, counts[in_unit]]
        return xxhash.xxh3_128_hexdigest(b"".join(array.tobytes() for array in content))

    def count_removed_by_source(self) -> dict[str, dict[str, int]]:
        """Count for each source the documents that came, and those that were removed, by reason."""
        counts: dict[str, Counter[str]] = {}
        for barrier_unit, start in zip(self.units, self.documents.starts, strict=False):
            if not barrier_unit.is_against:
                source_counts = counts.setdefault(barrier_unit.unit.source.name, Counter({"in": 0}))
                first, stop = np.searchsorted(self.removals.documents, [start, start + barrier_unit.num_rows])
                source_counts.update({"in": barrier_unit.num_rows, **self._count_dropped(int(first), int(stop))})
        return {source: dict(source_counts) for source, source_counts in sorted(counts.items())}

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
        largest = int(self._clusters[1].max(initial=0))
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
            rows=len(self.removals.documents),
            verify=self.step.verify,
            loss=self.count_removed_by_source(),
            cluster_sizes=_count_sizes(self._clusters[1]),
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
        survivors, sizes = self._clusters
        order = np.lexsort((survivors, -sizes))[:_NUM_LARGEST]
        return [self._describe_cluster(int(survivors[index]), int(sizes[index])) for index in order]

    def _describe_cluster(self, survivor: int, size: int) -> DuplicateCluster:
        removed = self.removals.documents[self.removals.survivors == survivor][: _NUM_SAMPLES - 1]
        [description] = self.documents.describe(np.array([survivor]))
        unit = self.units[int(self.documents.find_units(np.array([survivor]))[0])]
        texts = [self.documents.texts(np.array([document]))[0].as_py() for document in (survivor, *removed.tolist())]
        paths = {file.id: file.path for file in unit.unit.source.files}
        return DuplicateCluster(
            size=size,
            source="against" if unit.is_against else unit.unit.source.name,
            path=paths.get(int(description["file"]), ""),
            position=int(description["position"]),
            samples=[(text or "")[:_SAMPLE_CHARS] for text in texts],
        )

    def write_table(self) -> StoredFile:
        """Write a Parquet file with every removed document and the one kept in its place."""
        path = f"{self.table_stem.stem}.parquet"
        with PendingFile(self.table_stem.root / path, self.table_stem.run_id) as file:
            write_shard(ShardFormat.of("parquet"), TABLE_SCHEMA, self._make_table_batches(), file)
            file.commit()
        return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)

    def _make_table_batches(self) -> Iterator[pa.RecordBatch]:
        reasons = pa.array([NEAR_DUPLICATE, DUPLICATE])
        for start in range(0, len(self.removals.documents), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            removed, survivors = self.removals.documents[rows], self.removals.survivors[rows]
            columns = [
                self._read_origins(removed),
                self._find_sources(removed),
                self._read_origins(survivors),
                self._find_sources(survivors),
                pa.array(self.removals.similarities[rows]),
                pa.array(~self.is_exact[rows] & (self.step.verify == "signature")),
                reasons.take(pa.array(self.is_exact[rows].astype(np.int8))),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=TABLE_SCHEMA)

    def _read_origins(self, documents: NDArray[np.int64]) -> pa.StructArray:
        descriptions = self.documents.describe(documents)
        fields: list[Any] = [pa.array(np.ascontiguousarray(descriptions[field.name])) for field in ORIGIN_TYPE]
        return pa.StructArray.from_arrays(fields, fields=list(ORIGIN_TYPE))

    def _find_sources(self, documents: NDArray[np.int64]) -> pa.Array:
        names = pa.array(["against" if unit.is_against else unit.unit.source.name for unit in self.units], pa.string())
        return names.take(pa.array(self.documents.find_units(documents)))


def _count_sizes(sizes: NDArray[np.int64]) -> dict[str, int]:
    """Count the clusters of 2, 3-4, 5-8, … documents."""
    powers = np.ceil(np.log2(np.maximum(sizes, 2))).astype(np.int64)
    counts = {}
    for power, count in zip(*np.unique(powers, return_counts=True), strict=True):
        first, last = 2 ** (int(power) - 1) + 1, 2 ** int(power)
        counts[f"{first}-{last}" if last > 2 else "2"] = int(count)
    return counts
