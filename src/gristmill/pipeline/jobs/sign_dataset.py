"""`keep_signatures`: sign the documents of a finished dataset, for later runs of `deduplicate` against it.

It runs after the dataset is published, one task a shard, and again where a run finds signatures missing, so a killed
run is completed by the same command. Shards that an update has left as they were keep their signatures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import DamagedDatasetError
from gristmill.engine.tasks import Task, run_tasks
from gristmill.pipeline.barriers.deduplicate.sign import DocumentSigner
from gristmill.pipeline.stages.outputs.split_files import OutputStem
from gristmill.readers.read import Read
from gristmill.readers.schema import plan_schema
from gristmill.readers.source import list_source_files, open_reader, with_detected_format
from gristmill.shards.kept_signatures import INDEX, SIGNATURES, KeptShard, KeptSignatures, load_kept_signatures
from gristmill.steps.deduplicate.deduplicate import AGAINST, Deduplicate
from gristmill.storage.commit import remove_temporaries, write_file
from gristmill.storage.folders import open_folder
from gristmill.storage.paths import find_files

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.core.records import SourceFile
    from gristmill.engine.tasks import Context
    from gristmill.engine.worker_pool import WorkerPool
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.stages.stage_context import RunOptions
    from gristmill.shards.manifest import Manifest
    from gristmill.shards.stored_files import Shard
    from gristmill.storage.leases import HeldOutput
    from gristmill.storage.locations import Location


_OWN_NAME = re.compile(r"[0-9a-f]{8}-[0-9a-f]{16}\b[^/]*")
"""The signer and the checksum of a shard begin the names of the files that are kept of it."""


@dataclass(frozen=True, slots=True)
class _SignShard:
    """The task that signs one shard."""

    step: Deduplicate
    read: Read
    file: SourceFile
    schema: pa.Schema
    shard: Shard
    stem: OutputStem


def keep_signatures(
    plan: Plan, manifest: Manifest, options: RunOptions, held: HeldOutput, pool: WorkerPool | None = None
) -> None:
    """Sign the shards of a dataset that have no signatures yet, if a step of its recipe asks for it."""
    steps = [step for source in plan.sources for stage in source.stages for step in stage.all_steps]
    keeping = [step for step in steps if isinstance(step, Deduplicate) and step.keep_signatures]
    step = keeping[-1] if keeping else None
    if step is None:
        return
    # The plan has seen to it that all sources have one field of texts.
    folder, signer, text = plan.output, DocumentSigner(step).name, plan.sources[0].read.text
    index = load_kept_signatures(folder)
    is_known = index is not None and index.signer == signer and index.text == text
    sizes = dict(open_folder(folder / SIGNATURES).list_below()) if index and is_known else {}
    known = {
        shard.xxh3: shard
        for shard in (index.shards if index and is_known else ())
        if all(sizes.get(file.path.removeprefix(f"{SIGNATURES}/")) == file.bytes for file in shard.files)
    }
    shards = [shard for _, _, shard in manifest.shards()]
    paths = {shard.path: shard.xxh3 for shard in shards}
    if (
        index
        and is_known
        and {shard.path: shard.xxh3 for shard in index.shards} == paths
        and known.keys() >= set(paths.values())
    ):
        _remove_others(folder, index)  # a run that was killed may have left them
        return
    unsigned = [shard for shard in shards if shard.xxh3 not in known]
    for task, signed in run_tasks(
        _sign_shard,
        _make_tasks(folder, step, text, unsigned, held.run_id),
        workers=options.workers,
        backend="serial" if options.backend == "auto" or len(unsigned) <= 1 else options.backend,
        desc="signatures",
        progress=options.progress,
        pool=pool,
        runs_user_code=False,
    ):
        known[task.payload.shard.xxh3] = signed
    held.check()
    entries = [msgspec.structs.replace(known[shard.xxh3], path=shard.path) for shard in shards]
    new_index = KeptSignatures(signer=signer, text=text, shards=entries)
    write_file(folder / INDEX, msgspec.json.encode(new_index), held.run_id)
    _remove_others(folder, new_index)


def _make_tasks(folder: Location, step: Deduplicate, text: str, shards: list[Shard], run_id: str) -> list[Task]:
    """Make a task for each shard; the files are read as a later run reads them."""
    if not shards:
        return []
    listed_files = find_files(str(folder))
    read = with_detected_format(Read(read=str(folder), text=text), listed_files)
    files = [
        msgspec.structs.replace(file, split="")
        for file in list_source_files(AGAINST, read, listed_files, needs_train=False)
    ]
    schema = plan_schema(read, files, keeps_record=False)
    by_path = {file.path: file for file in files}
    signer = DocumentSigner(step).name
    return [
        Task(
            shard.path,
            _SignShard(
                step,
                read,
                by_path[str(folder / shard.path)],
                schema,
                shard,
                OutputStem(folder, f"{SIGNATURES}/{signer[:8]}-{shard.xxh3}", run_id),
            ),
        )
        for shard in shards
    ]


def _sign_shard(task: Task, context: Context) -> KeptShard:
    """Sign the documents of a shard.

    Raises:
        DamagedDatasetError: It cannot be read as it was written.
    """
    work: _SignShard = task.payload
    cell_rows = []
    with DocumentSigner(work.step).open(work.stem) as writer:
        for cell in open_reader(work.read, work.file, work.schema).read_cells():
            context.count(records=cell.batch.num_rows, bytes=cell.batch.nbytes)
            cell_rows.append(cell.batch.num_rows)
            writer.add(cell.batch)
        if sum(cell_rows) != work.shard.rows:
            raise DamagedDatasetError(
                f"{work.file.path} has {sum(cell_rows):,} documents with a text, but {work.shard.rows:,} records",
                help="keep_signatures needs a text in every record; gristmill verify tells whether it is damaged",
            )
        annotation = writer.commit()
    return KeptShard(
        path=work.shard.path,
        xxh3=work.shard.xxh3,
        rows=work.shard.rows,
        cell_rows=cell_rows,
        files=annotation.files,
        counts=annotation.counts,
    )


def _remove_others(folder: Location, index: KeptSignatures) -> None:
    """Remove what earlier runs have kept of shards that are gone. Files with other names are not ours."""
    remove_temporaries(folder / SIGNATURES, None)
    names = {file.path for file in index.files()}
    for name, _ in list(open_folder(folder / SIGNATURES).list_below()):
        if f"{SIGNATURES}/{name}" not in names and _OWN_NAME.match(name):
            (folder / SIGNATURES / name).unlink()
