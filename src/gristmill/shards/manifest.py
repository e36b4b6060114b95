"""The manifest: what a dataset holds, where it came from, and the proof of both.

It is written last; a folder without it is not a dataset. `dataset_hash` names the data: it is equal for equal
records in equal order, no matter when and where they were made. `checksum` guards the manifest itself, so that an
edited count or account is noticed too. Cost: about 250 bytes for each shard and each input file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import xxhash

from gristmill.core.books import Account  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.shards.stored_files import (
    MANIFEST,
    REBUILD,
    FileKey,
    InputFile,
    LaneIndex,
    MixedShare,
    Quarantine,
    Schema,
    ScoreFile,
    Shard,
    StoredFile,
    TokenizerIdentity,
)
from gristmill.shards.token_rows import ROW_DATASETS, find_schema_problem
from gristmill.storage.locations import Count, StoredName, parse_location
from gristmill.storage.user_cache import copy_locally

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from gristmill.storage.locations import Location


FORMAT_VERSION = 3
"""Raised with every change of the manifest's keys; no other version is read."""
_JSON_FORMATS = ("jsonl", "webdataset")
FORMATS = ("arrow", "parquet", *_JSON_FORMATS)
"""The formats of shards."""
RowLength = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
MIXED = "mixed"
"""The lane in which the records of several sources are interleaved."""


class DuplicateCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was kept for all its duplicates."""

    size: int
    """The number of documents, with the one that was kept."""
    source: str
    path: str
    position: int
    samples: list[str]
    """The beginning of its text, and of some that were removed."""


class Deduplicated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one `deduplicate` step."""

    file: StoredFile
    """A Parquet table: each removed document, the one that was kept for it, and how similar they are."""
    rows: int
    verify: str
    """How near duplicates were verified: by `text`, or by `signature`, which only estimates their similarity."""
    loss: dict[str, dict[str, int]]
    """By source: documents `in`, `duplicate` and `near_duplicate`."""
    cluster_sizes: dict[str, int]
    """The number of clusters with 2, 3-4, 5-8, … documents."""
    largest: list[DuplicateCluster]
    counts: dict[str, int]
    """Amounts of work: pairs compared, pairs whose texts were needed, documents that shared a band."""
    against: dict[FileKey, InputFile] = {}
    """The input files of `against`, as in `Manifest.files`."""
    against_read: dict[str, object] = {}
    """How they were read, as the keys of a source."""


class BenchmarkCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `decontaminate` for one benchmark."""

    items: Count
    found: Count
    """The number of items that were found in any source."""
    unchecked: dict[str, list[str]] = {}
    """The items that were not looked for, by reason: `too_short_to_check`, `only_shared_words`."""


class Decontaminated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one `decontaminate` step."""

    action: str
    benchmarks: dict[str, BenchmarkCheck]
    found: dict[str, dict[str, dict[str, int]]]
    """By benchmark and source: `documents` that hold an item, and `items` that were found."""
    common_ngrams: dict[str, int]
    """By source: the n-grams of items that are common in it, and were ignored."""


class KeptBest(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a `keep_best` step has ranked training documents by, and where it cut."""

    by: str
    """The column."""
    threshold: float | None
    """The worst value that was kept; with `per`, in any group. None: only documents without a value were."""
    borders: list[float]
    """Between the bars of the histogram: the first bar is for all values below the first border, the last one for the
    last border and all above it."""
    kept: list[Count]
    """Documents that were kept, bar by bar."""
    dropped: list[Count]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `manifest.json`: what a dataset holds, and how it was made."""

    format_version: int = FORMAT_VERSION
    kind: str
    """What the rows are: `documents`, `tokens`, or `chats`, which are tokens with a loss mask."""
    format: str
    """The format of the shards: `arrow`, `parquet`, `jsonl` or `webdataset`."""
    dataset_hash: str = ""
    fingerprint: str = ""
    """A hash of everything that decided the dataset; empty where the code of a function could not be known."""
    checksum: str = ""
    """The xxh3 hash of the manifest with this field empty."""
    environment_dependent: bool = False
    """Whether records were quarantined as `worker_died`, `timeout` or `out_of_memory`. Another run may keep them."""
    schema: Schema
    splits: dict[StoredName, dict[StoredName, list[Shard]]]
    """Split -> source -> shards, in the order of the records; or -> `mixed`, where the sources are interleaved. In the
    file it is empty where there is a `shard_list`."""
    shard_list: StoredFile | msgspec.UnsetType = msgspec.UNSET
    """The file that lists the shards, where there are very many (`shard_list`)."""
    index: dict[StoredName, dict[StoredName, LaneIndex]] = {}
    """Split -> source -> where the blocks of its shards are; empty where a stream describes third-party files."""
    mixed: dict[StoredName, dict[StoredName, MixedShare]] = {}
    """Split -> source -> its share of the lane `mixed`. Origins tell which record is from which source."""
    books: dict[str, list[Account]] = {}
    """Source -> the accounts of its steps, in order."""
    quarantine: Quarantine = Quarantine()
    dropped: list[StoredFile] = []
    """Records that steps have dropped, where the recipe keeps them: JSON lines, one file for each step and reason."""
    scores: list[ScoreFile] = []
    """What filters have measured in all documents that reached them; not part of `dataset_hash`."""
    recipe: dict[str, object] = {}
    versions: dict[str, str] = {}
    """Versions of the libraries that decided the dataset; for packages with plugins also a hash of their files."""
    plugins: dict[str, str] = {}
    """`step NAME`, `barrier NAME` or `reader NAME` -> the package that provides it, with its version."""
    row_length: RowLength | None = None
    """The number of tokens in each row of a packed dataset."""
    tokenizer: TokenizerIdentity | None = None
    mixture: dict[str, float] | None = None
    """The weights of the sources in training, if the recipe names them; None: by their numbers of rows."""
    deduplicated: list[Deduplicated] = []
    """One for each `deduplicate` step, in the order in which they were run."""
    decontaminated: list[Decontaminated] = []
    """One for each `decontaminate` step, in the order in which they were run."""
    best: list[KeptBest] | msgspec.UnsetType = msgspec.UNSET
    """One for each `keep_best` step, in the order in which they were run."""
    files: dict[FileKey, InputFile] = {}
    """`file_key(id)` -> the input file that records with this id in their origin are from."""

    def shards(self) -> Iterator[tuple[str, str, Shard]]:
        """Iterate over (split, source, shard), in order."""
        for split, sources in self.splits.items():
            for source, shards in sources.items():
                for shard in shards:
                    yield split, source, shard

    def shard_schema(self) -> pa.Schema | None:
        """Return the columns that every shard has; None where shards hold JSON.

        Raises:
            DamagedDatasetError: The manifest names an unknown format, or columns that its kind cannot have.
        """
        schema = self.schema.to_arrow()
        if self.format not in FORMATS:
            raise DamagedDatasetError(f"the {MANIFEST} names an unknown format {self.format!r}", help=REBUILD)
        if not self.holds_rows and self.format in _JSON_FORMATS:
            return None
        if problem := find_schema_problem(self.kind, schema):
            raise DamagedDatasetError(f"the {MANIFEST} cannot be right: {problem}", help=REBUILD)
        return schema

    def amounts(self, only: str | None = None) -> dict[str, MixedShare]:
        """Add up what all splits, or `only` one, hold of each source, with the lane `mixed`."""
        amounts: dict[str, list[Shard | MixedShare]] = {}
        for split, source, shard in self.shards():
            if only in (None, split) and not self.is_mixed(split, source):
                amounts.setdefault(source, []).append(shard)
        for split, shares in self.mixed.items():
            for source, share in shares.items():
                if only in (None, split):
                    amounts.setdefault(source, []).append(share)
        return {
            source: MixedShare(
                rows=sum(amount.rows for amount in source_amounts),
                tokens=sum(amount.tokens or 0 for amount in source_amounts) or None,
                trained_tokens=sum(amount.trained_tokens or 0 for amount in source_amounts),
            )
            for source, source_amounts in amounts.items()
        }

    def is_mixed(self, split: str, source: str) -> bool:
        """Tell whether this is a lane in which several sources are interleaved."""
        return source == MIXED and split in self.mixed

    @property
    def holds_rows(self) -> bool:
        """Whether the dataset holds rows of tokens, with a loss mask or without."""
        return self.kind in ROW_DATASETS

    def tokenizer_folder(self, folder: str | Location) -> Path:
        """Return the folder of the tokenizer, in a dataset of this folder; of a store, a copy of it."""
        if self.tokenizer is None or not self.tokenizer.files:
            raise UsageError("the dataset has no tokenizer: it holds no tokens")
        root = parse_location(folder)
        group = f"tokenizer-{self.tokenizer.content}"
        first, *_ = [copy_locally(file.below(root), file.bytes, file.xxh3, group) for file in self.tokenizer.files]
        return first.parent

    def stored_files(self) -> Iterator[StoredFile]:
        """List every file that the manifest names: shards, origins, index, removed records, the tokenizer."""
        for _, _, shard in self.shards():
            yield shard
            if shard.origins is not None:
                yield shard.origins
        for sources in self.index.values():
            for lane in sources.values():
                yield from lane.files()
        if self.shard_list:
            yield self.shard_list
        yield from self.quarantine.files
        yield from (step.file for step in self.deduplicated)
        yield from self.dropped
        yield from self.scores
        if self.tokenizer is not None:
            yield from self.tokenizer.files

    def seal(self) -> Manifest:
        """Return the manifest with its hash and checksum filled in. Call it last."""
        hashed = msgspec.structs.replace(self, dataset_hash=dataset_hash(self), checksum="")
        return msgspec.structs.replace(hashed, checksum=_compute_checksum(hashed))

    @property
    def is_sealed(self) -> bool:
        """Whether nothing has changed since `seal`."""
        return self.checksum == _compute_checksum(msgspec.structs.replace(self, checksum=""))


def dataset_hash(manifest: Manifest) -> str:
    """Hash the splits, sources, columns and shards' content in order; times, paths and versions do not count."""
    splits = [
        [split, [[source, [shard.xxh3 for shard in shards]] for source, shards in sources.items()]]
        for split, sources in manifest.splits.items()
    ]
    tokenizer = manifest.tokenizer.content if manifest.tokenizer is not None else None
    content = [manifest.kind, manifest.format, list(manifest.schema.columns.items()), tokenizer, splits]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(content))


def _compute_checksum(manifest: Manifest) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(manifest))
