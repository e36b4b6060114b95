"""The list of shards of a very large dataset: an Arrow stream beside the manifest, which seals it.

A hundred thousand shards are 30 MB of JSON, which every reader would parse; as Arrow they are 8 MB. The checksum of the
manifest covers the shards wherever they are listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from gristmill.shards.arrow_stream import STREAM_END, read_mapped_batches, stream_block, stream_header
from gristmill.shards.damage import make_damage_error
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.manifest import Shard, StoredFile
from gristmill.storage.checksums import compute_file_checksum
from gristmill.storage.stored_paths import StoredName  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gristmill.storage.locations import Location

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


class _ListedShard(Shard, frozen=True, kw_only=True):
    """A shard with the split and source that it belongs to."""

    split: StoredName
    source: StoredName


def encode_shard_list(splits: Mapping[str, Mapping[str, Sequence[Shard]]]) -> Iterator[bytes | pa.Buffer]:
    """Encode the list in pieces."""
    yield stream_header(_SCHEMA)
    lines = [
        {"split": split, "source": source, **msgspec.to_builtins(shard)}
        for split, sources in splits.items()
        for source, shards in sources.items()
        for shard in shards
    ]
    for first in range(0, len(lines), _BATCH_SHARDS):
        yield stream_block(pa.RecordBatch.from_pylist(lines[first : first + _BATCH_SHARDS], schema=_SCHEMA), _SCHEMA)
    yield STREAM_END


def read_shard_list(file: StoredFile, folder: Location) -> dict[str, dict[str, list[Shard]]]:
    """Read the list: split -> source -> shards.

    Raises:
        DamagedDatasetError: It is not what was written, or names a path outside of its folder.
    """
    splits: dict[str, dict[str, list[Shard]]] = {}
    try:
        path = file.copy_below(folder)
        if compute_file_checksum(path) != file.xxh3:
            raise ValueError("its content has changed")
        for batch in read_mapped_batches(path, _SCHEMA):
            for line in batch.to_pylist():
                present = {name: value for name, value in line.items() if value is not None}
                listed = msgspec.convert(present, _ListedShard)
                shard = Shard(**{name: getattr(listed, name) for name in Shard.__struct_fields__})
                splits.setdefault(listed.split, {}).setdefault(listed.source, []).append(shard)
    except (*READ_ERRORS, msgspec.ValidationError) as error:
        raise make_damage_error(file.path, f"cannot be read: {error}", folder) from error
    return splits
