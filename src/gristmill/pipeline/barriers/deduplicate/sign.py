"""Signing: each stream's documents are described, digested and signed, one cell at a time.

The stage before the barrier signs documents while it writes them (`DocumentSigner`): no text is read again for it, and
nothing waits for the last unit. Tasks sign only streams that were written without, by an earlier run with another step.

Takes 32 bytes of disk for each document, 20 for its digest, and for each with a signature 108 for the sketch and 216
for the keys of its bands (with 18 bands of 6 rows).

The documents of `against`, which are never written to the output, are signed here, or by the run that made their
dataset. Files are read into the work folder like those of any source. Of a dataset with kept signatures no text is read
or signed: their files are copied into the work folder, about 370 bytes a document, and checked on the way. Texts are
then read from the shards only where pairs have to be verified, and only the cells that hold them.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from gristmill.core.books import add_books
from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.core.records import ORIGIN
from gristmill.core.seeds import find_ranges
from gristmill.engine.tasks import Task
from gristmill.pipeline.barriers.deduplicate.documents import DOCUMENT, BarrierUnit, SignContext, collect_barrier_units
from gristmill.pipeline.barriers.record_files import (
    DIGEST,
    KEY,
    PartitionedFile,
    PartitionWriter,
    RecordWriter,
    make_records,
    view_partitioned,
)
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.source_plan import SourcePlan, Stage
from gristmill.pipeline.stages.outputs.split_files import Annotation, OutputStem, open_stem
from gristmill.pipeline.stages.outputs.unit_output import StoredStreams
from gristmill.pipeline.stages.runner import StageResults
from gristmill.pipeline.stages.stage_context import SourceStage
from gristmill.pipeline.stages.stored import ShardInput
from gristmill.pipeline.stages.unit_tasks import StageUnit
from gristmill.pipeline.stages.unpack import InputUnits
from gristmill.pipeline.work_folder import stored_path
from gristmill.readers.schema import plan_schema
from gristmill.shards.kept_signatures import SIGNATURES, KeptShard, load_kept_signatures
from gristmill.shards.manifest_file import load_manifest
from gristmill.shards.stored_files import StoredFile
from gristmill.steps.deduplicate.clusters import digest_texts, sign_batch
from gristmill.steps.deduplicate.deduplicate import AGAINST, DeduplicateAgainst
from gristmill.steps.edit_columns import read_content
from gristmill.storage.locations import parse_location
from gristmill.text.buffers import get_text_buffers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context
    from gristmill.pipeline.barriers.base import BarrierRun
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.steps.deduplicate.deduplicate import Deduplicate


NUM_RANGES = 1 << 10
"""The number of partitions of a stream: how many documents there are in all is not known when it is written."""


@dataclass(frozen=True, slots=True)
class DocumentSigner:
    """Signs the documents of streams as they are written: the `Annotator` of `deduplicate`."""

    step: Deduplicate

    @property
    def name(self) -> str:
        """A hash of what the signatures depend on: not the threshold, nor what is preferred."""
        step = self.step
        parameters: list[object] = [step.kind, step.ngram, step.bands, step.rows]
        parameters += [step.max_distance, step.fingerprint_versions] if step.kind == "image" else [step.version]
        return fingerprint.of("sign", parameters)

    def open(self, stem: OutputStem) -> SignatureWriter:
        return SignatureWriter(self, stem)


class SignatureWriter:
    """Signs the documents of one stream."""

    def __init__(self, signer: DocumentSigner, stem: OutputStem) -> None:
        self._signer = signer
        self._documents = RecordWriter(stem, ".documents")
        self._sketches = RecordWriter(stem, ".sketches")
        self._digests = PartitionWriter(stem, ".digests", NUM_RANGES)
        self._keys = PartitionWriter(stem, ".keys", NUM_RANGES)
        self._open_files = ExitStack()
        self._num_rows = self._num_sketches = 0

    def __enter__(self) -> Self:
        for writer in (self._documents, self._sketches, self._digests, self._keys):
            self._open_files.enter_context(writer)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open_files.close()

    def add(self, records: pa.RecordBatch) -> None:
        descriptions = _describe_documents(records)
        rows = np.arange(self._num_rows, self._num_rows + records.num_rows, dtype=np.uint32)
        halves = digest_texts(read_content(records))
        digests = make_records(DIGEST, high=halves[:, 0], low=halves[:, 1], row=rows)
        self._digests.scatter(digests, find_ranges(halves[:, 0], NUM_RANGES))
        if self._signer.step.kind != "exact":
            signed = sign_batch(self._signer.step, records)
            descriptions["num_shingles"] = np.minimum(signed.counts, 2**32 - 1)
            descriptions["sketch"][signed.rows] = self._num_sketches + np.arange(len(signed.rows))
            self._num_sketches += len(signed.rows)
            self._sketches.add(signed.sketches)
            keys = signed.keys.reshape(-1)
            band_keys = make_records(KEY, key=keys, row=np.repeat(rows[signed.rows], self._signer.step.num_band_keys))
            self._keys.scatter(band_keys, find_ranges(keys, NUM_RANGES))
        self._documents.add(descriptions)
        self._num_rows += records.num_rows

    def commit(self) -> Annotation:
        digests, keys = self._digests.close(), self._keys.close()
        return Annotation(
            made_by=self._signer.name,
            files=[self._documents.commit(), self._sketches.commit(), digests.file, keys.file],
            counts=[digests.num_records, keys.num_records],
            checksums=[digests.checksums, keys.checksums],
        )


@dataclass(frozen=True, slots=True)
class SignedStream:
    """The files that hold what is known of a stream's documents."""

    documents: StoredFile
    sketches: StoredFile
    digests: PartitionedFile
    keys: PartitionedFile

    @classmethod
    def of(cls, annotation: Annotation) -> SignedStream:
        documents, sketches, digests, keys = annotation.files
        partitioned = [
            PartitionedFile(file=file, num_records=count, num_partitions=NUM_RANGES, checksums=checksums)
            for file, count, checksums in zip((digests, keys), annotation.counts, annotation.checksums, strict=True)
        ]
        return cls(documents, sketches, *partitioned)


@dataclass(frozen=True, slots=True)
class SignTask:
    """A task that signs the documents of one stream."""

    stream: StoredInput
    stem: str


class SignResult(msgspec.Struct, frozen=True, kw_only=True):
    """The annotation that a task has made of a stream."""

    annotation: Annotation

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return self.annotation.files


def run_sign(task: Task, context: Context) -> SignResult:
    """Run a `SignTask`; `context.state` is the `SignContext`."""
    stage: SignContext = context.state
    sign: SignTask = task.payload
    with DocumentSigner(stage.step).open(open_stem(stage.work, sign.stem, stage.run_id)) as writer:
        for number, batch in enumerate(sign.stream.batches(stage.work)):
            context.at(number)
            context.count(records=batch.num_rows, bytes=batch.nbytes)
            writer.add(batch)
        return SignResult(annotation=writer.commit())


def _describe_documents(batch: pa.RecordBatch) -> NDArray[Any]:
    """Make the `DOCUMENT` records of a batch; what only signing tells is still missing."""
    origin = batch.column(ORIGIN)
    _, offsets = get_text_buffers(read_content(batch))
    descriptions = np.zeros(batch.num_rows, dtype=DOCUMENT)
    for name in ("file", "position", "part"):
        descriptions[name] = origin.field(name).to_numpy(zero_copy_only=False)
    descriptions["num_bytes"] = np.minimum(np.diff(offsets), 2**32 - 1)
    descriptions["sketch"] = -1
    return descriptions


_log = logging.getLogger("gristmill")


def read_against_units(step: Deduplicate, run: BarrierRun) -> list[BarrierUnit]:
    """Read the files of `against`, and give their units; none where the step has no `against`."""
    if not isinstance(step, DeduplicateAgainst):
        return []
    signed_units = find_kept_units(step, run) if step.signed_folders else None
    if signed_units is not None:
        return signed_units
    schema = plan_schema(step.read, step.files, keeps_record=False)
    source = SourcePlan(
        AGAINST, step.read, tuple(step.files), schema, (Stage((), step),), (schema,), [], layout=run.plan.layout
    )
    stage = SourceStage(step.read, schema, (), StoredStreams(schema, DocumentSigner(step)))
    context = replace(run.context, sources={**run.context.sources, AGAINST: stage})
    inputs = InputUnits(replace(run.plan, sources=(source,)), run.runner, context, "")
    inputs.unpack_files()
    units = list(inputs.prepare_units(source))
    run.runner.run(context, units, "deduplicate: against")
    results = StageResults(run.runner, units)
    books = add_books(result.books for result in results)
    num_quarantined = sum(account.quarantined.total() for account in books)
    if num_quarantined:
        _log.warning(
            "deduplicate: %s records of against could not be read, and are not compared", f"{num_quarantined:,}"
        )
    return list(collect_barrier_units(zip(units, results, strict=True), is_against=True))


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
        stored = StoredFile(path=path, bytes=0, xxh3=shard.xxh3)
        streams.append(
            ShardInput(file=stored, num_rows=sum(rows), read=step.read, shard=file, schema=schema, cell_rows=rows)
        )
    context = SignContext.extend(run.context, step=step)
    copies = run.runner.run_missing(run_copy, context, tasks, SignResult, "deduplicate: kept signatures")
    source = SourcePlan(
        AGAINST, step.read, tuple(step.files), schema, (Stage((), step),), (schema,), [], layout=run.plan.layout
    )
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
    copied, checksums = [], []
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
            checksums.append(writer.checksums)
        context.count(bytes=len(data))
    annotation = Annotation(
        made_by=copy.signer, files=copied, counts=copy.shard.counts, checksums=checksums[-len(copy.shard.counts) :]
    )
    return SignResult(annotation=annotation)


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
