"""The first kind of task: each unit's documents are described, digested and signed, one cell at a time.

Takes 32 bytes of disk for each document, 20 for its digest, and for each with a signature 108 for the sketch and 216
for the keys of its bands (with 18 bands of 6 rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.shards.manifest import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
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


@dataclass(frozen=True, slots=True)
class SignTask:
    """A task that signs the documents of one unit."""

    inputs: tuple[StoredInput, ...]
    stem: str
    num_digest_partitions: int
    num_key_partitions: int


class SignedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """The files that hold what is known of a unit's documents."""

    documents: StoredFile
    sketches: StoredFile
    digests: PartitionedFile
    keys: PartitionedFile

    def files(self) -> list[StoredFile]:
        """List the files that the receipt depends on."""
        return [self.documents, self.sketches, self.digests.file, self.keys.file]


def run_sign(task: Task, context: Context) -> SignedUnit:
    """Run a `SignTask`; `context.state` is the `SignContext`."""
    stage: SignContext = context.state
    sign: SignTask = task.payload
    stem = open_stem(stage.root, sign.stem, stage.run_id)
    with (
        RecordWriter(stem, ".documents") as documents,
        RecordWriter(stem, ".sketches") as sketches,
        PartitionWriter(stem, ".digests", sign.num_digest_partitions) as digest_file,
        PartitionWriter(stem, ".keys", sign.num_key_partitions) as key_file,
    ):
        row = num_sketches = 0
        for stored_input in sign.inputs:
            for number, batch in enumerate(stored_input.batches(stage.root)):
                context.at(number)
                context.count(records=batch.num_rows, bytes=batch.nbytes)
                descriptions = _describe_documents(batch)
                rows = np.arange(row, row + batch.num_rows, dtype=np.uint32)
                halves = digest_texts(read_content(batch))
                digests = make_records(DIGEST, high=halves[:, 0], low=halves[:, 1], row=rows)
                digest_file.scatter(digests, find_ranges(halves[:, 0], sign.num_digest_partitions))
                if stage.step.kind != "exact":
                    signed = sign_batch(stage.step, batch)
                    descriptions["num_shingles"] = np.minimum(signed.counts, 2**32 - 1)
                    descriptions["sketch"][signed.rows] = num_sketches + np.arange(len(signed.rows))
                    num_sketches += len(signed.rows)
                    sketches.add(signed.sketches)
                    keys = signed.keys.reshape(-1)
                    band_keys = make_records(KEY, key=keys, row=np.repeat(rows[signed.rows], stage.step.num_band_keys))
                    key_file.scatter(band_keys, find_ranges(keys, sign.num_key_partitions))
                documents.add(descriptions)
                row += batch.num_rows
        return SignedUnit(
            documents=documents.commit(), sketches=sketches.commit(), digests=digest_file.close(), keys=key_file.close()
        )


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
