"""`gristmill.export`: writes a finished dataset in another format, with all workers at once.

Shards are measured where the manifest has no sizes, files are created at their full size under temporary names, and
each shard is written to its offset by the next free worker. This process then syncs and renames the files; no data
passes through it. For a repository of the Hugging Face Hub the files are local first, then one commit adds all of them
and a card.
"""

from __future__ import annotations

import itertools
import os
import socket
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gristmill.core.checks import check_choice, check_whole_number
from gristmill.core.errors import ClusterError, UsageError
from gristmill.engine.tasks import Task
from gristmill.exports.dataset_card import CARD, make_card
from gristmill.exports.formats import export_formats, find_export_format
from gristmill.exports.layout import ExportSplit, Targets, describe_unpadded
from gristmill.exports.tables import find_members
from gristmill.exports.training import AXOLOTL, COLUMNS, LEVANTER, STORED
from gristmill.pipeline.jobs.export_shards import JSON_SHARD_FORMATS, measure_shards, sample_schema, select_shards
from gristmill.pipeline.jobs.job_pool import open_job_pool
from gristmill.pipeline.planning.placement import check_store
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.token_rows import find_token_columns, has_image_references, has_weights
from gristmill.storage.hub import parse_hub_target
from gristmill.storage.locations import is_remote, measure_file, parse_location
from gristmill.storage.parallel_files import PreallocatedFiles, UploadedFiles
from gristmill.storage.urls import HUB, find_protocol
from gristmill.storage.user_cache import open_staging_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gristmill.engine.tasks import Context
    from gristmill.exports.layout import ExportFormat, Layout, PlannedFile, ShardSlot
    from gristmill.pipeline.jobs.job_pool import JobPool
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location

WorkerState = dict[str, tuple["Layout", list[str]]]
"""By split: the layout, and the paths of the files to fill."""


def export(
    dataset: str | os.PathLike[str],
    *,
    to: str,
    path: str | os.PathLike[str],
    split: str | None = None,
    source: str | None = None,
    vocab_size: int | None = None,
    columns: str | None = None,
    licences: Mapping[str, str] | None = None,
    row_group_rows: int | None = None,
    weights: Literal["drop"] | None = None,
    overwrite: bool = False,
    workers: int | Literal["auto"] = "auto",
    backend: str = "processes",
    ray_address: str | None = None,
    progress: bool | None = None,
) -> ExportResult:
    """Write a finished dataset in another format.

    `megatron`, `olmo-core`, `nanogpt` and `llmc` take whole documents in order, so a dataset of tokens made without
    `pack`; `megatron-bridge`, `mds` and `numpy` take packed rows; `litdata` and `llamafactory` take both; `webdataset`,
    `parquet` and `jsonl` take any dataset. The files appear when all are complete.

    Args:
        dataset: The output folder of a finished run.
        to: megatron, megatron-bridge, olmo-core, llamafactory, nanogpt, llmc, numpy, mds, litdata, webdataset,
            parquet or jsonl.
        path: The beginning of the files' names: "bin/corpus" gives bin/corpus_train.bin and so on, a set for each
            split. For nanogpt, llamafactory, mds and litdata, a folder. Both may be on a store: `s3://bucket/corpus`.
            Or `hf://datasets/OWNER/NAME`: the files are added to that repository of the Hugging Face Hub in one commit,
            with a card; a new one is private.
        split: Only this split.
        source: Only this source; by default all, one after the other.
        vocab_size: The vocabulary size with added tokens, for megatron, nanogpt and llmc: it decides between narrow and
            wide ids. Default: the tokenizer's.
        columns: The columns of tokens in parquet, jsonl or webdataset. "stored": those of the dataset; "training":
            input_ids, labels, position_ids and seq_lengths, without padding; "transformers": input_ids, attention_mask
            and labels, packed rows with their padding, for the collators of transformers; "axolotl": the same columns,
            for a dataset that is not packed; "levanter": input_ids and loss_weights, without padding. Default:
            "training" for chats in parquet and jsonl, else "stored".
        licences: The licence of each source, for the card on the Hub.
        row_group_rows: The rows in a row group of parquet (default: 32 MiB) and megatron-bridge (default: 500). Readers
            that give each rank separate row groups need several of them.
        weights: "drop" leaves out the weights of tokens, for columns and formats that have no place for them.
        overwrite: Replace existing files.
        workers: The number of workers; "auto": as many as this machine allows.
        backend: "processes", "threads", "serial", or "ray": the nodes of a Ray cluster, which all mount the folder of
            the files and see the dataset under the same names.
        ray_address: The cluster, for `backend="ray"`. Default: `RAY_ADDRESS`, a running cluster, or a new one here.
        progress: None: bars on a terminal, lines otherwise; True: always bars; False: nothing.

    Returns:
        The files, the rows of each split, how to use them, and notes on what readers may not expect.
    """
    export_format = find_export_format(to)
    if str(path).startswith(HUB):
        export_locally = partial(
            export,
            dataset,
            to=to,
            split=split,
            source=source,
            vocab_size=vocab_size,
            columns=columns,
            row_group_rows=row_group_rows,
            weights=weights,
            workers=workers,
            backend=backend,
            ray_address=ray_address,
            progress=progress,
        )
        return export_to_hub(dataset, str(path), export_locally, dict(licences or {}), overwrite=overwrite)
    if licences:
        raise UsageError("licences are for the card of a repository on the Hub", help="leave them out")
    if backend == "ray":  # workers there have another working folder
        dataset, path = (value if "://" in str(value) else Path(value).absolute() for value in (dataset, path))
    prefix = _check_prefix(path, export_format)
    folder = parse_location(dataset)
    manifest = load_manifest(folder)
    export_format.check_dataset(manifest, folder)
    columns = _choose_columns(export_format, manifest, columns)
    if has_image_references(manifest.schema.to_arrow()) and (to not in ("parquet", "jsonl") or columns != STORED):
        raise UsageError(
            f"{folder} refers to images, which this export would lose",
            help="export to parquet or jsonl with columns='stored', or read it with Stream",
        )
    _check_row_groups(export_format, row_group_rows)
    _check_weights(export_format, manifest, columns, weights)
    slots = select_shards(manifest, folder, split, source)
    is_built_in = type(export_format).__module__.startswith("gristmill.")
    size = None
    with open_job_pool(
        workers=workers,
        backend=backend,
        ray_address=ray_address,
        progress=progress,
        runs_user_code=not is_built_in,
    ) as pool:
        if export_format.counts_tokens:
            vocab_size = vocab_size or (manifest.tokenizer.vocab_size if manifest.tokenizer is not None else None)
            with_ids = export_format.depends_on_ids or vocab_size is None
            slots, size = measure_shards(slots, pool.run, with_ids=with_ids)
            vocab_size = vocab_size or size.max_id + 1
        is_json = manifest.format in JSON_SHARD_FORMATS and find_members(manifest) is None
        samples_schema = export_format.needs_typed_columns and is_json
        splits = [
            ExportSplit(
                name=name,
                slots=split_slots,
                manifest=manifest,
                schema=sample_schema(split_slots, manifest.format) if samples_schema else manifest.schema.to_arrow(),
                vocab_size=vocab_size or 0,
                dataset_size=size,
                columns=columns,
                row_group_rows=row_group_rows,
            )
            for name, split_slots in slots.items()
        ]
        if not splits:
            raise UsageError(
                f"there is nothing to export in {folder}", help="run `gristmill inspect` to see what it holds"
            )
        layouts = {split.name: export_format.make_layout(split) for split in splits}
        files, num_nan = _write_files(
            layouts,
            export_format.make_common_files(splits),
            slots,
            prefix,
            pool,
            suffixes=export_format.folder_suffixes,
            overwrite=overwrite,
        )
    usage = [_describe_usage(layout, export_format, prefix, name) for name, layout in layouts.items()]
    notes = [] if export_format.shuffles_documents or source is not None else _describe_order(manifest, list(layouts))
    if not export_format.pads_documents:
        notes += describe_unpadded(manifest)
    token_columns = find_token_columns(manifest.schema.to_arrow())
    if token_columns and not (export_format.takes_columns and columns == STORED):
        notes.append(
            f"not in these files: {', '.join(token_columns)}; parquet and jsonl with columns: stored keep them"
        )
    local_files = [] if is_remote(prefix) else [Path(file) for file in files]
    uploaded = {str(file): measure_file(file) or 0 for file in files} if is_remote(prefix) else {}
    return ExportResult(local_files, {split.name: split.num_rows for split in splits}, usage, notes, num_nan, uploaded)


def _describe_usage(layout: Layout, format: ExportFormat, prefix: str, split: str) -> str:
    """Show how to use the files of a split: where they are, or after a copy if their readers open only local files."""
    protocol = find_protocol(prefix)
    if protocol is None or protocol in format.readable_stores:
        return layout.usage(prefix)
    key = prefix.partition("://")[2]
    if format.folder_suffixes:
        local_prefix = f"{Path(key).name}/"
        copy = f'"{key}", "{local_prefix}", recursive=True'
    else:
        local_prefix = Path(key).name
        copy = f'"{key}_{split}*", "./"'
    command = f"python -c 'import fsspec; fsspec.filesystem(\"{protocol}\").get({copy})'"
    return f"{layout.usage(local_prefix)}  # after: {command}"


def _describe_order(manifest: Manifest, splits: list[str]) -> list[str]:
    """Warn where reading the files in order means one source after the other."""
    notes = []
    for split in splits:
        sources = [name for name, shards in manifest.splits[split].items() if any(shard.rows for shard in shards)]
        if len(sources) > 1:
            notes.append(
                f"{split}: the sources follow one another in the files ({', then '.join(sources)}); to interleave "
                "them, run the recipe with mix or shuffle: {across: sources}, or use gristmill mix"
            )
    return notes


def _choose_columns(format: ExportFormat, manifest: Manifest, columns: str | None) -> str:
    """Choose the columns of token rows."""
    if columns is None:
        return format.default_columns(manifest)
    check_choice("columns", columns, COLUMNS)
    if columns != STORED and not (manifest.holds_rows and format.takes_columns):
        tables = ", ".join(other.name for other in export_formats() if other.takes_columns)
        raise UsageError(
            f"columns: {columns} is for tokens in {tables}, not for {manifest.kind} in {format.name}",
            help="leave it out",
        )
    if columns == AXOLOTL and manifest.row_length is not None:
        raise UsageError(
            "columns: axolotl needs rows of one document: axolotl packs them itself, and takes a packed row for one",
            help="run the recipe without `pack` into another folder and export that",
        )
    return columns


def _check_row_groups(format: ExportFormat, row_group_rows: int | None) -> None:
    if row_group_rows is None:
        return
    check_whole_number("row_group_rows", row_group_rows, least=1)
    if not format.has_row_groups:
        names = " and ".join(other.name for other in export_formats() if other.has_row_groups)
        raise UsageError(f"{format.name} has no row groups: row_group_rows is for {names}", help="leave it out")


def _check_weights(format: ExportFormat, manifest: Manifest, columns: str, weights: str | None) -> None:
    """Refuse to lose the weights of tokens silently."""
    if weights is not None:
        check_choice("weights", weights, ("drop",))
    keeps_weights = format.takes_columns and columns in (STORED, LEVANTER)
    if has_weights(manifest.schema.to_arrow()) and keeps_weights == (weights is not None):
        if keeps_weights:
            raise UsageError(f"columns {columns} keep the weights of tokens", help="leave out weights, or name columns")
        raise UsageError(
            f"the tokens have weights, for which {format.name if columns == STORED else columns} has no place",
            help="use columns levanter or stored in parquet or jsonl; or train them with 1: --weights drop",
        )


def _check_prefix(path: str | os.PathLike[str], format: ExportFormat) -> str:
    """Return the beginning of the files' names; for a format that is written to a folder, it ends with a slash."""
    check_store(os.fspath(path))
    prefix = parse_location(path)
    if format.folder_suffixes:
        if prefix.is_file():
            raise UsageError(
                f"{path} is a file; {format.name} needs a folder for its files",
                help="choose another path",
            )
        return f"{prefix}/"
    if str(path).endswith("/") or prefix.is_dir():
        raise UsageError(
            f"{path} is a folder; the path is the beginning of the files' names",
            help=f"for example {prefix / 'corpus'}",
        )
    return str(prefix)


def _write_files(
    layouts: dict[str, Layout],
    common: Sequence[PlannedFile],
    slots: dict[str, list[ShardSlot]],
    prefix: str,
    pool: JobPool,
    *,
    suffixes: tuple[str, ...],
    overwrite: bool,
) -> tuple[Sequence[Location], int]:
    """Write the files; return them, and how many numbers became null."""
    planned = [*(file for layout in layouts.values() for file in layout.files), *common]
    names = [file.name for file in planned]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two splits would be written to {prefix}{duplicate}", help="export one at a time, with split")
    with _open_files(prefix, suffixes) as files:
        existing = [name for name in names if files.exists(name)]
        for layout in layouts.values():
            existing += itertools.takewhile(files.exists, layout.later_names())
        if existing and not overwrite:
            more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
            raise UsageError(
                f"{files.path(existing[0])}{more} would be overwritten",
                help="choose another path, or allow it (--overwrite)",
            )
        paths = {
            split: [files.add(file.name, file.num_bytes, file.head) for file in layout.files]
            for split, layout in layouts.items()
        }
        for file in common:
            files.add(file.name, file.num_bytes, file.head)
        tasks = [Task(slot.path, (split, slot)) for split in layouts for slot in slots[split]]
        pool.store_jobs_at(files.temporary_stem)
        worker_state = {split: (layout, paths[split]) for split, layout in layouts.items()}
        setup = partial(_set_up_worker, worker_state, tasks[0].id if pool.is_cluster else None)
        num_nan = sum(count for _, count in pool.run(_fill_shard, tasks, setup=setup, desc="exporting"))
        return files.commit(replaced=existing), num_nan


def _open_files(prefix: str, suffixes: tuple[str, ...]) -> PreallocatedFiles | UploadedFiles:
    if find_protocol(prefix) is None:
        return PreallocatedFiles(prefix, suffixes=suffixes)
    return UploadedFiles(prefix, suffixes=suffixes)


def _set_up_worker(state: WorkerState, shard: str | None) -> WorkerState:
    """Return what each worker keeps: the layout and the paths of each split. On a cluster, see if the files are there.

    The names of temporary files are random, so a node that has one sees the driver's own folder.
    """
    for path in [] if shard is None else [shard, *(path for _, paths in state.values() for path in paths[:1])]:
        if measure_file(parse_location(path)) is None:
            raise ClusterError(
                f"node {socket.gethostname()} does not see {path}",
                help="mount the folders of the dataset and of the export on every node, under the same names",
            )
    return state


def _fill_shard(task: Task, context: Context) -> int:
    split, slot = task.payload
    layout, paths = context.state[split]
    with Targets(paths) as targets:
        num_nan = layout.fill(slot, targets)
    context.count(rows=slot.rows)
    return num_nan or 0


def export_to_hub(
    dataset: str | os.PathLike[str],
    url: str,
    export_locally: Callable[..., ExportResult],
    licences: dict[str, str],
    *,
    overwrite: bool,
) -> ExportResult:
    """Export to a folder of the user's cache, and add all files and a card to a repository in one commit."""
    repository = parse_hub_target(url)
    manifest = load_manifest(parse_location(dataset))
    for name in licences:
        check_choice("a source in licences", name, sorted(manifest.books))
    name = repository.id.rpartition("/")[2]
    in_repository, last_commit = repository.list_files()
    existing = sorted(path for path in in_repository if path == CARD or path.startswith(f"data/{name}_"))
    if existing and not overwrite:
        more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise UsageError(
            f"{existing[0]}{more} of {repository.url} would be overwritten",
            help="choose another repository, or allow it (--overwrite)",
        )
    with open_staging_folder("exports") as folder:
        exported = export_locally(path=folder / "data" / name)
        files = {file.relative_to(folder).as_posix(): file for file in exported.files}
        sizes = {path: file.stat().st_size for path, file in files.items()}
        patterns = {split: _find_split_pattern(split, name, files) for split in exported.rows}
        card = make_card(name, manifest, exported.rows, patterns, licences)
        message = f"Add {sum(exported.rows.values()):,} rows, dataset hash {manifest.dataset_hash}"
        additions: dict[str, Path | bytes] = {**files, CARD: card.encode()}
        commit = repository.commit(additions, {*existing} - {*additions}, last_commit, message)
    return replace(exported, files=[], usage=[f'load_dataset("{repository.id}")'], uploaded=sizes, commit=commit)


def _find_split_pattern(split: str, name: str, files: Iterable[str]) -> str:
    """Find a pattern for the files of a split in the repository."""
    stem = f"data/{name}_{split}"
    own = [path for path in files if path.startswith(stem)]
    return own[0] if len(own) == 1 else f"{stem}*"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The files that an export has written, and how to use them."""

    files: list[Path]
    rows: dict[str, int]
    """The number of rows in each split."""
    usage: list[str]
    """How to use the files, in one line for each split."""
    notes: list[str]
    """Warnings where sources follow one another, or documents are not padded as `align` of `pack` intends."""
    nan_as_null: int = 0
    """How many numbers that JSON cannot hold (NaN, infinity) were written as null."""
    uploaded: dict[str, int] = field(default_factory=dict)
    """Instead of `files`, where they went to a store: the URL of each, and its bytes. On the Hub: its path there."""
    commit: str | None = None
    """The address of the commit on the Hub."""
