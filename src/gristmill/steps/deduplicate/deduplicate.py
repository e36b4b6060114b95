"""`deduplicate`: keep one of each set of copies, over all sources together.

The step is a description, which also looks up the datasets of `against` while a run is planned. Its kernels are in this
folder; its barrier in the pipeline applies them to a corpus that is larger than memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.json_values import with_new_value
from gristmill.core.media import list_image_columns
from gristmill.core.records import RECORD, TEXT, SourceFile, StepResult
from gristmill.core.step import GlobalStep, LocalStep, StepPosition, StepTraits, check_choices
from gristmill.images.codec import SIGNATURE_BYTES, describe_codecs
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import list_source_files, with_detected_format
from gristmill.shards.kept_signatures import INDEX, load_kept_signatures
from gristmill.steps.column_names import require_column
from gristmill.steps.deduplicate.partitions import expect_partition_memory
from gristmill.steps.deduplicate.pieces import COLUMN, LINES, PARAGRAPHS, SUBSTRING
from gristmill.steps.edit_columns import require_content
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import parse_location
from gristmill.storage.paths import find_files
from gristmill.storage.urls import OBJECT_STORES, find_protocol
from gristmill.text.minhash import MinHash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


DUPLICATE = "duplicate"
"""The reason for dropping a copy of a text."""
NEAR_DUPLICATE = "near_duplicate"
"""The reason for dropping a text that is very similar to another one."""
DUPLICATE_COUNT = "duplicate_count"
AGAINST = "deduplicate.against"
"""The name in the place of a source's, in the origins of the documents of `against`."""

Kind = Literal["near", "exact", "image", "lines", "paragraphs", "substring"]
Verify = Literal["text", "signature"]
KINDS: tuple[str, ...] = get_args(Kind)
VERIFY: tuple[str, ...] = get_args(Verify)
_MAX_NGRAM = 64
MAX_IMAGE_DISTANCE = 24
"""Beyond this, bands have so few bits that most images would be compared with most others."""
_MAX_PERMUTATIONS = 4096
_MIN_RECALL = 0.5
_TEXT_PER_KEYS = 8
"""The bytes of text for a byte of band keys: those of a document of 1.9 kB have 216."""
_MAX_RUN = 1000
"""The longest run of words, in words."""


class Deduplicate(GlobalStep, tag="deduplicate", frozen=True, kw_only=True):
    """Keep one of each set of copies, over all sources together; drop the others and record the survivor of each.

    Equal texts, or samples without a text whose bytes are equal, are dropped as `duplicate`. With `kind: near` (the
    default), similar texts are dropped too, as `near_duplicate`: those whose set of word `ngram`s has a Jaccard
    similarity of at least `threshold` with that of the survivor itself. Texts with fewer than `ngram` words are
    compared exactly. With `kind: image`, images whose perceptual hashes differ in at most `max_distance` of 256 bits
    from that of the survivor, and have nearly its colours, are dropped as `near_duplicate`.

    The survivor is the one whose source comes first in `prefer`, then the longest (`prefer_longest`), then the first by
    source, file and position. `against` names a dataset or files whose documents always survive: their copies are
    dropped here.

    Candidates are found by `bands` of `rows` MinHash values. With `verify: text` signatures may reject a pair, but each
    removal is verified by comparing the shingle sets of both texts, and its similarity is exact; `signature` compares
    no texts, and its similarities are estimates. The run fails if a source loses more than `max_source_loss`, or if a
    cluster is larger than `max_cluster`.

    `kind: lines` and `paragraphs` remove the lines or paragraphs that have come before, in any document, and leave
    those of fewer than `min_words` words (5); `substring` removes runs of `min_words` words (50) and more that came
    before. Documents of which nothing is left are dropped as `duplicate`. `by: url` with `kind: exact` compares
    another column than the text.

    Documents of splits other than `train` all stay, even copies of each other; their copies in `train` are removed.
    `dropped/duplicates.parquet` names the survivor of each removed document. The step ends a stage.
    [Deduplicating](deduplicating.md) explains how it works, and what to do when it stops.

    `against` compares whole documents, and does not find a test question inside a page: `decontaminate` does.

    >>> Deduplicate(threshold=0.8).estimate_recall(0.8)
    0.9957...
    """

    version: ClassVar[int] = 3
    traits: ClassVar[StepTraits] = StepTraits(lists_removals=True, disk_copies=2)
    kernel_calls: ClassVar[str] = "gristmill.steps.deduplicate.clusters"
    kernel_modules: ClassVar[tuple[str, ...]] = (
        "gristmill.text.shingle_kernels",
        "gristmill.text.minhash",
        "gristmill.steps.deduplicate.candidates",
        "gristmill.steps.deduplicate.partitions",
        "gristmill.steps.deduplicate.clusters",
        "gristmill.steps.deduplicate.candidates",
    )
    not_fingerprinted: ClassVar[tuple[str, ...]] = (
        "max_source_loss",
        "max_cluster",
        "partition_bytes",
        "keep_signatures",
    )

    kind: Kind = "near"
    """`near`: similar texts; `exact`: equal ones only; `image`: similar [images](samples.md#similar-images);
    `lines`, `paragraphs`, `substring`: [pieces of texts](deduplicating.md#lines-paragraphs-substrings) that came
    before.
    """
    max_distance: int = 12
    """For `kind: image`: the most bits of 256 in which the perceptual hashes of two images may differ, up to 24."""
    threshold: float = 0.8
    """The Jaccard similarity of two sets of word n-grams from which on texts are similar."""
    ngram: int = 5
    """Words in a shingle; texts with fewer are compared exactly."""
    bands: int = 18
    """Bands of the MinHash signature; more of them find more pairs."""
    rows: int = 6
    """Values in a band; more of them find fewer pairs below the threshold."""
    verify: Verify = "text"
    """`text`: each removal is verified by both texts; `signature`: no texts are compared, similarities are
    estimates.
    """
    prefer: list[str] = msgspec.field(default_factory=list)
    """Sources, the most preferred first; the other sources come last, with equal rank."""
    prefer_longest: bool = True
    """Whether the longest document of equally preferred sources survives; else the first by source, file and
    position.
    """
    against: str | dict[str, Any] | None = None
    """Files or a dataset whose documents all stay, or the keys of a source: `{read: older.jsonl, text: content}`.
    [No decontamination](deduplicating.md#against-is-not-decontamination).
    """
    keep_signatures: bool = False
    """Whether to keep the signatures of the dataset's documents in `signatures/`, for later runs [against
    it](deduplicating.md#a-new-dump).
    """
    min_words: int | None = None
    """For `lines` and `paragraphs`: shorter ones all stay (5); for `substring`: the length of a run (50)."""
    by: str = TEXT
    """For `kind: exact`: the column that is compared, such as `url`. Documents without a value all stay."""
    count: bool = False
    """Whether to add the new column `duplicate_count`: how many documents each represents, including itself. Refused
    where records have one.
    """
    max_source_loss: float = 0.5
    """The run stops if a source would lose a larger share (and more than 10 documents)."""
    max_cluster: int = 100_000
    """The run stops if a cluster has more documents than this."""
    partition_bytes: int = 32 << 20
    """The size of the keys that a worker loads together; it uses about five times as much memory.

    Up to 16 times as much, where keys would else be read in small pieces of a store, or in more than 10^6.
    """

    def __post_init__(self) -> None:
        check_choices(type(self), msgspec.structs.asdict(self))
        for name in ("threshold", "max_source_loss"):
            share = getattr(self, name)
            if not 0 < share <= 1:  # refuses NaN too
                raise UsageError(f"{name} must be above 0 and at most 1, not {share}")
        for name in ("ngram", "bands", "rows", "max_cluster", "partition_bytes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.max_distance <= MAX_IMAGE_DISTANCE:
            raise UsageError(f"max_distance must be from 0 to {MAX_IMAGE_DISTANCE}, not {self.max_distance}")
        if self.ngram > _MAX_NGRAM:
            raise UsageError(f"ngram must be at most {_MAX_NGRAM}, not {self.ngram}")
        if self.bands * self.rows > _MAX_PERMUTATIONS:
            raise UsageError(
                f"bands ({self.bands}) times rows ({self.rows}) must be at most {_MAX_PERMUTATIONS}",
                help="18 bands of 6 rows find 99.5 % of pairs at 0.8",
            )
        if len(set(self.prefer)) < len(self.prefer):
            raise UsageError(f"prefer names a source twice: {', '.join(self.prefer)}")
        self._check_recall()
        self._check_pieces()
        if self.keep_signatures and (self._compares_pieces or self.kind == "image"):
            raise UsageError(f"keep_signatures is for kind: near and exact, not for kind: {self.kind}")
        if self.against is not None:
            self._parse_against()

    def _check_recall(self) -> None:
        recall = self.estimate_recall(self.threshold)
        if self.kind == "near" and recall < _MIN_RECALL:
            # With r rows in b bands half of the pairs are found at (1 - 0.5^(1/b))^(1/r).
            rows = int(math.log(1 - 0.5 ** (1 / self.bands)) / math.log(self.threshold)) if self.threshold < 1 else 1
            raise UsageError(
                f"threshold {self.threshold}: {self.bands} bands of {self.rows} rows would find only {recall:.0%} of "
                "the pairs with just this similarity",
                help=f"use at most {max(rows, 1)} rows, or more bands",
            )

    @property
    def num_band_keys(self) -> int:
        """The number of keys by which candidates of a document are found."""
        # Hashes that differ in d bits have one of d + 1 bands in common.
        return self.max_distance + 1 if self.kind == "image" else self.bands

    @property
    def sketch_bytes(self) -> int:
        """The bytes of a document that pairs are compared by."""
        return SIGNATURE_BYTES if self.kind == "image" else self.bands * self.rows

    @property
    def fingerprint_versions(self) -> object:
        return [self.version, describe_codecs()] if self.kind == "image" else self.version

    @property
    def _compares_pieces(self) -> bool:
        return self.kind in (LINES, PARAGRAPHS, SUBSTRING) or self.by != TEXT

    def _check_pieces(self) -> None:
        if self.by != TEXT and self.kind != "exact":
            raise UsageError(f"by: only kind: exact compares another column than the text, not kind: {self.kind}")
        if self.min_words is not None and not (self._compares_pieces and 1 <= self.min_words <= _MAX_RUN):
            raise UsageError(
                f"min_words is for lines, paragraphs and substrings, from 1 to {_MAX_RUN}: "
                f"kind is {self.kind}, min_words {self.min_words}"
            )
        if self._compares_pieces and (self.against is not None or self.count):
            key = "against" if self.against is not None else "count"
            raise UsageError(f"{key} is only for whole documents, not for kind: {self.kind}", help="leave it out")

    def estimate_recall(self, similarity: float) -> float:
        """Return the probability that two documents of this similarity are compared at all."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)

    @property
    def minhash(self) -> MinHash:
        return MinHash(self.ngram, self.bands, self.rows)

    def check_position(self, position: StepPosition) -> None:
        if self.keep_signatures and {"tokenize", "render"} & set(position.following):
            raise UsageError(
                f"{position.key} (deduplicate): keep_signatures signs the texts of the dataset, which will have none",
                help="write the documents with a separate recipe, and tokenize that dataset",
            )
        for name in self.prefer:
            if name not in position.sources:
                nearest = find_nearest(name, position.sources)
                sources_hint = f"the sources are {', '.join(position.sources)}"
                raise UsageError(
                    f'{position.key} (deduplicate): prefer names "{name}", which is not a source',
                    help=f'did you mean "{nearest}"?' if nearest else sources_hint,
                )

    def expected_barrier_bytes(self, num_bytes: int, *, on_store: bool) -> int:
        return expect_partition_memory(num_bytes // _TEXT_PER_KEYS, self.partition_bytes, on_store=on_store)

    def sample_step(self) -> LocalStep | None:
        return AddCopyCounts() if self.count else None

    def columns_added(self) -> tuple[str, ...]:
        return (DUPLICATE_COUNT,) if self.count else ()

    def columns_needed(self) -> tuple[str, ...]:
        if self.by != TEXT:
            return (self.by,)
        return () if self.kind in ("exact", "image") else (TEXT,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.kind == "near":
            require_column(self.name, TEXT, schema)
        if self.kind == "image" and not list_image_columns(schema):
            raise UsageError(
                "deduplicate: kind: image needs a column of images",
                help=f"there are {', '.join(schema.names)}; kind: exact compares bytes",
            )
        require_content(self.name, schema)
        if not self.count:
            return schema
        if DUPLICATE_COUNT in schema.names:
            raise UsageError(f'there is already a column "{DUPLICATE_COUNT}"', help="rename it before this step")
        return schema.append(pa.field(DUPLICATE_COUNT, pa.int64()))

    def resolve(self, folder: str) -> Deduplicate | DeduplicatePieces:
        """Find the files of `against`, or become the step that compares pieces."""
        if self._compares_pieces:
            kind = COLUMN if self.by != TEXT else self.kind
            default = {LINES: 5, PARAGRAPHS: 5, SUBSTRING: 50}.get(kind, 1)
            return DeduplicatePieces(
                kind=kind,
                min_words=self.min_words or default,
                by=self.by,
                prefer=self.prefer,
                max_source_loss=self.max_source_loss,
                partition_bytes=self.partition_bytes,
            )
        if self.against is None:
            return self
        read = self._parse_against()
        signed_folders = find_kept_folders(read.read, folder)
        if signed_folders and has_lost_shards(signed_folders):
            return self._resolve_without_texts(read, signed_folders)
        listed_files = find_files(read.read, base=folder)
        read = with_detected_format(read, listed_files)
        source_files = list_source_files(AGAINST, read, listed_files, needs_train=False)
        files = [msgspec.structs.replace(file, split="") for file in source_files]
        require_column("deduplicate: against", TEXT, plan_schema(read, files, keeps_record=False))
        fields = msgspec.structs.asdict(self)
        content = [file.identity for file in files]
        return DeduplicateAgainst(**fields, read=read, files=files, content=content, signed_folders=signed_folders)

    def _resolve_without_texts(self, read: Read, signed_folders: list[str]) -> DeduplicateAgainst:
        """Make the step that compares with kept signatures alone, because the texts are gone."""
        if self.verify == "text":
            raise UsageError(
                f"against: the texts of {', '.join(signed_folders)} are gone, so that near copies cannot be verified",
                help="bring the shards back, or write verify: signature: similarities are then estimates",
            )
        content = [hash_kept_signatures(folder) for folder in signed_folders]
        fields = msgspec.structs.asdict(self)
        return DeduplicateAgainst(**fields, read=read, files=[], content=content, signed_folders=signed_folders)

    def _parse_against(self) -> Read:
        keys = {"read": self.against} if isinstance(self.against, str) else self.against
        try:
            return msgspec.convert(keys, Read)
        except msgspec.ValidationError as error:
            raise UsageError(f"against: {error}", help='write a path, or {read: "…", text: "…"}') from error


class DeduplicateAgainst(Deduplicate, tag="deduplicate", frozen=True, kw_only=True):
    """The step with the files of `against` that the plan found."""

    not_fingerprinted: ClassVar[tuple[str, ...]] = (
        *Deduplicate.not_fingerprinted,
        "against",
        "files",
        "signed_folders",
    )

    read: Read
    files: list[SourceFile]
    content: list[Any]
    """The identities of the files: they change when a file changes."""
    signed_folders: list[str] = msgspec.field(default_factory=list)
    """The folders of the datasets, if all of them have kept signatures."""

    def input_files(self) -> list[SourceFile]:
        return self.files


class DeduplicatePieces(GlobalStep, tag="deduplicate", frozen=True, kw_only=True):
    """The step for lines, paragraphs, runs of words, or the values of a column."""

    version: ClassVar[int] = 4
    kernel_calls: ClassVar[str] = "gristmill.steps.deduplicate.pieces"
    kernel_modules: ClassVar[tuple[str, ...]] = (
        "gristmill.text.shingle_kernels",
        "gristmill.steps.deduplicate.partitions",
        "gristmill.steps.deduplicate.pieces",
    )
    not_fingerprinted: ClassVar[tuple[str, ...]] = ("max_source_loss", "partition_bytes")

    kind: str
    min_words: int
    by: str
    prefer: list[str]
    max_source_loss: float
    partition_bytes: int

    def expected_barrier_bytes(self, num_bytes: int, *, on_store: bool) -> int:
        return expect_partition_memory(num_bytes, self.partition_bytes, on_store=on_store)

    @property
    def preserves_documents(self) -> bool:
        """Whether documents only go or stay, and no text is edited."""
        return self.kind == COLUMN

    def columns_needed(self) -> tuple[str, ...]:
        return (self.by,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        require_column(self.name, self.by, schema)
        return schema


class AddCopyCounts(LocalStep, tag="deduplicate", frozen=True, kw_only=True):
    """A step that changes columns as `count` does, for the sample records of a plan, whose copies are not known."""

    def apply(self, batch: pa.RecordBatch, seed: int) -> StepResult:  # noqa: ARG002
        return StepResult(with_counts(batch, np.ones(batch.num_rows, np.int64)))


def with_counts(batch: pa.RecordBatch, counts: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the batch with the column `duplicate_count`, which JSON records get as a key.

    Raises:
        UsageError: A record has such a key already. Its meaning is not known here, so it is neither added up (those of
            removed records would have to be added too) nor overwritten.
    """
    if RECORD in batch.schema.names:
        index = batch.schema.get_field_index(RECORD)
        lines = zip(batch.column(index).to_pylist(), counts.tolist(), strict=True)
        try:
            changed = [with_new_value(line, DUPLICATE_COUNT, count) for line, count in lines]
        except ValueError as error:
            raise UsageError(
                f"deduplicate: count: {error}", help="rename or remove this key before this step, or set count: false"
            ) from error
        batch = batch.set_column(index, batch.schema.field(index), pa.array(changed, batch.schema.field(index).type))
    return batch.append_column(pa.field(DUPLICATE_COUNT, pa.int64()), pa.array(counts))


_KEEPING = frozenset({None, *OBJECT_STORES})
"""The protocols of folders that keep signatures."""


def find_kept_folders(patterns: str | Sequence[str], base: str) -> list[str]:
    """Return the folders that patterns name, if all are datasets of one store with kept signatures; else none."""
    names = [patterns] if isinstance(patterns, str) else list(patterns)
    protocols = {find_protocol(name) for name in names}
    if len(protocols) > 1 or not protocols <= _KEEPING:
        return []
    folders = [parse_location(name, base).absolute() for name in names]
    return [str(folder) for folder in folders] if all((folder / INDEX).is_file() for folder in folders) else []


def has_lost_shards(folders: Sequence[str]) -> bool:
    """Whether shards that were signed are no longer there."""
    for folder in map(parse_location, folders):
        index = load_kept_signatures(folder)
        if (
            index is not None
            and not {shard.path for shard in index.shards} <= dict(open_folder(folder).list_below()).keys()
        ):
            return True
    return False


def hash_kept_signatures(folder: str) -> str:
    """Hash the index of kept signatures: it names all files with their checksums."""
    return xxhash.xxh3_64_hexdigest((parse_location(folder) / INDEX).read_bytes())
