"""What `deduplicate` has removed, one by one: the document, the one that stays for it, and both texts side by side.

Cost: the table of removed documents is read once (a few bytes a document), then one cell of each of two input files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.pipeline.barriers.deduplicate.decision import TABLE_SCHEMA
from gristmill.pipeline.inspecting.trace import read_original_text
from gristmill.shards.dataset import Origin
from gristmill.shards.manifest import file_key
from gristmill.steps.read import Read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifest import Deduplicated


@dataclass(frozen=True, slots=True)
class RemovedDocument:
    """A document that went, and why. Texts are those of the input files, before all steps; None: the file changed."""

    origin: Origin
    reason: str
    """`duplicate` or `near_duplicate`."""
    similarity: float
    """Of the two sets of word n-grams, as the step compared them."""
    is_estimate: bool
    """The similarity was estimated from signatures (`verify: signature`)."""
    text: str | None
    survivor: Origin
    survivor_text: str | None


def read_removed_document(dataset: Dataset, number: int) -> RemovedDocument:
    """The one in this row of the tables of removed documents, which follow one another."""
    first = 0
    for step in dataset.manifest.deduplicated:
        if 0 <= number - first < step.rows:
            row = _read_table(dataset, step).slice(number - first, 1).to_pylist()[0]
            return _make_document(dataset, step, row)
        first += step.rows
    raise UsageError(
        f"there is no removed document {number}: {dataset.folder} has {first:,}",
        help=f"numbers go from 0 to {first - 1}" if first else "no deduplicate step has removed any",
    )


def find_removed(dataset: Dataset, origin: Origin) -> RemovedDocument | None:
    """The document with this origin, if a `deduplicate` step has removed it; the path may be relative to the source."""
    for removed in find_removed_parts(dataset, origin):
        if origin.part in removed:
            return removed[origin.part]
    return None


def find_removed_parts(dataset: Dataset, origin: Origin) -> list[dict[int, RemovedDocument]]:
    """For each `deduplicate` step what it has removed of the record at this place, by part."""
    files = [
        int(key, 16)
        for key, file in dataset.manifest.files.items()
        if file.source == origin.source and origin.path in (file.path, file.relative)
    ]
    return [_read_removed_parts(dataset, step, files, origin.position) for step in dataset.manifest.deduplicated]


def _read_removed_parts(
    dataset: Dataset, step: Deduplicated, files: list[int], position: int
) -> dict[int, RemovedDocument]:
    table = _read_table(dataset, step)
    removed = table["removed"]
    # As scalars with their types: half of all file ids are above what Arrow takes a Python number for.
    is_here = pc.and_(
        pc.is_in(pc.struct_field(removed, "file"), pa.array(files, pa.uint64())),
        pc.equal(pc.struct_field(removed, "position"), pa.scalar(position, pa.uint64())),
    )
    rows = table.filter(is_here).to_pylist()
    return {row["removed"]["part"]: _make_document(dataset, step, row) for row in rows}


def _read_table(dataset: Dataset, step: Deduplicated) -> Any:
    try:
        table = pq.read_table(step.file.below(dataset.folder))
    except (OSError, ValueError) as error:
        raise DamagedDatasetError(f"{step.file.path} cannot be read: {error}", help="run gristmill verify") from error
    if not table.schema.equals(TABLE_SCHEMA):
        raise DamagedDatasetError(
            f"{step.file.path} has other columns than a table of removed documents", help="make the dataset again"
        )
    return table


def _make_document(dataset: Dataset, step: Deduplicated, row: Mapping[str, Any]) -> RemovedDocument:
    origin, text = _read_document(dataset, step, row["removed"], row["source"])
    survivor, survivor_text = _read_document(dataset, step, row["survivor"], row["survivor_source"])
    return RemovedDocument(origin, row["reason"], row["similarity"], row["is_estimate"], text, survivor, survivor_text)


def _read_document(
    dataset: Dataset, step: Deduplicated, found: Mapping[str, int], source: str
) -> tuple[Origin, str | None]:
    key = file_key(found["file"])
    file = step.against.get(key) or dataset.manifest.files.get(key)
    if file is None:
        raise DamagedDatasetError(f"the manifest names no input file {key}", help="make the dataset again")
    origin = Origin(source, file.path, found["position"], found["part"])
    read = msgspec.convert({**step.against_read, "read": file.path}, Read) if key in step.against else None
    return origin, read_original_text(dataset.manifest, file, origin.position, read)
