"""Opens the reader of a stream: of rows of tokens or of samples, with a cache for what is not on this disk."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.core.errors import UsageError
from gristmill.shards.token_rows import has_image_references
from gristmill.stream.batches.collate import Collate, choose_pad_id
from gristmill.stream.lanes.sources import find_row_length, list_sources
from gristmill.stream.row_reader import RowReader

if TYPE_CHECKING:
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.user_cache.block_cache import BlockCache
    from gristmill.stream.lanes.arguments import StreamArguments
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import Lane, StreamDataset
    from gristmill.stream.samples.sample_rows import SampleRows
    from gristmill.stream.stored_rows.remote_table import RemoteTable
    from gristmill.stream.stored_rows.row_images import RowImages
    from gristmill.stream.stored_rows.row_table import RowTable


def has_samples(dataset: StreamDataset) -> bool:
    """Whether the rows of a dataset are stored as samples, not as tokens."""
    return not dataset.manifest.holds_rows


def open_reader(
    arguments: StreamArguments, manifest: Manifest, lanes: list[Lane], order: RowOrder, num_rows: int | None
) -> RowReader | SampleRows:
    """Open the reader of these lanes. `manifest` is that of their first dataset."""
    sources = list_sources(lanes)
    has_images = has_image_references(manifest.schema.to_arrow())
    _check_kind(arguments, holds_samples=not manifest.holds_rows, has_images=has_images)
    cache = _open_cache(lanes, arguments)
    if not manifest.holds_rows:
        from gristmill.stream.samples.sample_rows import SampleRows  # noqa: PLC0415  (few streams are of samples)

        return SampleRows(lanes, order, sources, arguments, num_rows, cache)
    collate, tokenizer = arguments.collate or Collate(), manifest.tokenizer
    pad_ids = (None, None) if tokenizer is None else (tokenizer.pad_id, tokenizer.eos_id)
    return RowReader(
        lanes,
        order,
        sources,
        collate,
        choose_pad_id(collate, *pad_ids),
        row_length=find_row_length(manifest),
        num_rows=num_rows,
        open_images=partial(_open_images, lanes, arguments) if has_images else None,
        shuffle=bool(arguments.shuffle),
        cache=cache,
    )


def _open_images(lanes: list[Lane], arguments: StreamArguments, table: RowTable | RemoteTable) -> RowImages:
    from gristmill.stream.stored_rows.row_images import RowImages  # noqa: PLC0415  (few streams have images)

    shards = [shard for lane in lanes for shard in lane.shards]
    return RowImages(shards, table, arguments.images, arguments.decode)


def _open_cache(lanes: list[Lane], arguments: StreamArguments) -> BlockCache | None:
    """Open the cache of blocks, if a shard is read through it."""
    if not any(shard.is_cached for lane in lanes for shard in lane.shards):
        return None
    from gristmill.storage.user_cache.block_cache import BlockCache  # noqa: PLC0415  (local streams need none of it)

    default = choose_cache_folder(str(Path.home()), sys.platform, "blocks")
    return BlockCache(Path(arguments.cache or default), arguments.cache_bytes)


def _check_kind(arguments: StreamArguments, *, holds_samples: bool, has_images: bool) -> None:
    """Refuse arguments that the rows of this stream do not have."""
    if arguments.images is not None and not has_images:
        raise UsageError("images is for rows of chats with images, and these have none", help="leave it out")
    makes_tokens = arguments.tokenize is not None or arguments.ids is not None
    if holds_samples:
        if arguments.decode is None:
            msgspec.structs.force_setattr(arguments, "decode", "numpy")
        if arguments.tokens is not None or arguments.weights_in == "tokens":
            raise UsageError("samples have no known number of tokens", help="use rows= and weights in rows")
        if arguments.balance:
            raise UsageError("samples have no known attention cost: balance is for rows of tokens", help="leave it out")
        if arguments.collate is not None and not makes_tokens:
            raise UsageError(
                "samples have no tokens: collate is for rows of tokens",
                help="pass tokenize= or ids= to Stream; on the command line, which has neither, make rows of tokens "
                "first: `gristmill run` a recipe with read and tokenize, and name its output",
            )
    elif has_images and arguments.decode is not None and arguments.images is None:
        raise UsageError("decode: the rows only refer to images", help="name the images of the recipe: images=…")
    elif (
        (arguments.decode is not None and not has_images)
        or arguments.transform is not None
        or arguments.tokenize is not None
        or arguments.on_error != "raise"
    ):
        raise UsageError("decode, transform, tokenize and on_error are for samples, and these are rows of tokens")
