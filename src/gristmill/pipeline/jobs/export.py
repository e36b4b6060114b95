"""`gristmill.export`: a finished dataset in another format, written by all workers at once.

Shards are measured where sizes are not in the manifest, the files are made at their full size under temporary names,
each shard is written into its place by whichever worker has time, and this process syncs and renames. Nothing of the
data passes through it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.engine.tasks import Task, run_tasks
from gristmill.exports.arrays import ArraysLayout
from gristmill.exports.layout import Place, Targets
from gristmill.exports.megatron import MegatronLayout
from gristmill.exports.streams import LlmcLayout, NanogptLayout
from gristmill.exports.tokens import measure
from gristmill.exports.training import AXOLOTL, COLUMNS, STORED, TRAINING
from gristmill.pipeline.jobs.export_tables import JSON_FORMATS, TablesLayout, sample_schema
from gristmill.shards.manifest import load_manifest
from gristmill.shards.token_rows import CHATS
from gristmill.steps.write import Write
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
    """What an export has written."""

    files: list[Path]
    rows: dict[str, int]
    """Of each split."""
    usage: list[str]
    """How to use it, a line for each split."""
    notes: list[str]
    """What else to know: sources that stand one after the other in files that are read in order."""
    nan_as_null: int = 0
    """Numbers that JSON has not (NaN, infinity), and that were written as null."""


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

    `megatron`, `nanogpt` and `llmc` take documents in their order, so a dataset of tokens that was made without `pack`;
    `numpy` takes packed rows; `webdataset`, `parquet` and `jsonl` take any dataset. Files appear when all are whole.

    Args:
        dataset: The output folder of a finished run.
        to: megatron, nanogpt, llmc, numpy, webdataset, parquet or jsonl.
        path: How the files' names begin: "bin/corpus" gives bin/corpus_train.bin and so on, a set for each split. For
            nanogpt the folder of its train.bin and val.bin.
        split: Only this split.
        source: Only this source; by default all, one after the other.
        vocab_size: For megatron, nanogpt and llmc, with added tokens: decides between narrow and wide ids. Default: the
            tokenizer's.
        columns: Of tokens in parquet, jsonl or webdataset: "stored", those of the dataset; "training": input_ids,
            labels, position_ids and seq_lengths, without padding; "transformers": input_ids, attention_mask and labels,
            packed rows with their padding, for the collators of transformers; "axolotl": the same columns, of a dataset
            that is not packed. Default: "training" for chats in parquet and jsonl.
        overwrite: Replace files of these names.
        workers: How many; "auto": as many as this machine allows.
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
    places = _select_shards(manifest, folder, split, source)
    run = partial(run_tasks, workers=workers, backend=backend, retries=0, progress=progress)
    if to in _STREAMS:
        known = _find_vocab_size(manifest, vocab_size)
        places, max_id = _measure_shards(places, run, with_max=known is None)
        vocab_size = known or max_id + 1
    layouts = {
        name: _make_layout(to, name, of_split, manifest, vocab_size or 0, columns)
        for name, of_split in places.items()
        if of_split
    }
    if not layouts:
        raise UsageError(f"there is nothing to export in {folder}", help="`gristmill inspect` shows what it holds")
    files, num_nan = _write_files(
        layouts, places, prefix, run, suffix=".bin" if to == "nanogpt" else "", overwrite=overwrite
    )
    rows = {name: sum(place.rows for place in places[name]) for name in layouts}
    usage = [layout.usage(prefix) for layout in layouts.values()]
    return ExportResult(files, rows, usage, _describe_order(manifest, to, list(layouts), source), num_nan)


def _describe_order(manifest: Manifest, to: str, splits: list[str], source: str | None) -> list[str]:
    """Whoever reads the files in order is told where that means one source after the other."""
    if to == "megatron" or source is not None:  # Megatron shuffles documents by itself
        return []
    notes = []
    for split in splits:
        sources = [name for name, shards in manifest.splits[split].items() if any(shard.rows for shard in shards)]
        if len(sources) > 1:
            notes.append(
                f"{split}: read in order, this is one source after the other ({', then '.join(sources)}); to "
                "interleave them, run the recipe with mix or shuffle: {across: sources}, or gristmill mix"
            )
    return notes


def check_fits(manifest: Manifest, to: str, folder: Path) -> None:
    """Refuse what the format cannot hold, and say what to do instead."""
    if to in _TABLES:
        return
    if not manifest.holds_rows:
        raise UsageError(
            f"{folder} holds {manifest.kind}, and {to} is a format of tokens",
            help="add a `tokenize` step to the recipe, or export to webdataset, parquet or jsonl",
        )
    ids = manifest.schema.to_arrow().field(INPUT_IDS).type
    if to == "numpy" and not pa.types.is_fixed_size_list(ids):
        others = "parquet or jsonl" if manifest.kind == CHATS else "megatron, nanogpt or llmc"
        raise UsageError(
            f"{folder} is not packed: its rows have different lengths, and an array has one",
            help=f"add `- pack: {{row_length: 2048}}` to the recipe, or export to {others}",
        )
    if to != "numpy" and manifest.kind == CHATS:
        raise UsageError(
            f"{folder} says which tokens are trained ({LOSS_MASK}), and {to} has no place for that",
            help="export to parquet or jsonl, or pack it and export to numpy",
        )
    if to != "numpy" and pa.types.is_fixed_size_list(ids):
        raise UsageError(
            f"{folder} is packed into rows of {ids.list_size} tokens, and {to} takes whole documents in their order",
            help="run the recipe without `pack` into another folder and export that; packed rows go to numpy",
        )


def _choose_columns(manifest: Manifest, to: str, given: str | None) -> str:
    """Which columns token rows get in a table."""
    if given is None:
        return TRAINING if manifest.kind == CHATS and to in ("parquet", "jsonl") else STORED
    check_choice("columns", given, COLUMNS)
    if given != STORED and not (manifest.holds_rows and to in _TABLES):
        raise UsageError(
            f"columns: {given} is for tokens in {', '.join(_TABLES)}, not for {manifest.kind} in {to}",
            help="leave it out",
        )
    if given == AXOLOTL and manifest.row_length is not None:
        raise UsageError(
            "columns: axolotl is for one document a row: axolotl packs them itself, and takes a packed row for one",
            help="run the recipe without `pack` into another folder and export that",
        )
    return given


def _find_vocab_size(manifest: Manifest, given: int | None) -> int | None:
    """What decides Megatron's type of ids, before the tokens are looked at."""
    return given or (manifest.tokenizer.vocab_size if manifest.tokenizer is not None else None)


def _select_shards(manifest: Manifest, folder: Path, split: str | None, source: str | None) -> dict[str, list[Place]]:
    """Split -> its shards in the order of the manifest."""
    if split is not None:
        check_choice("split", split, manifest.splits)
    if source is not None:
        check_choice("source", source, sorted({name for sources in manifest.splits.values() for name in sources}))
    schema = manifest.shard_schema()
    places: dict[str, list[Place]] = {}
    for name, of_source, shard in manifest.shards():
        if split in (None, name) and source in (None, of_source) and shard.rows:
            of_split = places.setdefault(name, [])
            last = of_split[-1] if of_split else None
            origins = str(shard.origins.below(folder)) if shard.origins else None
            of_split.append(
                Place(
                    path=str(shard.below(folder)),
                    rows=shard.rows,
                    number=len(of_split),
                    first_row=last.first_row + last.rows if last else 0,
                    schema=schema,
                    origins=origins,
                )
            )
    return places


def _measure_shards(
    places: dict[str, list[Place]], run: RunTasks, *, with_max: bool
) -> tuple[dict[str, list[Place]], int]:
    """The places with their tokens counted, those of splits without tokens left out; and the greatest id."""
    shards = [place for of_split in places.values() for place in of_split]
    sizes: dict[str, ShardSize] = {}
    tasks = [Task(place.path, place) for place in shards]
    # Lengths alone are 4 bytes a document, read in less time than a worker needs to start.
    options = {} if with_max else {"backend": "serial", "workers": 1}
    for task, size in run(partial(_measure_shard, with_max=with_max), tasks, desc="measuring", **options):
        sizes[task.payload.path] = size
    counted: dict[str, list[Place]] = {}
    for split, of_split in places.items():
        first_token = 0
        placed = []
        for place in of_split:
            tokens = sizes[place.path].tokens
            placed.append(
                Place(place.path, place.rows, place.number, place.first_row, first_token, tokens, place.origins)
            )
            first_token += tokens
        if first_token:  # what has no bytes cannot be mapped by those who read it
            counted[split] = placed
    return counted, max((size.max_id for size in sizes.values()), default=-1)


def _measure_shard(task: Task, context: Context, *, with_max: bool) -> ShardSize:  # noqa: ARG001
    return measure(task.payload, with_max=with_max)


def _make_layout(to: str, split: str, places: list[Place], manifest: Manifest, vocab_size: int, columns: str) -> Layout:
    num_rows = sum(place.rows for place in places)
    num_tokens = sum(place.tokens for place in places)
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
    if manifest.format in JSON_FORMATS and to == "parquet":
        schema = sample_schema(places, manifest.format)
    return TablesLayout(
        split,
        Write(format=to),
        len(places),
        schema,
        manifest.format,
        is_tokens=manifest.holds_rows,
        columns=columns,
    )


def _check_prefix(path: str | os.PathLike[str], to: str) -> str:
    """How the files' names begin; nanoGPT knows its files by their folder, and theirs end with a slash."""
    prefix = Path(path)
    if "://" in str(path):
        raise UsageError(f"files are written to a local disk, not to {path}", help="export, then copy them there")
    if to == "nanogpt":
        if prefix.exists() and not prefix.is_dir():
            raise UsageError(
                f"{path} is a file; nanogpt takes a folder, for its train.bin and val.bin", help="choose another path"
            )
        return f"{prefix}/"
    if str(path).endswith("/") or prefix.is_dir():
        raise UsageError(
            f"{path} is a folder; the path is how the files' names begin", help=f"for example {prefix / 'corpus'}"
        )
    return str(prefix)


def _write_files(
    layouts: dict[str, Layout],
    places: dict[str, list[Place]],
    prefix: str,
    run: RunTasks,
    *,
    suffix: str,
    overwrite: bool,
) -> tuple[list[Path], int]:
    """The files, and how many numbers became null."""
    planned = [file for layout in layouts.values() for file in layout.files]
    names = [file.name for file in planned]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two splits would be written to {prefix}{twice}", help="export them one by one, with split")
    with PreallocatedFiles(prefix, suffix=suffix) as files:
        existing = files.find_existing(names)
        for layout in layouts.values():
            existing += itertools.takewhile(Path.exists, map(files.path, layout.later_names()))
        if existing and not overwrite:
            more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
            raise UsageError(
                f"{existing[0]}{more} would be written over", help="choose another path, or say overwrite (--overwrite)"
            )
        paths = {
            split: [files.add(file.name, file.num_bytes, file.head) for file in layout.files]
            for split, layout in layouts.items()
        }
        tasks = [Task(place.path, (split, place)) for split in layouts for place in places[split]]
        num_nan = sum(
            count for _, count in run(_fill_shard, tasks, setup=_make_worker_setup(layouts, paths), desc="exporting")
        )
        return files.commit(replaced=existing), num_nan


def _make_worker_setup(layouts: dict[str, Layout], paths: dict[str, list[str]]) -> Callable[[], Any]:
    """What each worker is told once."""
    return partial(dict, {split: (layout, paths[split]) for split, layout in layouts.items()})


def _fill_shard(task: Task, context: Context) -> int:
    split, place = task.payload
    layout, paths = context.state[split]
    with Targets(paths) as targets:
        num_nan = layout.fill(place, targets)
    context.count(rows=place.rows)
    return num_nan or 0
