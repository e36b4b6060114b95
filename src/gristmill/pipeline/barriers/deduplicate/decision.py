"""What has been decided: lists for the next leg, the table of what went, evidence, and the limits that stop a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import TooManyDuplicatesError
from gristmill.core.records import ORIGIN_TYPE
from gristmill.pipeline.barriers.deduplicate.record_files import make_records, write_records
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.removal_lists import COUNT, REMOVAL, RecordRange, RemovalList
from gristmill.pipeline.stages.runner import StageUnit
from gristmill.shards.formats.shard_format import ShardFormat, write_shard
from gristmill.shards.manifest import Deduplicated, DuplicateCluster, InputFile, StoredFile, file_key
from gristmill.steps.deduplicate.deduplicate import DUPLICATE, NEAR_DUPLICATE, DeduplicateAgainst
from gristmill.storage.commit import PendingFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gristmill.pipeline.barriers.deduplicate.barrier_units import BarrierUnit
    from gristmill.pipeline.barriers.deduplicate.documents import Documents
    from gristmill.pipeline.stages.sink import OutputStem
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
"""So few documents are never too many."""


@dataclass(frozen=True)
class Decision:
    """Of one step, over all its documents."""

    step: Deduplicate
    documents: Documents
    units: Sequence[BarrierUnit]
    """In the order of the documents."""
    removals: Removals
    is_exact: NDArray[np.bool_]
    counts: Mapping[str, int]
    place: OutputStem
    """Where its files go."""

    @cached_property
    def _clusters(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The documents that stand for others, sorted, and for how many with themselves."""
        survivors, counts = np.unique(self.removals.survivors, return_counts=True)
        return survivors, counts + 1

    def make_next_units(self) -> dict[str, list[StageUnit]]:
        """The units of the next leg; each is known by what was taken out of it."""
        removals = make_records(
            REMOVAL,
            document=self.removals.documents,
            survivor=self.removals.survivors,
            similarity=self.removals.similarities,
            is_exact=self.is_exact,
        )
        path = write_records(self.place, ".removals", removals).path
        survivors, counts = self._clusters
        counts_path = write_records(self.place, ".counts", make_records(COUNT, document=survivors, count=counts)).path
        found: dict[str, list[StageUnit]] = {}
        for arrived, start in zip(self.units, self.documents.starts, strict=False):
            if arrived.is_against:
                continue
            inputs = []
            first = int(start)
            for stored in arrived.inputs:
                removed = self._make_removal_list(first, first + stored.num_rows, path, counts_path)
                inputs.append(replace(stored, removals=removed))
                first += stored.num_rows
            unit = arrived.unit
            name = fingerprint.of(arrived.fingerprint, "deduplicate", self._hash_removals(int(start), first))
            found.setdefault(unit.source.name, []).append(StageUnit(unit.source, name, tuple(inputs)))
        return found

    def _make_removal_list(self, first: int, stop: int, path: str, counts_path: str) -> RemovalList:
        start, end = map(int, np.searchsorted(self.removals.documents, [first, stop]))
        clusters, last = map(int, np.searchsorted(self._clusters[0], [first, stop]))
        return RemovalList(
            first_document=first,
            removals=RecordRange(path, start, end),
            counts=RecordRange(counts_path, clusters, last) if self.step.count else None,
            dropped=self._dropped(start, end),
            num_clusters=last - clusters,
        )

    def _dropped(self, start: int, stop: int) -> dict[str, int]:
        num_exact = int(np.count_nonzero(self.is_exact[start:stop]))
        found = {DUPLICATE: num_exact, NEAR_DUPLICATE: stop - start - num_exact}
        return {reason: count for reason, count in found.items() if count}

    def _hash_removals(self, first: int, stop: int) -> str:
        """Of all that the decision does to some documents, by their places in the unit."""
        gone = slice(*np.searchsorted(self.removals.documents, [first, stop]))
        content = [self.removals.documents[gone] - first, self.is_exact[gone]]
        if self.step.count:
            survivors, counts = self._clusters
            kept = slice(*np.searchsorted(survivors, [first, stop]))
            content += [survivors[kept] - first, counts[kept]]
        return xxhash.xxh3_128_hexdigest(b"".join(part.tobytes() for part in content))

    def loss(self) -> dict[str, dict[str, int]]:
        """By source: documents that came, and how many went for each reason."""
        found: dict[str, Counter[str]] = {}
        for arrived, start in zip(self.units, self.documents.starts, strict=False):
            if not arrived.is_against:
                account = found.setdefault(arrived.unit.source.name, Counter({"in": 0}))
                first, stop = np.searchsorted(self.removals.documents, [start, start + arrived.num_rows])
                account.update({"in": arrived.num_rows, **self._dropped(int(first), int(stop))})
        return {source: dict(account) for source, account in sorted(found.items())}

    def check_limits(self) -> None:
        """Stop where a source loses too much or too many documents are said to be one."""
        for source, account in self.loss().items():
            num_gone = account.get(DUPLICATE, 0) + account.get(NEAR_DUPLICATE, 0)
            if num_gone > max(_MIN_REMOVED, self.step.max_source_loss * account["in"]):
                raise self._make_limit_error(
                    f"deduplicate: source {source} would lose {num_gone:,} of {account['in']:,} documents "
                    f"({num_gone / account['in']:.0%}); allowed are {self.step.max_source_loss:.0%}",
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
            help=f"see who went for whom in {self.place.root / table.path}; clean the source before this step, change "
            f"threshold, or raise {limit}; what is done is kept",
        )
        for cluster in self.largest()[:3]:
            samples = "\n".join(f"  {sample!r}" for sample in cluster.samples)
            where = f"{cluster.path}, position {cluster.position:,}"
            error.add_note(f"{cluster.size:,} documents like the one of {cluster.source} in {where}:\n{samples}")
        return error

    def entry(self) -> Deduplicated:
        """What the manifest says of it."""
        against = self.step if isinstance(self.step, DeduplicateAgainst) else None
        return Deduplicated(
            file=self.write_table(),
            rows=len(self.removals.documents),
            verify=self.step.verify,
            loss=self.loss(),
            cluster_sizes=_count_sizes(self._clusters[1]),
            largest=self.largest(),
            counts=dict(sorted(self.counts.items())),
            against={
                file_key(file.id): InputFile(
                    source="against", path=file.path, relative=file.relative, bytes=file.num_bytes, version=file.version
                )
                for file in (against.files if against else [])
            },
            against_read=msgspec.to_builtins(against.read) if against else {},
        )

    def largest(self) -> list[DuplicateCluster]:
        """The largest clusters, each with the beginnings of some of its texts."""
        survivors, sizes = self._clusters
        order = np.lexsort((survivors, -sizes))[:_NUM_LARGEST]
        return [self._describe_cluster(int(survivors[place]), int(sizes[place])) for place in order]

    def _describe_cluster(self, survivor: int, size: int) -> DuplicateCluster:
        gone = self.removals.documents[self.removals.survivors == survivor][: _NUM_SAMPLES - 1]
        [described] = self.documents.describe(np.array([survivor]))
        unit = self.units[int(self.documents.find_units(np.array([survivor]))[0])]
        texts = [self.documents.texts(np.array([document]))[0].as_py() for document in (survivor, *gone.tolist())]
        paths = {file.id: file.path for file in unit.unit.source.files}
        return DuplicateCluster(
            size=size,
            source="against" if unit.is_against else unit.unit.source.name,
            path=paths.get(int(described["file"]), ""),
            position=int(described["position"]),
            samples=[(text or "")[:_SAMPLE_CHARS] for text in texts],
        )

    def write_table(self) -> StoredFile:
        """Every document that went and the one that stays for it, as Parquet."""
        path = f"{self.place.stem}.parquet"
        with PendingFile(self.place.root / path, self.place.run_id) as file:
            write_shard(ShardFormat.of("parquet"), TABLE_SCHEMA, self._make_table_batches(), file)
            file.commit()
        return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)

    def _make_table_batches(self) -> Iterator[pa.RecordBatch]:
        reasons = pa.array([NEAR_DUPLICATE, DUPLICATE])
        for start in range(0, len(self.removals.documents), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            removed, survivors = self.removals.documents[some], self.removals.survivors[some]
            columns = [
                self._read_origins(removed),
                self._find_sources(removed),
                self._read_origins(survivors),
                self._find_sources(survivors),
                pa.array(self.removals.similarities[some]),
                pa.array(~self.is_exact[some] & (self.step.verify == "signature")),
                reasons.take(pa.array(self.is_exact[some].astype(np.int8))),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=TABLE_SCHEMA)

    def _read_origins(self, documents: NDArray[np.int64]) -> pa.StructArray:
        described = self.documents.describe(documents)
        fields: list[Any] = [pa.array(np.ascontiguousarray(described[field.name])) for field in ORIGIN_TYPE]
        return pa.StructArray.from_arrays(fields, fields=list(ORIGIN_TYPE))

    def _find_sources(self, documents: NDArray[np.int64]) -> pa.Array:
        names = pa.array(["against" if unit.is_against else unit.unit.source.name for unit in self.units], pa.string())
        return names.take(pa.array(self.documents.find_units(documents)))


def _count_sizes(sizes: NDArray[np.int64]) -> dict[str, int]:
    """How many clusters have 2, 3-4, 5-8, … documents."""
    powers = np.ceil(np.log2(np.maximum(sizes, 2))).astype(np.int64)
    found = {}
    for power, count in zip(*np.unique(powers, return_counts=True), strict=True):
        first, last = 2 ** (int(power) - 1) + 1, 2 ** int(power)
        found[f"{first}-{last}" if last > 2 else "2"] = int(count)
    return found
