"""What a manifest says about steps that look at all documents: what was removed, and for what."""

from __future__ import annotations

import msgspec

from gristmill.shards.manifests.stored_files import FileKey, InputFile, StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.storage.stored_paths import Count  # noqa: TC001  (msgspec looks at the types of fields)


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
