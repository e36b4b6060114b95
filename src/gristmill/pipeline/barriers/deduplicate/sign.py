"""Signing: each stream's documents are described, digested and signed, one cell at a time.

The stage before the barrier signs documents while it writes them (`DocumentSigner`): no text is read again for it, and
nothing waits for the last unit. Tasks sign only streams that were written without, by an earlier run with another step.

Takes 32 bytes of disk for each document, 20 for its digest, and for each with a signature 108 for the sketch and 216
for the keys of its bands (with 18 bands of 6 rows).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from gristmill.core.records import ORIGIN
from gristmill.core.seeds import find_ranges
from gristmill.pipeline.barriers.deduplicate.documents import DOCUMENT
from gristmill.pipeline.barriers.deduplicate.record_files import (
    DIGEST,
    KEY,
    PartitionedFile,
    PartitionWriter,
    RecordWriter,
    make_records,
)
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.stages.outputs.split_files import Annotation, OutputStem, open_stem
from gristmill.steps.deduplicate.digests import digest_texts
from gristmill.steps.deduplicate.signatures import sign_batch
from gristmill.steps.records.content import read_content
from gristmill.text.buffers import get_text_buffers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.contexts import SignContext
    from gristmill.pipeline.stages.stored import StoredInput
    from gristmill.shards.manifests.stored_files import StoredFile
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
        num_digests, num_keys = annotation.counts
        return cls(
            documents,
            sketches,
            PartitionedFile(file=digests, num_records=num_digests, num_partitions=NUM_RANGES),
            PartitionedFile(file=keys, num_records=num_keys, num_partitions=NUM_RANGES),
        )


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
