"""Lookup of documents that `deduplicate` has removed: each with the one kept in its place, and both texts.

Cost: the table of removed documents is read once (a few bytes per document), then one cell of each of two input files.
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
from gristmill.shards.damage import make_damage_error
from gristmill.shards.dataset import Origin
from gristmill.shards.manifests.stored_files import file_key
from gristmill.steps.read import Read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifests.step_outcomes import Deduplicated


@dataclass(frozen=True, slots=True)
class RemovedDocument:
    """A document that was removed, and why. Texts come from the input files, before all steps; None: a changed file."""

    origin: Origin
    reason: str
    """`duplicate` or `near_duplicate`."""
    similarity: float
    """The similarity of the two sets of word n-grams."""
    is_estimate: bool
    """Whether the similarity was estimated from signatures (`verify: signature`)."""
    text: str | None
    survivor: Origin
    survivor_text: str | None


def read_removed_document(dataset: Dataset, number: int) -> RemovedDocument:
    """Read a removed document by its number over the tables of all `deduplicate` steps, one after the other."""
    first = 0
    for step in dataset.manifest.deduplicated:
        if 0 <= number - first < step.rows:
            row = _read_table(dataset, step).slice(number - first, 1).to_pylist()[0]
            return _make_document(dataset, step, row)
        first += step.rows
    raise UsageError(
        f"there is no removed document {number}: {dataset.folder} has {first:,}",
        help=f"numbers run from 0 to {first - 1}" if first else "no deduplicate step has removed any",
    )


def find_removed_parts(dataset: Dataset, origin: Origin) -> list[dict[int, RemovedDocument]]:
    """Find for each `deduplicate` step what it has removed of the record with this origin, by part.

    The path of the origin may be relative to the source.
    """
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
    # Typed scalars: Arrow reads a plain Python number as int64, and half of all file ids are larger.
    is_here = pc.and_(
        pc.is_in(pc.struct_field(removed, "file"), pa.array(files, pa.uint64())),
        pc.equal(pc.struct_field(removed, "position"), pa.scalar(position, pa.uint64())),
    )
    rows = table.filter(is_here).to_pylist()
    return {row["removed"]["part"]: _make_document(dataset, step, row) for row in rows}


def _read_table(dataset: Dataset, step: Deduplicated) -> Any:
    try:
        table = pq.read_table(step.file.copy_below(dataset.folder))
    except (OSError, ValueError) as error:
        raise make_damage_error(step.file.path, f"cannot be read: {error}", dataset.folder) from error
    if not table.schema.equals(TABLE_SCHEMA):
        raise make_damage_error(step.file.path, "has other columns than a table of removed documents", dataset.folder)
    return table


def _make_document(dataset: Dataset, step: Deduplicated, row: Mapping[str, Any]) -> RemovedDocument:
    origin, text = _read_document(dataset, step, row["removed"], row["source"])
    survivor, survivor_text = _read_document(dataset, step, row["survivor"], row["survivor_source"])
    return RemovedDocument(origin, row["reason"], row["similarity"], row["is_estimate"], text, survivor, survivor_text)


def _read_document(
    dataset: Dataset, step: Deduplicated, fields: Mapping[str, int], source: str
) -> tuple[Origin, str | None]:
    """Read a document from the fields of its origin in the table; returns the origin, and the text."""
    key = file_key(fields["file"])
    file = step.against.get(key) or dataset.manifest.files.get(key)
    if file is None:
        raise DamagedDatasetError(f"the manifest names no input file {key}", help="rebuild the dataset")
    origin = Origin(source, file.path, fields["position"], fields["part"])
    read = msgspec.convert({**step.against_read, "read": file.path}, Read) if key in step.against else None
    return origin, read_original_text(dataset.manifest, file, origin.position, read)
