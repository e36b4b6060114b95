"""`gristmill mix`: several datasets in fixed proportions, written as one dataset.

For trainers that read files in their order, or to fix a mixture once and for all. `Stream` needs no such copy: it mixes
while it reads. Whole epochs of a source come first; the rows of the last, incomplete epoch are chosen by a permutation,
so a larger size only adds rows. Sources are interleaved as by the step `mix`; without interleaving, whole epochs are
plain copies of shards. Shards are written to the work folder by all workers and published like those of a run, so a
mix that is killed leaves no half dataset. Memory: 16 bytes for each row of the largest source here, and one block of
rows in a worker.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from gristmill.core.books import Account
from gristmill.core.checks import check_bool, check_choice, check_seed, check_whole_number
from gristmill.core.errors import UsageError
from gristmill.core.recipe import DEFAULT_SAMPLES
from gristmill.order import Permutation
from gristmill.order.mixture import plan_epochs, plan_shares
from gristmill.order.permutation import make_epoch_key
from gristmill.pipeline.jobs.job_pool import open_job_pool
from gristmill.pipeline.jobs.mix_inputs import PartialEpoch, open_inputs, select_rows
from gristmill.pipeline.jobs.mix_lane import SPLIT, MixJob, plan_apart, plan_interleaved, write_shards
from gristmill.pipeline.planning.placement import check_output_store
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.pipeline.publishing.clean import lock_output
from gristmill.pipeline.publishing.journal import replace_dataset
from gristmill.pipeline.publishing.side_files import publish_report
from gristmill.pipeline.stages.preparation import write_node_check
from gristmill.pipeline.work_folder import (
    check_output_folder,
    check_writable,
    is_work_path,
    remove_work_folder,
    work_path,
)
from gristmill.shards.block_index import BlockIndexWriter
from gristmill.shards.canonical import canonicalize_schema
from gristmill.shards.manifest import MIXED, Manifest
from gristmill.shards.stored_files import MANIFEST, MixedShare, Schema, file_key
from gristmill.shards.token_rows import CHATS
from gristmill.steps.edit_columns import with_source_field
from gristmill.steps.mix import UNITS
from gristmill.storage.commit import write_file
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import parse_location
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from gristmill.order.mixture import SourceShare
    from gristmill.pipeline.jobs.job_pool import JobPool
    from gristmill.pipeline.jobs.mix_inputs import MixSource, SelectedRows
    from gristmill.pipeline.stages.preparation import NodeCheck
    from gristmill.shards.stored_files import InputFile, LaneIndex, Shard
    from gristmill.storage.leases import HeldOutput
    from gristmill.storage.locations import Location

    Folder = str | os.PathLike[str]
    Selection = Mapping[str, tuple["Share", PartialEpoch]]
    """By source: its share, and which rows of the incomplete epoch belong to it."""

_INDEX = "index"


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one source in a mix. Amounts are in the unit of the mix: tokens, rows or documents."""

    source: str
    wanted: int
    """The amount that the weights or epochs ask for."""
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
    inputs: Mapping[str, Folder | tuple[Folder, float]],
    output: str | os.PathLike[str],
    *,
    size: int | None = None,
    epochs: Mapping[str, float] | None = None,
    by: str = "tokens",
    max_epochs: float = 1.0,
    split: str = SPLIT,
    seed: int = 0,
    interleave: bool = True,
    workers: int | Literal["auto"] = "auto",
    backend: str = "auto",
    ray_address: str | None = None,
    progress: bool | None = None,
) -> list[Share]:
    """Write a dataset of `size` tokens, rows or documents from several datasets, in the proportions of their weights.

    Args:
        inputs: Name -> (folder, weight); with `epochs`, name -> folder.
        output: The folder to create.
        size: The total amount, in the unit of `by`.
        epochs: Instead of weights and `size`: how often each dataset is taken, `{"web": 1, "code": 2.5}`.
        by: "tokens", "rows" or "documents": what `size` and the weights count.
        max_epochs: How often a source may be taken; a mix that needs more is refused.
        split: The split of the inputs that is read.
        seed: Seed for the choice of rows in an incomplete epoch.
        interleave: Write one lane, `train/mixed/`, every beginning of which holds each source in its share; documents
            get a column `source`. False: a folder for each source.
        workers: The number of workers; "auto": as many as this machine allows.
        backend: "serial", "threads", "processes", or "ray": the nodes of a Ray cluster, which all see inputs and output
            under the same names. "auto": small mixes in this process, all others in worker processes.
        ray_address: The cluster, for `backend="ray"`. Default: `RAY_ADDRESS`, a running cluster, or a new one here.
        progress: None: bars on a terminal, lines otherwise; True: always bars; False: nothing.

    Returns:
        The share of each source.
    """
    check_choice("by", by, UNITS)
    if (size is None) == (epochs is None):
        raise UsageError("a mix needs weights and a size, or epochs", help='epochs={"web": 1, "code": 2}')
    size, seed = None if size is None else check_whole_number("size", size, least=1), check_seed(seed)
    interleave = check_bool("interleave", interleave)
    target = parse_location(output)
    if backend == "auto" and find_protocol(str(target)) == "memory":
        backend = "serial"
    check_output_store(str(target), backend)
    with open_job_pool(workers=workers, backend=backend, ray_address=ray_address, progress=progress) as pool:
        return write_mix(
            inputs,
            target,
            pool,
            size=size,
            epochs=epochs,
            by=by,
            max_epochs=max_epochs,
            split=split,
            seed=seed,
            interleave=interleave,
        )


def write_mix(
    inputs: Mapping[str, Folder | tuple[Folder, float]],
    target: Location,
    pool: JobPool,
    *,
    size: int | None = None,
    epochs: Mapping[str, float] | None = None,
    by: str,
    max_epochs: float = 1.0,
    split: str = SPLIT,
    seed: int = 0,
    interleave: bool = True,
    layout: UnitLayout = UnitLayout(),
) -> list[Share]:
    """Mix datasets in a pool that is open, once the options are checked."""
    weights, sources = open_inputs(inputs, epochs, split, by, pool.run)
    if interleave and MIXED in weights:
        raise UsageError(f'"{MIXED}" is the name of the lane that is written', help="give this dataset another name")
    available = {source.name: int(source.row_weights.sum()) for source in sources}
    if size is None:
        shares, options = plan_epochs(weights, available), {"by": by, "seed": seed, "epochs": weights}
    else:
        shares = plan_shares(weights, available, size=size, by=by, max_epochs=max_epochs)
        options = {"by": by, "size": size, "max_epochs": float(max_epochs), "seed": seed, "weights": weights}
    selection = {source.name: _select_rows(source, shares[source.name], seed) for source in sources}
    for name, (share, _) in selection.items():
        if not share.taken:
            raise UsageError(
                f"{name}: its share, {share.wanted:,} {by}, is less than one row of it",
                help="choose a larger size, or more epochs",
            )
    check_writable(target)
    if (target / MANIFEST).is_file():
        raise UsageError(f"{target} holds a dataset already", help="choose another output folder")
    check_output_folder(target)
    with lock_output(target) as held:
        # A mix that was killed before it published may have left shards there, and parts of them.
        remove_work_folder(target)
        open_folder(target).abort_uploads(is_work_path)
        lanes, index = _write_lanes(sources, selection, target, held.run_id, pool, layout, interleave=interleave)
        _publish(sources, lanes, index, target, held, {**options, "interleave": interleave})
    return [selection[source.name][0] for source in sources]


def _select_rows(source: MixSource, share: SourceShare, seed: int) -> tuple[Share, PartialEpoch]:
    """Select whole epochs, and rows of one more, incomplete epoch."""
    num_rows = len(source.row_weights)
    # The first rows of a fixed random order: the size only decides how far the order is followed.
    key = make_epoch_key(seed, f"mix/{source.name}", 0)
    order = np.empty(num_rows, dtype=np.int64)
    order[Permutation(num_rows, key)(np.arange(num_rows))] = np.arange(num_rows)
    reached = np.concatenate([[0], np.cumsum(source.row_weights[order])])
    count = share.count_rows_to_take(reached)
    whole_epochs = share.whole_epochs
    amount = whole_epochs * share.available + int(reached[count])
    partial_epoch = PartialEpoch(num_rows, key, count)
    return Share(source.name, share.amount, share.available, whole_epochs, count, amount), partial_epoch


@dataclass(frozen=True, slots=True)
class _WrittenLanes:
    """The lanes that a mix has written to the work folder; shards are described under their final paths."""

    lanes: dict[str, list[Shard]]
    num_rows: dict[str, int]
    """Rows of each source."""
    schema: Schema
    files: dict[str, InputFile]
    shares: dict[str, MixedShare] = field(default_factory=dict)
    """Share of each source in an interleaved lane; empty where sources are not interleaved."""

    def shards(self) -> Iterator[Shard]:
        return chain.from_iterable(self.lanes.values())


def _write_lanes(
    sources: list[MixSource],
    selection: Selection,
    target: Location,
    run_id: str,
    pool: JobPool,
    layout: UnitLayout,
    *,
    interleave: bool,
) -> tuple[_WrittenLanes, dict[str, dict[str, LaneIndex]]]:
    """Write all shards and their index to the work folder."""
    file_ids: set[int] | None = set() if interleave else None
    rows = [
        select_rows(source, selection[source.name][0].whole_epochs, selection[source.name][1], file_ids)
        for source in sources
    ]
    schema = sources[0].manifest.schema.to_arrow()
    if interleave:
        schema = canonicalize_schema(with_source_field(schema))
        planned = plan_interleaved(rows, sum(map(_estimate_bytes, sources, rows)), layout)
    else:
        planned = plan_apart(rows, [source.shards for source in sources])
    check = _write_node_check(rows, sources, target, run_id) if pool.is_cluster else None
    pool.store_jobs_at(target.absolute() / work_path("job-"))
    job = MixJob(tuple(rows), schema, target.absolute(), run_id, check)
    lanes: dict[str, list[Shard]] = {}
    counts: list[Counter[str]] = [Counter() for _ in sources]
    with BlockIndexWriter((target / work_path(_INDEX)).parent, _INDEX, run_id) as writer:
        for lane, written in write_shards(planned, job, pool.run):
            lanes.setdefault(lane, []).append(written.shard)
            writer.add(SPLIT, lane, written.blocks)
            for count, of_shard in zip(counts, written.counts, strict=False):  # none without interleaving
                count.update(of_shard)
        index = writer.commit()
    num_rows = {selected.name: selected.num_rows for selected in rows}
    if not interleave:
        files = {key: file for source in sources for key, file in source.manifest.files.items()}
        return _WrittenLanes(lanes, num_rows, Schema.of(schema), files), index
    files = dict(chain.from_iterable(map(_list_input_files, sources, rows)))
    shares = {
        source.name: MixedShare(
            rows=count["rows"],
            tokens=count["tokens"] or None,
            trained_tokens=count["trained_tokens"] if source.manifest.kind == CHATS else msgspec.UNSET,
        )
        for source, count in zip(sources, counts, strict=True)
    }
    return _WrittenLanes(lanes, num_rows, Schema.of(schema), files, shares), index


def _estimate_bytes(source: MixSource, rows: SelectedRows) -> int:
    """Estimate the size of the selected rows."""
    return sum(shard.bytes for shard in source.shards) * rows.num_rows // len(source.row_weights)


def _list_input_files(source: MixSource, rows: SelectedRows) -> Iterator[tuple[str, InputFile]]:
    """List the input files by the ids in the rows, as files of this source."""
    for key, file in source.manifest.files.items():
        number = int(key, 16)
        yield file_key(rows.new_file_ids.get(number, number)), msgspec.structs.replace(file, source=source.name)


def _write_node_check(rows: list[SelectedRows], sources: list[MixSource], target: Location, run_id: str) -> NodeCheck:
    """Write what every node must see: a token in the output. The first shard of each source is looked for, too."""
    check = write_node_check([target.absolute()], (), run_id)
    sizes = [(str(selected.paths[0]), source.shards[0].bytes) for selected, source in zip(rows, sources, strict=True)]
    return replace(check, files=tuple(sizes))


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
        splits={SPLIT: lanes.lanes},
        index=index,
        mixed={SPLIT: lanes.shares} if lanes.shares else {},
        books={source.name: [_make_account(source, lanes.num_rows[source.name])] for source in sources},
        recipe={"mix": {**options, "inputs": {source.name: str(source.folder) for source in sources}}},
        versions=first.versions,
        row_length=first.row_length,
        tokenizer=tokenizer,
        files=lanes.files,
    ).seal()
    index_files = [file for lane in index[SPLIT].values() for file in lane.files()]
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
