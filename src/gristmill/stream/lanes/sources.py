"""What a stream reads: its datasets, the chosen split and sources, and their lanes.

A lane has its own order: a permutation of all its rows, another one in each epoch. With weights each source is a lane.
Without weights all sources are one lane, so that an epoch is each row exactly once. In a lane whose sources were
interleaved when it was written, the input files that origins name tell them (`OriginSources`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.media import find_member, list_byte_columns
from gristmill.core.records import INPUT_IDS
from gristmill.shards.block_index import LaneBlocks, read_blocks
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.token_rows import list_parts
from gristmill.storage.locations import is_remote, parse_location
from gristmill.storage.user_cache import BlockCache
from gristmill.stream.lanes.foreign_tables import describe_tables, names_images, names_tables
from gristmill.stream.lanes.foreign_tars import describe_images, describe_samples, names_lines, names_tars

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gristmill.shards.manifest import Manifest
    from gristmill.stream.lanes.arguments import Cache, StreamArguments
    from gristmill.stream.lanes.table_blocks import ForeignDataset, TableFile


@dataclass(frozen=True, slots=True)
class OriginSources:
    """The source of each input file, in the mixed lane of one dataset."""

    files: NDArray[np.uint64]
    """The ids of the input files, sorted."""
    numbers: NDArray[np.uint16]
    """The number of each file's source in `names`."""
    names: list[str]
    labels: list[str]
    """The names that people see: prefixed with the dataset's name if there are several."""
    shares: Mapping[str, float]
    """The share of each label in the rows of the lane."""

    @classmethod
    def of(cls, manifest: Manifest, split: str, dataset: str) -> OriginSources:
        """Find the sources of a mixed lane; `dataset` is its name in a stream of several, else empty."""
        rows = {source: share.rows for source, share in manifest.mixed[split].items()}
        files = sorted((int(key, 16), file.source) for key, file in manifest.files.items() if file.source in rows)
        names = list(rows)
        labels = [f"{dataset}/{name}" if dataset else name for name in names]
        total = max(sum(rows.values()), 1)
        return cls(
            np.array([number for number, _ in files], dtype=np.uint64),
            np.array([names.index(source) for _, source in files], dtype=np.uint16),
            names,
            labels,
            {label: count / total for label, count in zip(labels, rows.values(), strict=True)},
        )

    def label(self, source: str) -> str:
        """Return the name of a source that people see."""
        return self.labels[self.names.index(source)]


@dataclass(frozen=True, slots=True, eq=False)
class RowShard:
    """A shard of token rows or of samples, with what a stream needs to know about it."""

    path: str
    folder: str
    """The folder of its dataset."""
    source: str
    """The name of the source that people see: prefixed with the dataset's name if there are several."""
    rows: int
    tokens: int | None
    bytes: int
    first_row: int
    """The number of its first row among all records of its dataset."""
    schema: pa.Schema
    """The schema of all shards of the dataset."""
    origin_sources: OriginSources | None = None
    """The sources of its rows, if it belongs to a mixed lane."""
    format: str = "arrow"
    origins: str | None = None
    """The file of the origins of its samples, if it is a tar."""
    checksum: str = ""
    """The checksum of its content."""
    blocks: LaneBlocks | None = None
    """Where its blocks are, if it is remote or blocks are shuffled."""
    starts: NDArray[np.int64] | None = None
    """Where each sample of a third-party tar begins, and where the last one ends."""
    table: TableFile | None = None
    """The file of a third-party table that it is made of."""
    version: str = ""
    """The version of a foreign file on a store: another one is refused."""

    @property
    def is_foreign(self) -> bool:
        """Whether it is a third-party file, not a shard of a dataset of Gristmill."""
        return self.table is not None or self.starts is not None

    @property
    def is_cached(self) -> bool:
        """Whether it is read through the cache of blocks."""
        return self.table is not None or is_remote(self.path)

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each source in its rows. For a mixed lane, the shares of the whole lane."""
        return {self.source: 1.0} if self.origin_sources is None else self.origin_sources.shares


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows that are shuffled together, in one order."""

    name: str
    shards: list[RowShard]

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def tokens(self, row_length: int | None) -> int:
        """Count the tokens, without padding if the manifest has counted them."""
        total = 0
        for shard in self.shards:
            if shard.tokens is None and row_length is None:
                raise UsageError(f"the manifest of {shard.folder} does not say how many tokens its shards hold")
            total += shard.rows * (row_length or 0) if shard.tokens is None else shard.tokens
        return total


@dataclass(frozen=True, slots=True)
class StreamDataset:
    """A dataset of a stream, with its lanes and their default shares."""

    name: str
    manifest: Manifest
    split: str
    sources: list[str]
    lanes: list[Lane]
    shares: dict[str, float] | None
    """The shares of its lanes by the manifest's mixture, 0 for a lane without rows; None: there is no mixture."""


def open_datasets(arguments: StreamArguments) -> list[StreamDataset]:
    """Open the datasets of a stream. With a mixture, each source of a single dataset is a lane."""
    if isinstance(arguments.data, Mapping):
        folders = {name: str(entry[0] if isinstance(entry, tuple) else entry) for name, entry in arguments.data.items()}
        weighted = False
    else:
        folders = {"": str(arguments.data)}
        weighted = arguments.mixture is not None
    # Shards on a store have blocks, and local ones in the same stream must have them too: rows are found by blocks.
    has_blocks = arguments.window is not None or any(is_remote(path) or names_tables(path) for path in folders.values())
    datasets = [
        _open(name, path, arguments, weighted=weighted, has_blocks=has_blocks) for name, path in folders.items()
    ]
    if not datasets:
        raise UsageError("a stream needs a dataset", help='for example Stream("out")')
    _check_compatible(datasets)
    names = [lane.name for dataset in datasets for lane in dataset.lanes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f'two sources of the stream are called "{twice}"', help="rename one of the datasets")
    if not any(lane.rows for dataset in datasets for lane in dataset.lanes):
        raise UsageError("the dataset has no rows to stream", help="run `gristmill inspect` to see what it holds")
    return datasets


def arrange_lanes(datasets: list[StreamDataset], *, weighted: bool) -> list[Lane]:
    """Arrange all rows in lanes: with weights the lanes of all datasets, without weights one lane."""
    lanes = [lane for dataset in datasets for lane in dataset.lanes]
    return lanes if weighted else [Lane("", [shard for lane in lanes for shard in lane.shards])]


def list_sources(lanes: Iterable[Lane]) -> list[str]:
    """List the names of all sources with rows, in the order of the lanes."""
    return list(dict.fromkeys(source for lane in lanes for shard in lane.shards for source in shard.shares))


def find_row_length(manifest: Manifest) -> int | None:
    """Find the number of tokens in each row; None: rows differ in length."""
    if not manifest.holds_rows:
        return None
    ids = manifest.schema.to_arrow().field(INPUT_IDS).type
    return int(ids.list_size) if pa.types.is_fixed_size_list(ids) else None


def hash_content(datasets: Iterable[StreamDataset]) -> str:
    """Hash the content of all datasets, their splits and sources, in their order."""
    content = [[dataset.name, dataset.manifest.dataset_hash, dataset.split, dataset.sources] for dataset in datasets]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(content))


def _open(name: str, path: str, arguments: StreamArguments, *, weighted: bool, has_blocks: bool) -> StreamDataset:
    foreign: ForeignDataset | None = None
    if names_tars(path) or names_lines(path):
        foreign = describe_samples(path, partial(open_block_cache, arguments))
    elif names_tables(path):
        samples = arguments.samples
        as_samples = samples.transform is not None or samples.tokenize is not None
        foreign = describe_tables(path, samples.ids, as_samples=as_samples)
    elif names_images(path):
        foreign = describe_images(path)
    if foreign is not None:
        path, manifest = foreign.folder, foreign.manifest
    else:
        manifest = load_manifest(path)
        _check_can_stream(path, manifest, arguments)
    split, sources = _choose_split(path, manifest, arguments.split), arguments.sources
    of_split = manifest.splits.get(split, {})
    for source in sources or ():
        if source not in of_split and source in manifest.mixed.get(split, {}):
            raise make_fixed_weights_error(path, manifest, split)
        check_choice("sources", source, of_split)
    chosen = [source for source in of_split if sources is None or source in sources]
    shards = _list_shards(name, path, manifest, split, chosen, foreign, has_blocks=has_blocks)
    lanes, shares = [Lane(name, [shard for group in shards.values() for shard in group])], None
    if weighted or (manifest.mixture is not None and len(chosen) > 1):
        lanes = [Lane(make_lane_name(name, source), shards[source]) for source in chosen]
        if (default := manifest.mixture) is not None:
            pairs = zip(lanes, chosen, strict=True)
            shares = {lane.name: float(default.get(source, 0.0)) if lane.rows else 0.0 for lane, source in pairs}
    return StreamDataset(name, manifest, split, chosen, lanes, shares)


def open_block_cache(arguments: StreamArguments) -> BlockCache:
    """Open the cache of blocks that a stream names, or that of the user."""
    default = choose_cache_folder(str(Path.home()), sys.platform, "blocks")
    cache = cast("Cache", arguments.cache)
    return BlockCache(Path(cache.folder or default), cache.max_bytes)


def make_fixed_weights_error(path: str, manifest: Manifest, split: str) -> UsageError:
    """Make the error for weights or a choice of sources in a mixed lane, which has fixed weights."""
    rows = {source: share.rows for source, share in manifest.mixed[split].items()}
    listed = ", ".join(f"{source} {count / max(sum(rows.values()), 1):.1%}" for source, count in rows.items())
    return UsageError(
        f"the sources of {path or 'the dataset'} were mixed when it was written ({listed}): their weights are fixed",
        help="stream the datasets that it was made of, or write it with interleave: false",
    )


def _choose_split(path: str, manifest: Manifest, split: str | None) -> str:
    if split is not None:
        check_choice("split", split, manifest.splits)
        return split
    if "train" in manifest.splits or not manifest.splits:
        return "train"
    if len(manifest.splits) > 1:
        raise UsageError(f"{path} has the splits {', '.join(manifest.splits)}", help='choose one: split="…"')
    return next(iter(manifest.splits))


def _check_can_stream(path: str, manifest: Manifest, arguments: StreamArguments) -> None:
    """Refuse a dataset whose records cannot be read by number, or hold neither tokens nor bytes."""
    if manifest.holds_rows and manifest.format == "arrow":
        manifest.shard_schema()  # raises for columns that rows of tokens cannot have
        return
    schema = manifest.schema.to_arrow()
    is_prepared = arguments.samples.tokenize is not None or arguments.samples.transform is not None
    if not list_byte_columns(schema) and not is_prepared:
        raise UsageError(
            f"{path} holds {manifest.kind}, not rows of tokens",
            help="add a `tokenize` step to its recipe, and `pack`, or tokenize when batches are made: "
            "samples=Samples(tokenize=…)",
        )
    is_indexed = manifest.format == "arrow" or any(find_member(field) for field in schema)
    if manifest.format not in ("arrow", "webdataset") or not is_indexed:
        raise UsageError(
            f"{path} holds samples as {manifest.format}, which cannot be read at random",
            help='write them with format: arrow or webdataset; files of Parquet stream by name: Stream("…/*.parquet")',
        )


def _list_shards(
    name: str,
    folder: str,
    manifest: Manifest,
    split: str,
    sources: list[str],
    foreign: ForeignDataset | None,
    *,
    has_blocks: bool,
) -> dict[str, list[RowShard]]:
    """List the shards with rows of each chosen source."""
    shards: dict[str, list[RowShard]] = {source: [] for source in sources}
    location = parse_location(folder)
    root = location.absolute()
    schema = manifest.schema.to_arrow()
    is_indexed = has_blocks and foreign is None
    lanes = {source: read_blocks(root, manifest, split, source) for source in sources} if is_indexed else {}
    numbers = dict.fromkeys(sources, 0)
    mixed = OriginSources.of(manifest, split, name) if split in manifest.mixed else None
    first_row = 0
    for of_split, source, shard in manifest.shards():
        is_chosen = of_split == split and source in shards
        if is_chosen and shard.rows:
            label = source if not name else name if len(sources) == 1 else f"{name}/{source}"
            shard_path = str(shard.below(root))
            file = None if foreign is None else foreign.files[shard_path]
            blocks = None if file is None else file.blocks
            if lanes:
                lane = lanes[source]
                first, end = np.searchsorted(lane.shard, [numbers[source], numbers[source] + 1])
                names = ("shard", "offset", "bytes", "rows", "xxh3")
                blocks = LaneBlocks(*(getattr(lane, column)[first:end] for column in names))
            shards[source].append(
                RowShard(
                    path=shard_path,
                    folder=folder,
                    source=label,
                    rows=shard.rows,
                    tokens=shard.tokens,
                    bytes=shard.bytes,
                    first_row=first_row,
                    schema=schema,
                    origin_sources=mixed if manifest.is_mixed(split, source) else None,
                    format=manifest.format,
                    origins=str(shard.origins.below(root)) if shard.origins is not None else None,
                    checksum=shard.xxh3 if file is None else file.key,
                    blocks=blocks,
                    starts=None if file is None else file.starts,
                    table=None if file is None else file.table,
                    version="" if file is None or not is_remote(shard_path) else file.version,
                )
            )
        if is_chosen:
            numbers[source] += 1
        first_row += shard.rows
    return shards


def make_lane_name(dataset: str, source: str) -> str:
    """Name the lane of a source: in a stream of several datasets with the name of its dataset."""
    return f"{dataset}/{source}" if dataset else source


def _check_compatible(datasets: list[StreamDataset]) -> None:
    """Refuse datasets whose rows cannot be in one batch: they differ in length or tokenizer."""
    first = datasets[0]
    for dataset in datasets[1:]:
        if first.manifest.holds_rows != dataset.manifest.holds_rows:
            raise UsageError(
                f"{first.name} holds {first.manifest.kind} and {dataset.name} {dataset.manifest.kind}",
                help="stream rows of tokens and samples separately",
            )
        if len({list_parts(entry.manifest.schema.to_arrow()) for entry in (first, dataset)}) > 1:
            raise UsageError(
                f"{first.name} and {dataset.name} have different rows: preferences, pairs or labels, are in one batch "
                "only with their like",
                help="stream them separately",
            )
        lengths = find_row_length(first.manifest), find_row_length(dataset.manifest)
        if lengths[0] != lengths[1]:
            words = ["rows of different lengths" if length is None else f"rows of {length}" for length in lengths]
            raise UsageError(
                f"{first.name} has {words[0]} and {dataset.name} {words[1]}", help="pack them with one row_length"
            )
        tokenizers = [entry.manifest.tokenizer for entry in (first, dataset)]
        if all(tokenizers) and len({tokenizer.content for tokenizer in tokenizers if tokenizer}) > 1:
            raise UsageError(
                f"{first.name} and {dataset.name} have different tokenizers", help="tokenize them with the same one"
            )
