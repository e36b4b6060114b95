"""`gristmill mix`: several datasets in fixed proportions, written as one dataset.

For trainers that read files in their order, or to fix a mixture once and for all. `Stream` needs no such copy: it mixes
while it reads. Whole epochs of a source come first; the rows of the last, incomplete epoch are chosen by a permutation,
so a larger size only adds rows. Sources are interleaved as by the step `mix`; without interleaving, whole epochs are
plain copies of shards. Shards are written to the work folder and published like those of a run, so a mix that is killed
leaves no half dataset. Memory: 16 bytes for each row of the largest source, and one block of rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from gristmill.core.books import Account
from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.numbers import check_bool, check_seed, check_whole_number
from gristmill.core.recipe import DEFAULT_SAMPLES
from gristmill.order import Permutation
from gristmill.order.permutation import make_epoch_key
from gristmill.order.shares import plan_shares
from gristmill.pipeline.jobs.mix_inputs import open_inputs
from gristmill.pipeline.jobs.mix_lane import InterleavedLane, select_rows, write_shard
from gristmill.pipeline.publishing.journal import replace_dataset
from gristmill.pipeline.publishing.locked_output import lock_output
from gristmill.pipeline.publishing.report_files import publish_report
from gristmill.pipeline.work_folder import check_output_folder, check_writable, remove_work_folder, work_path
from gristmill.shards.arrow_stream import read_mapped_batches
from gristmill.shards.block_index import BlockIndexWriter, scan_blocks
from gristmill.shards.manifests.manifest import MIXED, Manifest
from gristmill.shards.manifests.stored_files import MANIFEST, MixedShare, Schema, Shard
from gristmill.steps.mix import UNITS
from gristmill.storage.commit import PendingFile, write_file
from gristmill.storage.locations import parse_location

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gristmill.order.shares import SourceShare
    from gristmill.pipeline.jobs.mix_inputs import MixSource
    from gristmill.shards.block_index import ShardBlocks
    from gristmill.shards.manifests.stored_files import InputFile, LaneIndex
    from gristmill.storage.leases.output_lock import HeldOutput
    from gristmill.storage.locations import Location

    Selection = Mapping[str, tuple["Share", NDArray[np.bool_]]]
    """By source: its share, and which rows of the incomplete epoch belong to it."""

_SPLIT = "train"
_INDEX = "index"
_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one source in a mix. Amounts are in the unit of the mix: tokens, rows or documents."""

    source: str
    wanted: int
    """The amount that the weights ask for."""
    available: int
    """The amount in one epoch."""
    whole_epochs: int
    partial_rows: int
    """Number of rows from the incomplete epoch."""
    taken: int
    """The amount that is written: as near to `wanted` as whole rows allow."""

    @property
    def epochs(self) -> float:
        """How often the source is taken."""
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
    """Write a dataset of `size` tokens, rows or documents from several datasets, in the proportions of their weights.

    Args:
        inputs: Name -> (folder, weight).
        output: The folder to create.
        size: The total amount, in the unit of `by`.
        by: "tokens", "rows" or "documents": what `size` and the weights count.
        max_epochs: How often a source may be taken; a mix that needs more is refused.
        split: The split of the inputs that is read.
        seed: Seed for the choice of rows in an incomplete epoch.
        interleave: Write one lane, `train/mixed/`, every beginning of which holds each source in its share; documents
            get a column `source`. False: a folder for each source.

    Returns:
        The share of each source.
    """
    check_choice("by", by, UNITS)
    size, seed = check_whole_number("size", size, least=1), check_seed(seed)
    interleave = check_bool("interleave", interleave)
    target = parse_location(output)
    weights, sources = open_inputs(inputs, split, by)
    if interleave and MIXED in weights:
        raise UsageError(f'"{MIXED}" is the name of the lane that is written', help="give this dataset another name")
    available = {source.name: int(source.row_weights.sum()) for source in sources}
    shares = plan_shares(weights, available, size=size, by=by, max_epochs=max_epochs)
    selection = {source.name: _select_rows(source, shares[source.name], seed) for source in sources}
    for name, (share, _) in selection.items():
        if not share.taken:
            raise UsageError(
                f"{name}: its share of {size:,} {by} is nothing: nothing is left for it", help="choose a larger size"
            )
    check_writable(target)
    if (target / MANIFEST).exists():
        raise UsageError(f"{target} holds a dataset already", help="choose another output folder")
    check_output_folder(target)
    with lock_output(target) as held:
        run_id = held.run_id
        remove_work_folder(target)  # a mix that was killed before it published may have left shards there
        options = {"by": by, "size": size, "max_epochs": float(max_epochs), "seed": seed, "weights": weights}
        write_lanes = _write_interleaved if interleave else _write_apart
        with BlockIndexWriter((target / work_path(_INDEX)).parent, _INDEX, run_id) as writer:
            lanes = write_lanes(sources, selection, target, run_id, writer)
            index = writer.commit()
        _publish(sources, lanes, index, target, held, {**options, "interleave": interleave})
    return [selection[source.name][0] for source in sources]


def _select_rows(source: MixSource, share: SourceShare, seed: int) -> tuple[Share, NDArray[np.bool_]]:
    """Select whole epochs, and rows of one more, incomplete epoch."""
    num_rows = len(source.row_weights)
    # The first rows of a fixed random order: whatever the size, it only decides how far the order is followed.
    order = np.empty(num_rows, dtype=np.int64)
    order[Permutation(num_rows, make_epoch_key(seed, f"mix/{source.name}", 0))(np.arange(num_rows))] = np.arange(
        num_rows
    )
    reached = np.concatenate([[0], np.cumsum(source.row_weights[order])])
    count = share.count_rows_to_take(reached)
    is_selected = np.zeros(num_rows, dtype=np.bool_)
    is_selected[order[:count]] = True
    whole_epochs = share.whole_epochs
    amount = whole_epochs * share.available + int(reached[count])
    return Share(source.name, share.amount, share.available, whole_epochs, count, amount), is_selected


@dataclass(frozen=True, slots=True)
class _WrittenLanes:
    """The lanes that a mix has written to the work folder; shards are described under their final paths."""

    lanes: dict[str, list[Shard]]
    num_rows: dict[str, int]
    """Rows of each source."""
    schema: Schema
    files: dict[str, InputFile]
    shares: dict[str, MixedShare] = field(default_factory=dict)
    """Share of each source in an interleaved lane; empty where sources are written apart."""

    def shards(self) -> Iterator[Shard]:
        return chain.from_iterable(self.lanes.values())


def _write_interleaved(
    sources: list[MixSource], selection: Selection, target: Location, run_id: str, index: BlockIndexWriter
) -> _WrittenLanes:
    file_ids: set[int] = set()
    rows = []
    for source in sources:
        share, is_selected = selection[source.name]
        rows.append(select_rows(source, share.whole_epochs, is_selected, file_ids))
    lane = InterleavedLane(rows)
    shards = lane.write(_SPLIT, target, run_id, index)
    shares = {source_rows.source.name: source_rows.measure_share() for source_rows in rows}
    return _WrittenLanes(
        {MIXED: shards},
        {name: share.rows for name, share in shares.items()},
        Schema.of(lane.schema),
        dict(chain.from_iterable(source_rows.list_input_files() for source_rows in rows)),
        shares,
    )


def _write_apart(
    sources: list[MixSource], selection: Selection, target: Location, run_id: str, index: BlockIndexWriter
) -> _WrittenLanes:
    lanes = {source.name: _write_source(source, *selection[source.name], target, run_id, index) for source in sources}
    return _WrittenLanes(
        lanes,
        {name: sum(shard.rows for shard in shards) for name, shards in lanes.items()},
        sources[0].manifest.schema,
        {key: file for source in sources for key, file in source.manifest.files.items()},
    )


def _shard_path(source: str, number: int) -> str:
    return f"{_SPLIT}/{source}/shard-{number:05d}.arrow"


def _write_source(
    source: MixSource,
    share: Share,
    is_selected: NDArray[np.bool_],
    target: Location,
    run_id: str,
    index: BlockIndexWriter,
) -> list[Shard]:
    written: list[Shard] = []
    for _ in range(share.whole_epochs):
        for shard in source.shards:
            path = _shard_path(source.name, len(written))
            with PendingFile(target / work_path(path), run_id) as file:
                for piece in _read_pieces(shard.below(source.folder)):
                    file.write(piece)
                file.commit()
            written.append(msgspec.structs.replace(shard, path=path, bytes=file.num_bytes, xxh3=file.checksum))
            index.add(_SPLIT, source.name, scan_blocks(shard.below(source.folder), shard, shard.rows, "arrow"))
    first = 0
    for shard in source.shards:
        is_row_selected = is_selected[first : first + shard.rows]
        first += shard.rows
        if is_row_selected.any():
            path = _shard_path(source.name, len(written))
            selected, blocks = _write_selected_rows(source, shard, is_row_selected, target, path, run_id)
            written.append(selected)
            index.add(_SPLIT, source.name, blocks)
    return written


def _read_pieces(path: Location) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_COPY_BYTES):
            yield piece


def _write_selected_rows(
    source: MixSource, shard: Shard, is_selected: NDArray[np.bool_], target: Location, path: str, run_id: str
) -> tuple[Shard, ShardBlocks]:
    """Write the selected rows of a shard, in their order."""

    def read_rows() -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in read_mapped_batches(shard.below(source.folder)):
            yield batch.filter(pa.array(is_selected[first : first + batch.num_rows]))
            first += batch.num_rows

    return write_shard(read_rows(), source.manifest.schema.to_arrow(), target, path, run_id, shard.tasks)


def _publish(
    sources: list[MixSource],
    lanes: _WrittenLanes,
    index: dict[str, dict[str, LaneIndex]],
    target: Location,
    held: HeldOutput,
    options: dict[str, object],
) -> None:
    """Copy the tokenizer, and move all files from the work folder to their places."""
    first = sources[0].manifest
    tokenizer = first.tokenizer
    tokenizer_files = tokenizer.files if tokenizer is not None else []
    for file in tokenizer_files:
        write_file(target / work_path(file.path), file.below(sources[0].folder).read_bytes(), held.run_id)
    manifest = Manifest(
        kind=first.kind,
        format="arrow",
        schema=lanes.schema,
        splits={_SPLIT: lanes.lanes},
        index=index,
        mixed={_SPLIT: lanes.shares} if lanes.shares else {},
        books={source.name: [_make_account(source, lanes.num_rows[source.name])] for source in sources},
        recipe={"mix": {**options, "inputs": {source.name: str(source.folder) for source in sources}}},
        versions=first.versions,
        row_length=first.row_length,
        tokenizer=tokenizer,
        files=lanes.files,
    ).seal()
    index_files = [file for lane in index[_SPLIT].values() for file in lane.files()]
    moves = [(work_path(file.path), file.path) for file in (*lanes.shards(), *index_files, *tokenizer_files)]
    replace_dataset(target, manifest, moves, (), held)  # no receipts: a mix has nothing that an update could reuse
    remove_work_folder(target)
    publish_report(target, manifest, held, DEFAULT_SAMPLES)


def _make_account(source: MixSource, rows_out: int) -> Account:
    """Account for a source: rows in + repeats = rows out + rows that were not chosen."""
    rows_in = len(source.row_weights)
    dropped = Counter(not_chosen=rows_in - rows_out) if rows_out < rows_in else Counter[str]()
    created = max(rows_out - rows_in, 0)
    return Account(step="mix", records_in=rows_in, created=created, records_out=rows_out, dropped=dropped)
