"""What a stream reads: datasets opened, splits and sources chosen, and arranged in lanes.

A lane is what has one order of its own: a permutation of all its rows, another in each epoch. Sources with weights are
a lane each. Sources without weights among them are one lane together, so that an epoch is each row once, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.records import INPUT_IDS
from gristmill.shards.manifest import load_manifest
from gristmill.stream.origin_sources import OriginSources

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from gristmill.shards.manifest import Manifest
    from gristmill.stream.arguments import StreamArguments

    StreamData = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str] | tuple[str | os.PathLike[str], float]]


@dataclass(frozen=True, slots=True)
class RowShard:
    """A shard, as a stream needs to know it."""

    path: str
    folder: str
    """Of its dataset."""
    source: str
    """For people: the source's name, with the dataset's before it where there are several."""
    rows: int
    tokens: int | None
    bytes: int
    first_row: int
    """Among all records of its dataset."""
    schema: pa.Schema
    """Which every shard of the dataset has."""
    origin_sources: OriginSources | None = None
    """Of a mixed lane: its rows are from many sources."""

    @property
    def shares(self) -> Mapping[str, float]:
        """Of its rows, by source; of a mixed lane, those of the whole lane."""
        return {self.source: 1.0} if self.origin_sources is None else self.origin_sources.shares


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows with one order of their own."""

    name: str
    shards: list[RowShard]

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def tokens(self, row_length: int | None) -> int:
        """Without padding, where the manifest has counted them."""
        return sum(_tokens(shard, row_length) for shard in self.shards)


@dataclass(frozen=True, slots=True)
class StreamDataset:
    """One dataset of a stream: its lanes, and the default share of each in it."""

    name: str
    manifest: Manifest
    split: str
    sources: list[str]
    lanes: list[Lane]
    shares: dict[str, float] | None
    """Of its lanes, from the manifest's mixture, 0 for one without rows; None: the manifest has none."""


def open_datasets(arguments: StreamArguments) -> list[StreamDataset]:
    """Open the datasets of a stream. With a mixture, every source of a single dataset has a lane of its own."""
    split, sources = arguments.split, arguments.sources
    if isinstance(arguments.data, Mapping):
        folders = {name: entry[0] if isinstance(entry, tuple) else entry for name, entry in arguments.data.items()}
        datasets = [_open(name, str(path), split, sources, weighted=False) for name, path in folders.items()]
    else:
        datasets = [_open("", str(arguments.data), split, sources, weighted=arguments.mixture is not None)]
    if not datasets:
        raise UsageError("a stream needs a dataset", help='for example Stream("out")')
    _check_alike(datasets)
    names = [lane.name for dataset in datasets for lane in dataset.lanes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f'two sources of the stream are called "{twice}"', help="give the datasets other names")
    if not any(lane.rows for dataset in datasets for lane in dataset.lanes):
        raise UsageError("there is no row to stream", help="`gristmill inspect` shows what a dataset holds")
    return datasets


def arrange_lanes(datasets: list[StreamDataset], *, weighted: bool) -> list[Lane]:
    """All lanes; one for everything where there are no weights."""
    lanes = [lane for dataset in datasets for lane in dataset.lanes]
    return lanes if weighted else [Lane("", [shard for lane in lanes for shard in lane.shards])]


def list_sources(lanes: Iterable[Lane]) -> list[str]:
    """List the names of all sources with rows, in the order of the lanes."""
    return list(dict.fromkeys(source for lane in lanes for shard in lane.shards for source in shard.shares))


def find_row_length(manifest: Manifest) -> int | None:
    """Tokens in each row; None where rows have lengths of their own."""
    ids = manifest.schema.to_arrow().field(INPUT_IDS).type
    return int(ids.list_size) if pa.types.is_fixed_size_list(ids) else None


def hash_content(datasets: Iterable[StreamDataset]) -> str:
    """Of all that is streamed, in its arrangement."""
    content = [[dataset.name, dataset.manifest.dataset_hash, dataset.split, dataset.sources] for dataset in datasets]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(content))


def _open(name: str, path: str, split: str | None, sources: Sequence[str] | None, *, weighted: bool) -> StreamDataset:
    if "://" in path:
        raise UsageError(f"a dataset is streamed from a local folder, not from {path}", help="copy it to a disk first")
    manifest = load_manifest(path)
    if not manifest.holds_rows or manifest.format != "arrow":
        raise UsageError(
            f"{path} holds {manifest.kind}, not rows of tokens", help="add a `tokenize` step to its recipe, and `pack`"
        )
    split = _split(path, manifest, split)
    of_split = manifest.splits.get(split, {})
    for source in sources or ():
        if source not in of_split and source in manifest.mixed.get(split, {}):
            raise make_fixed_weights_error(path, manifest, split)
        check_choice("sources", source, of_split)
    chosen = [source for source in of_split if sources is None or source in sources]
    shards = _shards(name, path, manifest, split, chosen)
    if weighted or (manifest.mixture is not None and len(chosen) > 1):
        lanes = [Lane(_lane_name(name, source), shards[source]) for source in chosen]
        default = manifest.mixture
        shares = None
        if default is not None:
            pairs = zip(lanes, chosen, strict=True)
            shares = {lane.name: float(default.get(source, 0.0)) if lane.rows else 0.0 for lane, source in pairs}
        return StreamDataset(name, manifest, split, chosen, lanes, shares)
    return StreamDataset(
        name, manifest, split, chosen, [Lane(name, [shard for group in shards.values() for shard in group])], None
    )


def make_fixed_weights_error(path: str, manifest: Manifest, split: str) -> UsageError:
    """Why the sources of a mixed lane can be neither weighed nor left out."""
    rows = {source: share.rows for source, share in manifest.mixed[split].items()}
    listed = ", ".join(f"{source} {count / max(sum(rows.values()), 1):.1%}" for source, count in rows.items())
    return UsageError(
        f"the sources of {path or 'the dataset'} were mixed when it was written ({listed}): they have no other weights",
        help="stream the datasets that it was made of, or write it with interleave: false",
    )


def _split(path: str, manifest: Manifest, split: str | None) -> str:
    if split is not None:
        check_choice("split", split, manifest.splits)
        return split
    if "train" in manifest.splits or not manifest.splits:
        return "train"
    if len(manifest.splits) > 1:
        raise UsageError(f"{path} has the splits {', '.join(manifest.splits)}", help='choose one: split="…"')
    return next(iter(manifest.splits))


def _shards(name: str, folder: str, manifest: Manifest, split: str, sources: list[str]) -> dict[str, list[RowShard]]:
    """The shards of each chosen source that hold rows."""
    found: dict[str, list[RowShard]] = {source: [] for source in sources}
    root, schema = Path(folder).absolute(), manifest.shard_schema()
    mixed = OriginSources.of(manifest, split, name) if split in manifest.mixed else None
    first_row = 0
    for of_split, source, shard in manifest.shards():
        if of_split == split and source in found and shard.rows:
            label = source if not name else name if len(sources) == 1 else f"{name}/{source}"
            found[source].append(
                RowShard(
                    path=str(shard.below(root)),
                    folder=folder,
                    source=label,
                    rows=shard.rows,
                    tokens=shard.tokens,
                    bytes=shard.bytes,
                    first_row=first_row,
                    schema=schema,
                    origin_sources=mixed if manifest.is_mixed(split, source) else None,
                )
            )
        first_row += shard.rows
    return found


def _lane_name(dataset: str, source: str) -> str:
    return f"{dataset}/{source}" if dataset else source


def _check_alike(datasets: list[StreamDataset]) -> None:
    """Rows of different lengths or tokenizers cannot stand in one batch."""
    first = datasets[0]
    for dataset in datasets[1:]:
        lengths = find_row_length(first.manifest), find_row_length(dataset.manifest)
        if lengths[0] != lengths[1]:
            words = ["rows of different lengths" if length is None else f"rows of {length}" for length in lengths]
            raise UsageError(
                f"{first.name} has {words[0]} and {dataset.name} {words[1]}", help="pack them with one row_length"
            )
        tokenizers = [one.manifest.tokenizer for one in (first, dataset)]
        if all(tokenizers) and len({tokenizer.content for tokenizer in tokenizers if tokenizer}) > 1:
            raise UsageError(
                f"{first.name} and {dataset.name} have different tokenizers", help="tokenize them with the same one"
            )


def _tokens(shard: RowShard, row_length: int | None) -> int:
    if shard.tokens is not None:
        return shard.tokens
    if row_length is not None:
        return shard.rows * row_length
    raise UsageError(f"the manifest of {shard.folder} does not say how many tokens its shards hold")
