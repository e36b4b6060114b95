"""The columns of datasets that are stored as JSON records, for export formats whose columns have types."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.json_text import JSON_TYPE, make_field
from gristmill.core.records import ORIGIN, ORIGIN_TYPE, OTHER_FIELDS, TEXT, TEXT_TYPE, SourceFile
from gristmill.steps.read import Read, sample_record_types
from gristmill.steps.unite.field_types import without_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.exports.layout import ShardSlot

JSON_SHARD_FORMATS = ("jsonl", "webdataset")
"""The formats of shards that hold records as JSON, without types."""


def sample_schema(slots: Sequence[ShardSlot], stored_format: str) -> pa.Schema:
    """Infer the columns of a split: one for each key in a sample, and `other_fields` if there may be more keys."""
    shards = [SourceFile(slot.path, slot.path, Path(slot.path).stat().st_size, "", 0) for slot in slots]
    read = Read(read=[slot.path for slot in slots], format="gristmill")
    types, sees_all = sample_record_types(read, shards)
    columns = [pa.field(ORIGIN, ORIGIN_TYPE), pa.field(TEXT, TEXT_TYPE)]
    columns += [make_field(name, without_nulls(kind), why) for name, (kind, why) in types.items()]
    if not sees_all or stored_format != "jsonl":
        columns.append(make_field(OTHER_FIELDS, JSON_TYPE))
    return pa.schema(columns)
