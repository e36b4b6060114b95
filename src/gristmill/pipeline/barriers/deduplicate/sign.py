"""The first stage: each unit's documents described, digested and signed, one cell at a time.

On disk 32 bytes a document, 20 for its digest, and for each with a signature 108 for the sketch and 216 for the keys of
its bands (with 18 bands of 6 rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gristmill.core.records import ORIGIN, TEXT
from gristmill.pipeline.barriers.deduplicate.documents import DOCUMENT
from gristmill.pipeline.barriers.deduplicate.record_files import (
    DIGEST,
    KEY,
    PartitionedFile,
    PartitionWriter,
    RecordWriter,
    find_partitions,
    make_records,
)
from gristmill.pipeline.stages.sink import OutputStem
from gristmill.shards.manifest import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.steps.deduplicate.digests import digest_texts
from gristmill.text.shingles.minhash import text_buffers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.engine.tasks import Context, Task
    from gristmill.pipeline.barriers.deduplicate.documents import DedupContext
    from gristmill.pipeline.stages.stored import StoredInput


@dataclass(frozen=True, slots=True)
class SignTask:
    """Sign one unit."""

    inputs: tuple[StoredInput, ...]
    stem: str
    num_digest_partitions: int
    num_key_partitions: int


class SignedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a unit's documents."""

    documents: StoredFile
    sketches: StoredFile
    digests: PartitionedFile
    keys: PartitionedFile

    def files(self) -> list[StoredFile]:
        return [self.documents, self.sketches, self.digests.file, self.keys.file]


def run_sign(task: Task, context: Context) -> SignedUnit:
    """The function of these tasks; `context.state` is the `DedupContext`."""
    stage: DedupContext = context.state
    sign: SignTask = task.payload
    place = OutputStem(stage.root, sign.stem, stage.run_id)
    with (
        RecordWriter(place, ".documents") as documents,
        RecordWriter(place, ".sketches") as sketches,
        PartitionWriter(place, ".digests", sign.num_digest_partitions) as digest_file,
        PartitionWriter(place, ".keys", sign.num_key_partitions) as key_file,
    ):
        row = num_sketches = 0
        for stored in sign.inputs:
            for number, batch in enumerate(stored.batches(stage.root)):
                context.at(number)
                context.count(records=batch.num_rows, bytes=batch.nbytes)
                described = _describe_documents(batch)
                numbers = np.arange(row, row + batch.num_rows, dtype=np.uint32)
                halves = digest_texts(batch.column(TEXT))
                found = make_records(DIGEST, high=halves[:, 0], low=halves[:, 1], row=numbers)
                digest_file.scatter(found, find_partitions(halves[:, 0], sign.num_digest_partitions))
                if stage.step.kind == "near":
                    signed = stage.step.minhash.sign(batch.column(TEXT))
                    described["num_shingles"] = np.minimum(signed.counts, 2**32 - 1)
                    described["sketch"][signed.rows] = num_sketches + np.arange(len(signed.rows))
                    num_sketches += len(signed.rows)
                    sketches.add(signed.sketches)
                    keys = signed.keys.reshape(-1)
                    dealt = make_records(KEY, key=keys, row=np.repeat(numbers[signed.rows], stage.step.bands))
                    key_file.scatter(dealt, find_partitions(keys, sign.num_key_partitions))
                documents.add(described)
                row += batch.num_rows
        return SignedUnit(
            documents=documents.commit(), sketches=sketches.commit(), digests=digest_file.close(), keys=key_file.close()
        )


def _describe_documents(batch: pa.RecordBatch) -> NDArray[Any]:
    origin = batch.column(ORIGIN)
    _, offsets = text_buffers(batch.column(TEXT))
    found = np.zeros(batch.num_rows, dtype=DOCUMENT)
    for name in ("file", "position", "part"):
        found[name] = origin.field(name).to_numpy(zero_copy_only=False)
    found["num_bytes"] = np.minimum(np.diff(offsets), 2**32 - 1)
    found["sketch"] = -1
    return found
