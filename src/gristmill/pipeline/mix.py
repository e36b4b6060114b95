"""`gristmill mix`: datasets in given proportions, as a dataset of its own on disk.

For trainers that read files in their order, or to fix a mixture once and for all. A stream needs none of this: it mixes
while it reads. Whole epochs come first and are plain copies of shards; of the last, incomplete epoch a part of the rows
is chosen by a permutation, so a larger size only adds rows. Memory: 16 bytes a row of the largest source.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.books import Account
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.names import one_of
from gristmill.order import Permutation
from gristmill.order.permutation import epoch_key
from gristmill.pipeline.claim import claimed
from gristmill.pipeline.output import WORK, check_writable, remove_files, remove_work
from gristmill.shards.arrow_stream import STREAM_END, mapped_batches, stream_block, stream_header
from gristmill.shards.funnel import derived_files
from gristmill.shards.manifest import MANIFEST, Manifest, Shard, dump_manifest, load_manifest
from gristmill.shards.token_rows import LENGTHS, num_tokens
from gristmill.storage.checksums import file_checksum
from gristmill.storage.commit import PendingFile, write_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

UNITS = ("tokens", "rows", "documents")
_SPLIT = "train"
_PLANNED = f"{WORK}/mix.json"
"""Which files a mix will write: what a killed one has left is removed by the next."""
_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Share:
    """What a mix takes of one source."""

    source: str
    wanted: int
    """In the unit of the mix."""
    available: int
    whole_epochs: int
    partial_rows: int
    taken: int
    """In the unit of the mix; as near to `wanted` as whole rows allow."""

    @property
    def epochs(self) -> float:
        return self.taken / self.available


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    folder: Path
    manifest: Manifest
    shards: list[Shard]
    units: NDArray[np.int64]
    """Of each row."""


def mix(
    inputs: Mapping[str, tuple[str | os.PathLike[str], float]],
    output: str | os.PathLike[str],
    *,
    size: int,
    by: str = "tokens",
    max_epochs: float = 1.0,
    split: str = _SPLIT,
    seed: int = 0,
) -> list[Share]:
    """Write a dataset of `size` tokens, rows or documents out of several, in the proportions of their weights.

    Args:
        inputs: Name -> (folder, weight).
        output: The folder to make.
        size: How many in all, in the unit of `by`.
        by: "tokens", "rows" or "documents": what the weights are shares of.
        max_epochs: How often a source may be taken; more is refused.
        split: Of the inputs.
        seed: Of the choice of rows in an incomplete epoch.

    Returns:
        What was taken of each.
    """
    one_of("by", by, UNITS)
    if size < 1:
        raise UsageError(f"size must be at least 1, not {size}")
    target = Path(output)
    sources = [_open(name, Path(folder), split, by) for name, (folder, _) in inputs.items()]
    _check_alike(sources)
    wanted = _wanted({name: weight for name, (_, weight) in inputs.items()}, size)
    _check_feasible(sources, wanted, by, max_epochs)
    chosen = {source.name: _choose(source, wanted[source.name], seed) for source in sources}
    for name, (share, _) in chosen.items():
        if not share.taken:
            raise UsageError(f"{name}: of a size of {size:,} {by} nothing is left for it", help="choose a larger size")
    check_writable(target)
    with claimed(target) as run_id:
        if (target / MANIFEST).exists():
            raise UsageError(f"{target} holds a dataset already", help="choose another output folder")
        _forget_killed(target)
        write_file(target / _PLANNED, msgspec.json.encode(_planned(sources, chosen)), run_id)
        written = {source.name: _write(source, *chosen[source.name], target, run_id) for source in sources}
        _publish(sources, written, target, run_id, {"by": by, "size": size, "max_epochs": max_epochs, "seed": seed})
    return [chosen[source.name][0] for source in sources]


def _open(name: str, folder: Path, split: str, by: str) -> _Source:
    manifest = load_manifest(folder)
    if manifest.format != "arrow":
        raise UsageError(
            f"{folder} holds {manifest.format} files, and mix takes Arrow shards", help="write: {format: arrow}"
        )
    if by == "tokens" and LENGTHS not in manifest.schema.columns:
        raise UsageError(f"{folder} holds {manifest.kind}, which have no tokens", help="by=rows, or tokenize it first")
    one_of("split", split, manifest.splits)
    shards = [shard for of_split, _, shard in manifest.shards() if of_split == split and shard.rows]
    if not shards:
        raise UsageError(f"{folder} has no rows in the split {split}")
    counts = [_units(batch, by) for shard in shards for batch in mapped_batches(folder / shard.path)]
    return _Source(name, folder, manifest, shards, np.concatenate(counts))


def _units(batch: pa.RecordBatch, by: str) -> NDArray[np.int64]:
    """How much each row of a batch counts."""
    if by == "rows" or LENGTHS not in batch.schema.names:
        return np.ones(batch.num_rows, dtype=np.int64)
    lengths = batch.column(LENGTHS)
    ends: NDArray[np.int32] = lengths.offsets.to_numpy()
    totals = np.arange(len(lengths.values) + 1)
    if by == "tokens":
        totals[1:] = np.cumsum(lengths.values.to_numpy())
    return np.diff(totals[ends])


def _check_alike(sources: list[_Source]) -> None:
    if not sources:
        raise UsageError("a mix needs a dataset", help="name=folder:weight")
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


def _wanted(weights: Mapping[str, float], size: int) -> dict[str, int]:
    total = sum(weights.values())
    for name, weight in weights.items():
        if not 0 < weight < float("inf"):
            raise UsageError(f"the weight of {name} must be above 0, not {weight:g}")
    return {name: round(size * weight / total) for name, weight in weights.items()}


def _check_feasible(sources: list[_Source], wanted: Mapping[str, int], by: str, max_epochs: float) -> None:
    """Refuse what is not there, and say by how much it is missed and what would work."""
    limits = {source.name: int(max_epochs * int(source.units.sum())) for source in sources}
    short = [name for name, limit in limits.items() if wanted[name] > limit]
    if not short:
        return
    worst = max(short, key=lambda name: wanted[name] / max(limits[name], 1))
    possible = int(sum(wanted.values()) * limits[worst] / wanted[worst])
    listed = "; ".join(
        f"{name}: {wanted[name]:,} {by} are wanted, {limits[name]:,} are there in {max_epochs:g} epochs, "
        f"{wanted[name] - limits[name]:,} short"
        for name in short
    )
    raise UsageError(
        listed, help=f"take a size of at most {possible:,}, lower the weight of {worst}, or raise max_epochs"
    )


def _choose(source: _Source, wanted: int, seed: int) -> tuple[Share, NDArray[np.bool_]]:
    """Whole epochs, and which rows of the one that is not."""
    available = int(source.units.sum())
    whole, left = divmod(wanted, available)
    num_rows = len(source.units)
    order = np.empty(num_rows, dtype=np.int64)
    order[Permutation(num_rows, epoch_key(seed, f"mix/{source.name}", 0))(np.arange(num_rows))] = np.arange(num_rows)
    reached = np.concatenate([[0], np.cumsum(source.units[order])])
    count = int(np.searchsorted(reached, left))
    if count and reached[count] - left > left - reached[count - 1]:
        count -= 1
    is_taken = np.zeros(num_rows, dtype=np.bool_)
    is_taken[order[:count]] = True
    share = Share(source.name, wanted, available, whole, count, whole * available + int(reached[count]))
    return share, is_taken


def _planned(sources: list[_Source], chosen: Mapping[str, tuple[Share, NDArray[np.bool_]]]) -> list[str]:
    return [
        _shard_path(source.name, number)
        for source in sources
        for number in range((chosen[source.name][0].whole_epochs + 1) * len(source.shards))
    ]


def _shard_path(source: str, number: int) -> str:
    return f"{_SPLIT}/{source}/shard-{number:05d}.arrow"


def _forget_killed(target: Path) -> None:
    if (target / _PLANNED).exists():
        remove_files(target, msgspec.json.decode((target / _PLANNED).read_bytes(), type=list[str]))
        remove_work(target)


def _write(source: _Source, share: Share, is_taken: NDArray[np.bool_], target: Path, run_id: str) -> list[Shard]:
    written: list[Shard] = []
    for shard in source.shards:
        if file_checksum(str(source.folder / shard.path)) != shard.xxh3:
            raise DamagedDatasetError(
                f"{source.folder / shard.path} is not as it was written", help=f"run: gristmill verify {source.folder}"
            )
    for _ in range(share.whole_epochs):
        for shard in source.shards:
            path = _shard_path(source.name, len(written))
            with PendingFile(target / path, run_id) as file:
                for piece in _pieces(source.folder / shard.path):
                    file.write(piece)
                file.commit()
            written.append(msgspec.structs.replace(shard, path=path, bytes=file.num_bytes, xxh3=file.checksum))
    first = 0
    for shard in source.shards:
        rows = is_taken[first : first + shard.rows]
        first += shard.rows
        if rows.any():
            written.append(_write_part(source, shard, rows, target, _shard_path(source.name, len(written)), run_id))
    return written


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_COPY_BYTES):
            yield piece


def _write_part(
    source: _Source, shard: Shard, is_taken: NDArray[np.bool_], target: Path, path: str, run_id: str
) -> Shard:
    """The chosen rows of a shard, in their order."""
    schema = source.manifest.schema.to_arrow()
    tokens = 0 if LENGTHS in schema.names else None
    start = 0
    with PendingFile(target / path, run_id) as file:
        file.write(stream_header(schema))
        for batch in mapped_batches(source.folder / shard.path):
            rows = batch.filter(pa.array(is_taken[start : start + batch.num_rows]))
            start += batch.num_rows
            file.write(stream_block(rows, schema))
            if tokens is not None:
                tokens += num_tokens(rows)
        file.write(STREAM_END)
        file.commit()
    num_rows = int(np.count_nonzero(is_taken))
    return Shard(path=path, bytes=file.num_bytes, xxh3=file.checksum, rows=num_rows, tokens=tokens, tasks=shard.tasks)


def _publish(
    sources: list[_Source], written: dict[str, list[Shard]], target: Path, run_id: str, options: dict[str, object]
) -> None:
    """Side files, the tokenizer, and last the manifest."""
    first = sources[0].manifest
    tokenizer = first.tokenizer
    if tokenizer is not None:
        for file in tokenizer.files:
            write_file(target / file.path, (sources[0].folder / file.path).read_bytes(), run_id)
    manifest = Manifest(
        kind=first.kind,
        format="arrow",
        schema=first.schema,
        splits={_SPLIT: written},
        books={source.name: [_account(source, written[source.name]).to_dict()] for source in sources},
        recipe={"mix": {**options, "inputs": {source.name: str(source.folder) for source in sources}}},
        versions=first.versions,
        row_length=first.row_length,
        tokenizer=tokenizer,
        files={key: file for source in sources for key, file in source.manifest.files.items()},
    ).sealed()
    for path, content in derived_files(manifest).items():
        write_file(target / path, content, run_id)
    write_file(target / MANIFEST, b"".join(dump_manifest(manifest)), run_id)
    remove_work(target)


def _account(source: _Source, written: list[Shard]) -> Account:
    """Rows in + repeats = rows out + rows that were not chosen."""
    given, taken = sum(shard.rows for shard in written), len(source.units)
    left_out = Counter(not_chosen=taken - given) if given < taken else Counter[str]()
    return Account(step="mix", taken=taken, created=max(given - taken, 0), given=given, dropped=left_out)
