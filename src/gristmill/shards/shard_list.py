"""The list of shards of a very large dataset: an Arrow stream beside the manifest, which seals it.

A hundred thousand shards are 30 MB of JSON, which every reader would parse; as Arrow they are 8 MB. The checksum of the
manifest covers the shards wherever they are listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gristmill.shards.arrow_stream import STREAM_END, read_mapped_batches, stream_block, stream_header
from gristmill.storage.checksums import compute_file_checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_BATCH_SHARDS = 1 << 14
_FILE = [("path", pa.string()), ("bytes", pa.uint64()), ("xxh3", pa.string())]
_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("source", pa.string()),
        *_FILE,
        ("rows", pa.uint64()),
        ("tokens", pa.uint64()),
        ("trained_tokens", pa.uint64()),
        ("tasks", pa.list_(pa.string())),
        ("origins", pa.struct(_FILE)),
    ]
)


def encode_shard_list(lines: Sequence[dict[str, Any]]) -> Iterator[bytes | pa.Buffer]:
    """Encode the list in pieces: a line has the fields of a shard, and its `split` and `source`."""
    yield stream_header(_SCHEMA)
    for first in range(0, len(lines), _BATCH_SHARDS):
        batch = pa.RecordBatch.from_pylist(list(lines[first : first + _BATCH_SHARDS]), schema=_SCHEMA)
        yield stream_block(batch, _SCHEMA)
    yield STREAM_END


def read_shard_list(path: Path, checksum: str) -> Iterator[dict[str, Any]]:
    """Read the lines of the list. Nothing in them is checked: paths may lead anywhere.

    Raises:
        ValueError: It is not what was written.
    """
    if compute_file_checksum(path) != checksum:
        raise ValueError("its content has changed")
    for batch in read_mapped_batches(path, _SCHEMA):
        for line in batch.to_pylist():
            yield {name: value for name, value in line.items() if value is not None}
