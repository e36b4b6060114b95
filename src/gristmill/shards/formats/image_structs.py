"""Images in Parquet: the struct of `bytes` and `path` that Hugging Face's `datasets` shows as pictures.

In memory a column of images is plain bytes. In a Parquet file it is the struct, and the file's metadata names the
feature, so that `datasets` and the viewer of the Hub decode it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.media import find_image_extension, list_image_columns
from gristmill.core.records import KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.shards.formats.base import ShardRecord

_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def to_parquet_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a Parquet file of records with these columns."""
    images = list_image_columns(schema)
    if not images:
        return schema
    for name in images:
        schema = schema.set(schema.get_field_index(name), schema.field(name).with_type(_STRUCT))
    features = {name: {"_type": "Image"} for name in images}
    noted = msgspec.json.encode({"info": {"features": features}})
    return schema.with_metadata({**(schema.metadata or {}), b"huggingface": noted})


def wrap_images(table: pa.Table, images: Sequence[str]) -> pa.Table:
    """Make structs of the columns of images; a path is the key of the sample with the extension of its format."""
    keys = table.column(KEY).to_pylist() if KEY in table.schema.names else [None] * table.num_rows
    for name in images:
        contents = table.column(name).combine_chunks()
        paths = [
            None if key is None or not content.is_valid else f"{key}.{find_image_extension(_read_head(content))}"
            for key, content in zip(keys, contents, strict=True)
        ]
        structs = pa.StructArray.from_arrays(
            [contents.cast(pa.binary()), pa.array(paths, pa.string())], fields=list(_STRUCT), mask=contents.is_null()
        )
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index).with_type(_STRUCT), structs)
    return table


def unwrap_images(record: ShardRecord, images: Sequence[str]) -> ShardRecord:
    """Replace the structs of a record by the bytes in them, in place."""
    for name in images:
        record[name] = None if record[name] is None else record[name]["bytes"]
    return record


def unwrap_image_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Replace the structs of a batch by the bytes in them: its columns are then those of `schema`."""
    arrays = batch.columns
    for name in list_image_columns(schema):
        index = schema.get_field_index(name)
        arrays[index] = pc.struct_field(arrays[index], "bytes").cast(schema.field(index).type)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _read_head(content: pa.LargeBinaryScalar) -> bytes:
    return bytes(memoryview(content.as_buffer())[:16])
