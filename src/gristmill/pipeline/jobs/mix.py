"""`gristmill mix`: datasets in given proportions, as a dataset of its own on disk.

For trainers that read files in their order, or to fix a mixture once and for all. A stream needs none of this: it mixes
while it reads. Of each source whole epochs come first; of the last, incomplete epoch a part of the rows is chosen by a
permutation, so a larger size only adds rows. Sources are interleaved as by the step `mix`; left apart, whole epochs are
plain copies of shards. Memory: 16 bytes a row of the largest source, and one block of rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.books import Account
from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.numbers import check_bool, check_seed, check_whole_number
from gristmill.order import Permutation
from gristmill.order.permutation import epoch_key
from gristmill.order.shares import plan_shares
from gristmill.pipeline.jobs.mix_inputs import open_inputs
from gristmill.pipeline.jobs.mix_lane import InterleavedLane, select_rows, write_shard
from gristmill.pipeline.publishing.locked_output import lock_output
from gristmill.pipeline.work_folder import (
    WORK_FOLDER,
    check_output_folder,
    check_writable,
    remove_files,
    remove_work_folder,
)
from gristmill.shards.arrow_stream import mapped_batches
from gristmill.shards.manifest import MANIFEST, MIXED, Manifest, MixedShare, Schema, Shard, dump_manifest
from gristmill.shards.report import make_derived_files
from gristmill.steps.mix import UNITS
from gristmill.storage.commit import PendingFile, write_file
from gristmill.storage.stored_paths import StoredPath, decode_stored, path_below

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gristmill.order.shares import SourceShare
    from gristmill.pipeline.jobs.mix_inputs import MixSource
    from gristmill.shards.manifest import InputFile

    Choice = Mapping[str, tuple["Share", NDArray[np.bool_]]]

_SPLIT = "train"
_PLANNED = f"{WORK_FOLDER}/mix.json"
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


def mix(
    inputs: Mapping[str, tuple[str | os.PathLike[str], float]],
    output: str | os.PathLike[str],
    *,
    size: int,
    by: str = "tokens",
    max_epochs: float = 1.0,
    split: str = _SPLIT,
    seed: int = 0,
    interleave: bool = True,
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
        interleave: Write one lane, `train/mixed/`, every beginning of which holds each source in its share; documents
            get a column `source`. False: a folder for each source.

    Returns:
        What was taken of each.
    """
    check_choice("by", by, UNITS)
    size, seed = check_whole_number("size", size, least=1), check_seed(seed)
    interleave = check_bool("interleave", interleave)
    target = Path(output)
    weights, sources = open_inputs(inputs, split, by)
    if interleave and MIXED in weights:
        raise UsageError(f'"{MIXED}" is the name of the lane that is written', help="give this dataset another name")
    available = {source.name: int(source.row_weights.sum()) for source in sources}
    wanted = plan_shares(weights, available, size=size, by=by, max_epochs=max_epochs)
    chosen = {source.name: _choose_rows(source, wanted[source.name], seed) for source in sources}
    for name, (share, _) in chosen.items():
        if not share.taken:
            raise UsageError(f"{name}: of a size of {size:,} {by} nothing is left for it", help="choose a larger size")
    check_writable(target)
    if (target / MANIFEST).exists():
        raise UsageError(f"{target} holds a dataset already", help="choose another output folder")
    check_output_folder(target)
    with lock_output(target) as run_id:
        _remove_interrupted_mix(target)
        options = {"by": by, "size": size, "max_epochs": float(max_epochs), "seed": seed, "weights": weights}
        if interleave:
            written = _write_interleaved(sources, chosen, target, run_id)
        else:
            written = _write_apart(sources, chosen, target, run_id)
        _publish(sources, written, target, run_id, {**options, "interleave": interleave})
    return [chosen[source.name][0] for source in sources]


def _choose_rows(source: MixSource, wanted: SourceShare, seed: int) -> tuple[Share, NDArray[np.bool_]]:
    """Whole epochs, and which rows of the one that is not."""
    num_rows = len(source.row_weights)
    order = np.empty(num_rows, dtype=np.int64)
    order[Permutation(num_rows, epoch_key(seed, f"mix/{source.name}", 0))(np.arange(num_rows))] = np.arange(num_rows)
    reached = np.concatenate([[0], np.cumsum(source.row_weights[order])])
    count = wanted.count_rows_to_take(reached)
    is_taken = np.zeros(num_rows, dtype=np.bool_)
    is_taken[order[:count]] = True
    whole = wanted.whole_epochs
    taken = whole * wanted.available + int(reached[count])
    return Share(source.name, wanted.amount, wanted.available, whole, count, taken), is_taken


@dataclass(frozen=True, slots=True)
class _WrittenLanes:
    """What a mix has written."""

    lanes: dict[str, list[Shard]]
    num_rows: dict[str, int]
    """Of each source."""
    schema: Schema
    files: dict[str, InputFile]
    shares: dict[str, MixedShare] = field(default_factory=dict)
    """Of the one lane."""


def _write_interleaved(sources: list[MixSource], chosen: Choice, target: Path, run_id: str) -> _WrittenLanes:
    known: set[int] = set()
    rows = [
        select_rows(source, chosen[source.name][0].whole_epochs, chosen[source.name][1], known) for source in sources
    ]
    inputs = InterleavedLane(rows)
    write_file(target / _PLANNED, msgspec.json.encode(inputs.list_paths(_SPLIT)), run_id)
    shards = inputs.write(_SPLIT, target, run_id)
    shares = {of_source.source.name: of_source.measure_share() for of_source in rows}
    return _WrittenLanes(
        {MIXED: shards},
        {name: share.rows for name, share in shares.items()},
        Schema.of(inputs.schema),
        dict(chain.from_iterable(of_source.list_input_files() for of_source in rows)),
        shares,
    )


def _write_apart(sources: list[MixSource], chosen: Choice, target: Path, run_id: str) -> _WrittenLanes:
    planned = [
        _shard_path(source.name, number)
        for source in sources
        for number in range((chosen[source.name][0].whole_epochs + 1) * len(source.shards))
    ]
    write_file(target / _PLANNED, msgspec.json.encode(planned), run_id)
    lanes = {source.name: _write_source(source, *chosen[source.name], target, run_id) for source in sources}
    return _WrittenLanes(
        lanes,
        {name: sum(shard.rows for shard in shards) for name, shards in lanes.items()},
        sources[0].manifest.schema,
        {key: file for source in sources for key, file in source.manifest.files.items()},
    )


def _shard_path(source: str, number: int) -> str:
    return f"{_SPLIT}/{source}/shard-{number:05d}.arrow"


def _remove_interrupted_mix(target: Path) -> None:
    if (target / _PLANNED).exists():
        planned = path_below(target, _PLANNED)
        remove_files(target, decode_stored(planned.read_bytes(), list[StoredPath], planned))
        remove_work_folder(target)


def _write_source(
    source: MixSource, share: Share, is_taken: NDArray[np.bool_], target: Path, run_id: str
) -> list[Shard]:
    written: list[Shard] = []
    for _ in range(share.whole_epochs):
        for shard in source.shards:
            path = _shard_path(source.name, len(written))
            with PendingFile(target / path, run_id) as file:
                for piece in _read_pieces(shard.below(source.folder)):
                    file.write(piece)
                file.commit()
            written.append(msgspec.structs.replace(shard, path=path, bytes=file.num_bytes, xxh3=file.checksum))
    first = 0
    for shard in source.shards:
        rows = is_taken[first : first + shard.rows]
        first += shard.rows
        if rows.any():
            written.append(
                _write_chosen_rows(source, shard, rows, target, _shard_path(source.name, len(written)), run_id)
            )
    return written


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_COPY_BYTES):
            yield piece


def _write_chosen_rows(
    source: MixSource, shard: Shard, is_taken: NDArray[np.bool_], target: Path, path: str, run_id: str
) -> Shard:
    """The chosen rows of a shard, in their order."""

    def rows() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in mapped_batches(shard.below(source.folder)):
            yield batch.filter(pa.array(is_taken[first : first + batch.num_rows]))
            first += batch.num_rows

    return write_shard(rows(), source.manifest.schema.to_arrow(), target, path, run_id, shard.tasks)


def _publish(
    sources: list[MixSource], written: _WrittenLanes, target: Path, run_id: str, options: dict[str, object]
) -> None:
    """Side files, the tokenizer, and last the manifest."""
    first = sources[0].manifest
    tokenizer = first.tokenizer
    if tokenizer is not None:
        for file in tokenizer.files:
            write_file(file.below(target), file.below(sources[0].folder).read_bytes(), run_id)
    manifest = Manifest(
        kind=first.kind,
        format="arrow",
        schema=written.schema,
        splits={_SPLIT: written.lanes},
        mixed={_SPLIT: written.shares} if written.shares else {},
        books={source.name: [_make_account(source, written.num_rows[source.name]).to_dict()] for source in sources},
        recipe={"mix": {**options, "inputs": {source.name: str(source.folder) for source in sources}}},
        versions=first.versions,
        row_length=first.row_length,
        tokenizer=tokenizer,
        files=written.files,
    ).sealed()
    for path, content in make_derived_files(manifest).items():
        write_file(path_below(target, path), content, run_id)
    write_file(target / MANIFEST, b"".join(dump_manifest(manifest)), run_id)
    remove_work_folder(target)


def _make_account(source: MixSource, given: int) -> Account:
    """Rows in + repeats = rows out + rows that were not chosen."""
    taken = len(source.row_weights)
    left_out = Counter(not_chosen=taken - given) if given < taken else Counter[str]()
    return Account(step="mix", records_in=taken, created=max(given - taken, 0), records_out=given, dropped=left_out)
