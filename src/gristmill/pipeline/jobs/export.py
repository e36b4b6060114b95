"""`gristmill.export`: writes a finished dataset in another format, with all workers at once.

Shards are measured where the manifest has no sizes, files are created at their full size under temporary names, and
each shard is written to its offset by whichever worker is free. This process then syncs and renames the files; no data
passes through it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_text import JSON_TYPE, make_field
from gristmill.core.names import check_choice
from gristmill.core.records import (
    INPUT_IDS,
    LOSS_MASK,
    ORIGIN,
    ORIGIN_TYPE,
    OTHER_FIELDS,
    TEXT,
    TEXT_TYPE,
    SourceFile,
)
from gristmill.engine.tasks import Task, run_tasks
from gristmill.exports.arrays import ArraysLayout
from gristmill.exports.layout import ShardSlot, Targets
from gristmill.exports.megatron import MegatronLayout
from gristmill.exports.streams import LlmcLayout, NanogptLayout
from gristmill.exports.tables import TablesLayout
from gristmill.exports.tokens import measure_shard
from gristmill.exports.training import AXOLOTL, COLUMNS, STORED, TRAINING
from gristmill.shards.formats.shard_format import ShardFormat
from gristmill.shards.manifest import load_manifest
from gristmill.shards.token_rows import CHATS
from gristmill.steps.read import Read, sample_record_types
from gristmill.steps.unite.field_types import without_nulls
from gristmill.storage.preallocated import PreallocatedFiles

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from gristmill.engine.tasks import Context
    from gristmill.exports.layout import Layout
    from gristmill.exports.tokens import ShardSize
    from gristmill.shards.manifest import Manifest

_STREAMS = ("megatron", "nanogpt", "llmc")
_TABLES = ("webdataset", "parquet", "jsonl")
FORMATS = (*_STREAMS, "numpy", *_TABLES)

RunTasks = partial[Any]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The files that an export has written, and how to use them."""

    files: list[Path]
    rows: dict[str, int]
    """The number of rows in each split."""
    usage: list[str]
    """How to use the files, in one line for each split."""
    notes: list[str]
    """Warnings about the order of rows, where sources follow one another."""
    nan_as_null: int = 0
    """How many numbers that JSON cannot hold (NaN, infinity) were written as null."""


def export(
    dataset: str | os.PathLike[str],
    *,
    to: str,
    path: str | os.PathLike[str],
    split: str | None = None,
    source: str | None = None,
    vocab_size: int | None = None,
    columns: str | None = None,
    overwrite: bool = False,
    workers: int | Literal["auto"] = "auto",
    backend: str = "processes",
    progress: bool | None = None,
) -> ExportResult:
    """Write a finished dataset in another format.

    `megatron`, `nanogpt` and `llmc` take whole documents in order, so a dataset of tokens made without `pack`; `numpy`
    takes packed rows; `webdataset`, `parquet` and `jsonl` take any dataset. The files appear when all are complete.

    Args:
        dataset: The output folder of a finished run.
        to: megatron, nanogpt, llmc, numpy, webdataset, parquet or jsonl.
        path: The beginning of the files' names: "bin/corpus" gives bin/corpus_train.bin and so on, a set for each
            split. For nanogpt, the folder of its train.bin and val.bin.
        split: Only this split.
        source: Only this source; by default all, one after the other.
        vocab_size: The vocabulary size with added tokens, for megatron, nanogpt and llmc: it decides between narrow and
            wide ids. Default: the tokenizer's.
        columns: The columns of tokens in parquet, jsonl or webdataset. "stored": those of the dataset; "training":
            input_ids, labels, position_ids and seq_lengths, without padding; "transformers": input_ids, attention_mask
            and labels, packed rows with their padding, for the collators of transformers; "axolotl": the same columns,
            for a dataset that is not packed. Default: "training" for chats in parquet and jsonl, else "stored".
        overwrite: Replace existing files.
        workers: The number of workers; "auto": as many as this machine allows.
        backend: "processes", "threads" or "serial".
        progress: None: bars on a terminal, lines elsewhere; True: always bars; False: nothing.

    Returns:
        The files, the rows of each split, how to use them, and notes on their order.
    """
    check_choice("to", to, FORMATS)
    prefix = _check_prefix(path, to)
    folder = Path(dataset)
    manifest = load_manifest(folder)
    check_fits(manifest, to, folder)
    columns = _choose_columns(manifest, to, columns)
    slots = _select_shards(manifest, folder, split, source)
    run = partial(run_tasks, workers=workers, backend=backend, retries=0, progress=progress)
    if to in _STREAMS:
        vocab_size = vocab_size or (manifest.tokenizer.vocab_size if manifest.tokenizer is not None else None)
        slots, max_id = _measure_shards(slots, run, with_max=vocab_size is None)
        vocab_size = vocab_size or max_id + 1
    layouts = {
        name: _make_layout(to, name, split_slots, manifest, vocab_size or 0, columns)
        for name, split_slots in slots.items()
        if split_slots
    }
    if not layouts:
        raise UsageError(f"there is nothing to export in {folder}", help="run `gristmill inspect` to see what it holds")
    files, num_nan = _write_files(
        layouts, slots, prefix, run, suffix=".bin" if to == "nanogpt" else "", overwrite=overwrite
    )
    rows = {name: sum(slot.rows for slot in slots[name]) for name in layouts}
    usage = [layout.usage(prefix) for layout in layouts.values()]
    return ExportResult(files, rows, usage, _describe_order(manifest, to, list(layouts), source), num_nan)


def _describe_order(manifest: Manifest, to: str, splits: list[str], source: str | None) -> list[str]:
    """Warn where reading the files in order means one source after the other."""
    if to == "megatron" or source is not None:  # Megatron shuffles documents itself
        return []
    notes = []
    for split in splits:
        sources = [name for name, shards in manifest.splits[split].items() if any(shard.rows for shard in shards)]
        if len(sources) > 1:
            notes.append(
                f"{split}: the sources follow one another in the files ({', then '.join(sources)}); to interleave "
                "them, run the recipe with mix or shuffle: {across: sources}, or use gristmill mix"
            )
    return notes


def check_fits(manifest: Manifest, to: str, folder: Path) -> None:
    """Refuse a dataset that the format cannot hold, and say what to do instead."""
    if to in _TABLES:
        return
    if not manifest.holds_rows:
        raise UsageError(
            f"{folder} holds {manifest.kind}, and {to} is a format for tokens",
            help="add a `tokenize` step to the recipe, or export to webdataset, parquet or jsonl",
        )
    ids = manifest.schema.to_arrow().field(INPUT_IDS).type
    if to == "numpy" and not pa.types.is_fixed_size_list(ids):
        alternatives = "parquet or jsonl" if manifest.kind == CHATS else "megatron, nanogpt or llmc"
        raise UsageError(
            f"{folder} is not packed: its rows differ in length, and an array has rows of one length",
            help=f"add `- pack: {{row_length: 2048}}` to the recipe, or export to {alternatives}",
        )
    if to != "numpy" and manifest.kind == CHATS:
        raise UsageError(
            f"{folder} says which tokens are trained ({LOSS_MASK}), and {to} cannot store that",
            help="export to parquet or jsonl, or pack it and export to numpy",
        )
    if to != "numpy" and pa.types.is_fixed_size_list(ids):
        raise UsageError(
            f"{folder} is packed into rows of {ids.list_size} tokens, and {to} takes whole documents in order",
            help="run the recipe without `pack` into another folder and export that, or export to numpy",
        )


def _choose_columns(manifest: Manifest, to: str, columns: str | None) -> str:
    """Choose the columns of token rows in a table."""
    if columns is None:
        return TRAINING if manifest.kind == CHATS and to in ("parquet", "jsonl") else STORED
    check_choice("columns", columns, COLUMNS)
    if columns != STORED and not (manifest.holds_rows and to in _TABLES):
        raise UsageError(
            f"columns: {columns} is for tokens in {', '.join(_TABLES)}, not for {manifest.kind} in {to}",
            help="leave it out",
        )
    if columns == AXOLOTL and manifest.row_length is not None:
        raise UsageError(
            "columns: axolotl needs rows of one document: axolotl packs them itself, and takes a packed row for one",
            help="run the recipe without `pack` into another folder and export that",
        )
    return columns


def _select_shards(
    manifest: Manifest, folder: Path, split: str | None, source: str | None
) -> dict[str, list[ShardSlot]]:
    """Select the shards to export, by split, in the order of the manifest."""
    if split is not None:
        check_choice("split", split, manifest.splits)
    if source is not None:
        check_choice("source", source, sorted({name for sources in manifest.splits.values() for name in sources}))
    schema = manifest.shard_schema()
    slots: dict[str, list[ShardSlot]] = {}
    for shard_split, shard_source, shard in manifest.shards():
        if split in (None, shard_split) and source in (None, shard_source) and shard.rows:
            split_slots = slots.setdefault(shard_split, [])
            last = split_slots[-1] if split_slots else None
            origins = str(shard.origins.below(folder)) if shard.origins else None
            split_slots.append(
                ShardSlot(
                    path=str(shard.below(folder)),
                    rows=shard.rows,
                    number=len(split_slots),
                    first_row=last.first_row + last.rows if last else 0,
                    schema=schema,
                    origins=origins,
                )
            )
    return slots


def _measure_shards(
    slots: dict[str, list[ShardSlot]], run: RunTasks, *, with_max: bool
) -> tuple[dict[str, list[ShardSlot]], int]:
    """Count the tokens of the shards, without splits that have none, and find the largest id."""
    shards = [slot for split_slots in slots.values() for slot in split_slots]
    sizes: dict[str, ShardSize] = {}
    tasks = [Task(slot.path, slot) for slot in shards]
    # Lengths alone are 4 bytes a document: reading them takes less time than starting a worker.
    options = {} if with_max else {"backend": "serial", "workers": 1}
    for task, size in run(partial(_measure_shard, with_max=with_max), tasks, desc="measuring", **options):
        sizes[task.payload.path] = size
    measured: dict[str, list[ShardSlot]] = {}
    for split, split_slots in slots.items():
        first_token = 0
        measured_slots = []
        for slot in split_slots:
            tokens = sizes[slot.path].tokens
            measured_slots.append(replace(slot, first_token=first_token, tokens=tokens))
            first_token += tokens
        if first_token:  # a file without bytes cannot be mapped by its readers
            measured[split] = measured_slots
    return measured, max((size.max_id for size in sizes.values()), default=-1)


def _measure_shard(task: Task, context: Context, *, with_max: bool) -> ShardSize:  # noqa: ARG001
    return measure_shard(task.payload, with_max=with_max)


def _make_layout(
    to: str, split: str, slots: list[ShardSlot], manifest: Manifest, vocab_size: int, columns: str
) -> Layout:
    num_rows = sum(slot.rows for slot in slots)
    num_tokens = sum(slot.tokens for slot in slots)
    schema = manifest.schema.to_arrow()
    if to == "megatron":
        return MegatronLayout(split, num_rows, num_tokens, vocab_size)
    if to == "nanogpt":
        return NanogptLayout(split, num_tokens, vocab_size)
    if to == "llmc":
        return LlmcLayout(split, num_tokens, vocab_size)
    if to == "numpy":
        ids = schema.field(INPUT_IDS).type
        return ArraysLayout(split, num_rows, ids.list_size, str(ids.value_type))
    if to == "parquet" and manifest.format in ("jsonl", "webdataset"):
        schema = _sample_schema(slots, manifest.format)
    return TablesLayout(
        split,
        ShardFormat.of(to),
        len(slots),
        schema,
        manifest.format,
        is_tokens=manifest.holds_rows,
        columns=columns,
    )


def _sample_schema(slots: list[ShardSlot], stored_format: str) -> pa.Schema:
    """Find the columns of a split of JSON records: the keys in a sample, and `other_fields` if there may be more."""
    shards = [SourceFile(slot.path, slot.path, Path(slot.path).stat().st_size, "", 0) for slot in slots]
    read = Read(read=[slot.path for slot in slots], format="gristmill")
    types, sees_all = sample_record_types(read, shards)
    columns = [pa.field(ORIGIN, ORIGIN_TYPE), pa.field(TEXT, TEXT_TYPE)]
    columns += [make_field(name, without_nulls(kind), why) for name, (kind, why) in types.items()]
    if not sees_all or stored_format != "jsonl":
        columns.append(make_field(OTHER_FIELDS, JSON_TYPE))
    return pa.schema(columns)


def _check_prefix(path: str | os.PathLike[str], to: str) -> str:
    """Return the beginning of the files' names; for nanogpt, which takes a folder, it ends with a slash."""
    prefix = Path(path)
    if "://" in str(path):
        raise UsageError(
            f"exports are written to a local disk, not to {path}", help="export to a local path, then copy the files"
        )
    if to == "nanogpt":
        if prefix.exists() and not prefix.is_dir():
            raise UsageError(
                f"{path} is a file; nanogpt needs a folder for its train.bin and val.bin", help="choose another path"
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
    slots: dict[str, list[ShardSlot]],
    prefix: str,
    run: RunTasks,
    *,
    suffix: str,
    overwrite: bool,
) -> tuple[list[Path], int]:
    """Write the files; return them, and how many numbers became null."""
    planned = [file for layout in layouts.values() for file in layout.files]
    names = [file.name for file in planned]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two splits would be written to {prefix}{duplicate}", help="export one at a time, with split")
    with PreallocatedFiles(prefix, suffix=suffix) as files:
        existing = files.find_existing(names)
        for layout in layouts.values():
            existing += itertools.takewhile(Path.exists, map(files.path, layout.later_names()))
        if existing and not overwrite:
            more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
            raise UsageError(
                f"{existing[0]}{more} would be overwritten", help="choose another path, or allow it (--overwrite)"
            )
        paths = {
            split: [files.add(file.name, file.num_bytes, file.head) for file in layout.files]
            for split, layout in layouts.items()
        }
        tasks = [Task(slot.path, (split, slot)) for split in layouts for slot in slots[split]]
        num_nan = sum(
            count for _, count in run(_fill_shard, tasks, setup=_make_worker_setup(layouts, paths), desc="exporting")
        )
        return files.commit(replaced=existing), num_nan


def _make_worker_setup(layouts: dict[str, Layout], paths: dict[str, list[str]]) -> Callable[[], Any]:
    """Make what each worker gets once: the layout and the paths of each split."""
    return partial(dict, {split: (layout, paths[split]) for split, layout in layouts.items()})


def _fill_shard(task: Task, context: Context) -> int:
    split, slot = task.payload
    layout, paths = context.state[split]
    with Targets(paths) as targets:
        num_nan = layout.fill(slot, targets)
    context.count(rows=slot.rows)
    return num_nan or 0
