"""The datasets of a mix: opened, found to go together, and counted row by row."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.names import check_choice
from gristmill.core.numbers import check_positive_number
from gristmill.core.recipe import check_source_name
from gristmill.shards.arrow_stream import mapped_batches
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.manifest import Manifest, Shard, load_manifest
from gristmill.shards.token_rows import LENGTHS, check_rows
from gristmill.storage.checksums import file_checksum

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class MixSource:
    """One of them."""

    name: str
    folder: Path
    manifest: Manifest
    shards: list[Shard]
    row_weights: NDArray[np.int64]
    """Of each row."""


def open_inputs(inputs: object, split: str, by: str) -> tuple[dict[str, float], list[MixSource]]:
    """Weights by name, and what is behind them."""
    folders, weights = _check_inputs(inputs)
    sources = [_open_source(name, folder, split, by) for name, folder in folders.items()]
    _check_compatible(sources)
    return weights, sources


def _check_inputs(inputs: object) -> tuple[dict[str, Path], dict[str, float]]:
    """Folders and weights by name."""
    folders, weights = {}, {}
    if not isinstance(inputs, Mapping) or not inputs:
        raise UsageError(f"a mix needs datasets, not {inputs!r:.80}", help='{"web": ("out/web", 0.7), …}')
    for name, given in inputs.items():
        check_source_name(name)
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str | os.PathLike):
            raise UsageError(f"{name} must be a folder and its weight, not {given!r:.80}", help='("out/web", 0.7)')
        folders[name], weights[name] = Path(given[0]), check_positive_number(f"the weight of {name}", given[1])
    return folders, weights


def _open_source(name: str, folder: Path, split: str, by: str) -> MixSource:
    manifest = load_manifest(folder)
    if manifest.format != "arrow":
        raise UsageError(
            f"{folder} holds {manifest.format} files, and mix takes Arrow shards", help="write: {format: arrow}"
        )
    if by == "tokens" and LENGTHS not in manifest.schema.columns:
        raise UsageError(f"{folder} holds {manifest.kind}, which have no tokens", help="by=rows, or tokenize it first")
    check_choice("split", split, manifest.splits)
    shards = [shard for of_split, _, shard in manifest.shards() if of_split == split and shard.rows]
    if not shards:
        raise UsageError(f"{folder} has no rows in the split {split}")
    schema = manifest.shard_schema()
    units = np.concatenate([_weigh_shard(folder, shard, by, schema) for shard in shards])
    if not units.any():
        raise UsageError(f"the rows of {folder} hold no {by}")
    return MixSource(name, folder, manifest, shards, units)


def _weigh_shard(folder: Path, shard: Shard, by: str, schema: pa.Schema | None) -> NDArray[np.int64]:
    """How much each row of a shard counts."""
    path = shard.below(folder)
    try:
        # Before anything in it is believed: a length that was damaged would be taken for a share.
        if path.stat().st_size != shard.bytes or file_checksum(str(path)) != shard.xxh3:
            raise _make_damage_error(folder, shard, "is not as it was written")
        units = np.concatenate(
            [np.zeros(0, np.int64), *(_weigh_rows(batch, by) for batch in mapped_batches(path, schema))]
        )
    except READ_ERRORS as error:
        raise _make_damage_error(folder, shard, f"cannot be read: {error}") from error
    if len(units) != shard.rows:
        raise _make_damage_error(folder, shard, f"holds {len(units)} rows, but the manifest says {shard.rows}")
    return units


def _make_damage_error(folder: Path, shard: Shard, problem: str) -> DamagedDatasetError:
    return DamagedDatasetError(f"{folder / shard.path} {problem}", help=f"run: gristmill verify {folder}")


def _weigh_rows(batch: pa.RecordBatch, by: str) -> NDArray[np.int64]:
    """How much each row of a batch counts."""
    if by == "rows" or LENGTHS not in batch.schema.names:
        return np.ones(batch.num_rows, dtype=np.int64)
    check_rows(batch)
    lengths = batch.column(LENGTHS)
    ends: NDArray[np.int32] = lengths.offsets.to_numpy()
    totals = np.arange(len(lengths.values) + 1)
    if by == "tokens":
        totals[1:] = np.cumsum(lengths.values.to_numpy())
    return np.diff(totals[ends])


def _check_compatible(sources: list[MixSource]) -> None:
    first = sources[0]
    for source in sources[1:]:
        if source.manifest.schema.columns != first.manifest.schema.columns:
            raise UsageError(
                f"{first.name} and {source.name} have different columns: {first.manifest.schema.columns} and "
                f"{source.manifest.schema.columns}",
                help="make them with the same tokenizer and row_length",
            )
        contents = {one.manifest.tokenizer.content for one in (first, source) if one.manifest.tokenizer is not None}
        if len(contents) > 1:
            raise UsageError(f"{first.name} and {source.name} have different tokenizers", help="tokenize them alike")
