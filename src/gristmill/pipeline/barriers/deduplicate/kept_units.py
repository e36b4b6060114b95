"""The documents of `against` by their kept signatures: no text is read or signed again.

The files of signatures are copied into the work folder, about 370 bytes a document, and checked on the way. Texts are
read from the shards where pairs have to be verified, only the cells that hold them.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.deduplicate.barrier_units import BarrierUnit
from gristmill.pipeline.barriers.deduplicate.contexts import SignContext
from gristmill.pipeline.barriers.deduplicate.documents import DOCUMENT
from gristmill.pipeline.barriers.deduplicate.record_files import DIGEST, KEY, RecordWriter, view_partitioned
from gristmill.pipeline.barriers.deduplicate.sign import NUM_RANGES, DocumentSigner, SignResult
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.sources.source_plan import SourcePlan
from gristmill.pipeline.planning.split_stages import Stage
from gristmill.pipeline.stages.outputs.split_files import Annotation, open_stem
from gristmill.pipeline.stages.stored import ShardInput
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.pipeline.work_folder import stored_path
from gristmill.shards.kept_signatures import SIGNATURES, KeptShard, load_kept_signatures
from gristmill.shards.manifests.manifest_file import load_manifest
from gristmill.steps.deduplicate.deduplicate import AGAINST
from gristmill.steps.read import plan_schema
from gristmill.storage.locations import parse_location

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.barriers.base import BarrierRun
    from gristmill.steps.deduplicate.deduplicate import Deduplicate, DeduplicateAgainst

_log = logging.getLogger("gristmill")


@dataclass(frozen=True, slots=True)
class CopyTask:
    """A task that copies the signatures of one shard into the work folder."""

    folder: str
    shard: KeptShard
    file_id: int
    """The `file` of the origins of its documents in this run."""
    signer: str
    stem: str


def find_kept_units(step: DeduplicateAgainst, run: BarrierRun) -> list[BarrierUnit] | None:
    """Make the units of `against` from kept signatures; None if the texts have to be read and signed.

    Raises:
        UsageError: The signatures do not fit, and the texts are gone.
    """
    shards = _find_shards(step)
    if shards is None:
        return None
    signer = DocumentSigner(step).name
    files = {file.path: file for file in step.files}
    root = os.path.commonpath(step.signed_folders) if len(step.signed_folders) > 1 else step.signed_folders[0]
    tasks, streams = [], []
    schema = plan_schema(step.read, step.files, keeps_record=False) if files else pa.schema([])
    for path, folder, shard in sorted(shards, key=lambda entry: entry[0]):
        file = files.get(path)
        relative = os.path.relpath(path, root)
        file_id = xxhash.xxh3_64_intdigest(f"{AGAINST}\0{relative}".encode()) if file is None else file.id
        name = fingerprint.of("kept", path, shard.xxh3, signer, file_id)
        tasks.append(Task(name, CopyTask(folder, shard, file_id, signer, stored_path(name))))
        rows = tuple(shard.cell_rows)
        streams.append(
            ShardInput(path=path, num_rows=sum(rows), read=step.read, file=file, schema=schema, cell_rows=rows)
        )
    context = SignContext.extend(run.context, step=step)
    copies = run.runner.run_missing(run_copy, context, tasks, SignResult, "deduplicate: kept signatures")
    source = SourcePlan(AGAINST, step.read, tuple(step.files), schema, (Stage((), step),), (schema,), [])
    return [
        BarrierUnit(StageUnit(source, task.id, ()), stream, annotation=copy.annotation, is_against=True)
        for task, stream, copy in zip(tasks, streams, copies, strict=True)
    ]


def _find_shards(step: DeduplicateAgainst) -> list[tuple[str, str, KeptShard]] | None:
    """Find the signed shards with documents: the path of each, the folder of its dataset, and its signatures."""
    shards = []
    for folder in step.signed_folders:
        location = parse_location(folder)
        index = load_kept_signatures(location)
        known = {} if index is None else {shard.path: (shard.xxh3, shard.rows) for shard in index.shards}
        stored = {shard.path: (shard.xxh3, shard.rows) for _, _, shard in load_manifest(location).shards()}
        problem = None
        if index is None or known != stored:
            problem = "belong to an earlier state of the dataset"
        elif index.signer != DocumentSigner(step).name or index.text != step.read.text:
            problem = "were made with other settings (kind, ngram, bands, rows, text)"
        if index is None or problem is not None:
            if not step.files:
                raise UsageError(
                    f"against: the signatures of {folder} {problem}, and its texts are gone",
                    help="use the settings of the run that made them, or bring the shards back",
                )
            _log.warning("deduplicate: the signatures of %s %s: its texts are read", folder, problem)
            return None
        shards += [(str(location / shard.path), folder, shard) for shard in index.shards if shard.rows]
    return shards


def run_copy(task: Task, context: Context) -> SignResult:
    """Run a `CopyTask`; `context.state` is the `SignContext`.

    Raises:
        DamagedDatasetError: A file is not what was written.
    """
    stage: SignContext = context.state
    copy: CopyTask = task.payload
    stem = open_stem(stage.work, copy.stem, stage.run_id)
    folder = parse_location(copy.folder)
    copied = []
    for number, file in enumerate(copy.shard.files):
        context.at(number)
        path = file.below(folder)
        data = np.frombuffer(bytearray(path.read_bytes() if path.is_file() else b""), np.uint8)
        is_intact = len(data) == file.bytes and xxhash.xxh3_64_hexdigest(data.data) == file.xxh3
        if not is_intact or not _is_usable(number, data, copy.shard, stage.step):
            raise DamagedDatasetError(
                f"{path} is not what was written",
                help=f"remove {folder / SIGNATURES}, and run the recipe of that dataset again",
            )
        if number == 0:  # origins in this run name the file by its path below what `against` says
            descriptions = data.view(DOCUMENT)
            descriptions["file"] = copy.file_id
        with RecordWriter(stem, f".{number}") as writer:
            writer.add(data)
            copied.append(writer.commit())
        context.count(bytes=len(data))
    return SignResult(annotation=Annotation(made_by=copy.signer, files=copied, counts=copy.shard.counts))


def _is_usable(number: int, data: NDArray[np.uint8], shard: KeptShard, step: Deduplicate) -> bool:
    """Tell whether a file has the records that it should have, and names no document or sketch that is not there.

    Checksums in a folder of someone else prove nothing, and kernels do not look at the bounds of arrays.
    """
    num_sketches, rest = divmod(shard.files[1].bytes, step.sketch_bytes)
    if number == 0:
        if len(data) != shard.rows * DOCUMENT.itemsize:
            return False
        sketches = data.view(DOCUMENT)["sketch"]
        return np.array_equal(sketches[sketches != -1], np.arange(num_sketches))
    if number == 1:
        return rest == 0
    if number == 3 and shard.counts[1] != num_sketches * step.num_band_keys:
        return False
    kind = DIGEST if number == 2 else KEY
    records = view_partitioned(data, kind, shard.counts[number - 2], NUM_RANGES)
    return records is not None and bool(np.all(records["row"] < shard.rows))
