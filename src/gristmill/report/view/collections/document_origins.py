"""Where the documents of a dataset came from: a key for each document, and the row of a document by its origin."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gristmill.shards.arrow_stream import read_mapped_batches
from gristmill.shards.dataset import open_file
from gristmill.shards.formats.shard_format import open_origins
from gristmill.shards.token_rows import ORIGINS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.shards.dataset import Dataset, Origin
    from gristmill.shards.manifests.stored_files import Shard

_STRIDES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


def name_origin(names: Mapping[str, str], origin: Origin) -> str:
    """Name an origin as people see it: the file by its path below the root of its source."""
    part = f"/{origin.part}" if origin.part else ""
    return f"{origin.source}:{names.get(origin.path, origin.path)}@{origin.position}{part}"


def make_keys(
    files: NDArray[np.uint64], positions: NDArray[np.uint64], parts: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Make a key of each origin. Files are hashes already, so sums with multiples of odd numbers rarely meet."""
    keys: NDArray[np.uint64] = files + positions * _STRIDES[0] + parts * _STRIDES[1]
    return keys


def make_origin_keys(origins: pa.StructArray) -> NDArray[np.uint64]:
    """Make a key of each origin in a column."""
    columns = [origins.field(name).to_numpy(zero_copy_only=False) for name in ("file", "position", "part")]
    files, positions, parts = (column.astype(np.uint64) for column in columns)
    return make_keys(files, positions, parts)


class DocumentOrigins:
    """The origins of all documents of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    @cached_property
    def names(self) -> dict[str, str]:
        """The path of each input file below the root of its source."""
        return {file.path: file.relative for file in self._dataset.manifest.files.values()}

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], int]:
        files = self._dataset.manifest.files
        return {(file.source, path): int(key, 16) for key, file in files.items() for path in (file.path, file.relative)}

    def key_of(self, origin: Origin) -> int:
        """Return the key of one origin."""
        number = self._numbers.get((origin.source, origin.path), 0)
        values = [np.array([value], np.uint64) for value in (number, origin.position, origin.part)]
        return int(make_keys(*values)[0])

    @cached_property
    def documents(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """The row and the key of every document: 16 bytes each."""
        pairs = list(self._read())
        rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in pairs)])
        return rows, np.concatenate([np.empty(0, np.uint64), *(make_origin_keys(origins) for _, origins in pairs)])

    def find(self, source: str, file: str, position: str, part: str | None) -> int | None:
        """Find the row of a document; None if there is none. Reads the origins of the dataset, up to the document."""
        number = self._numbers.get((source, file))
        if number is None or int(position) >= 1 << 64 or int(part or 0) >= 1 << 32:
            return None
        for rows, origins in self._read():
            matching = (origins.field("file").to_numpy(zero_copy_only=False) == np.uint64(number)) & (
                origins.field("position").to_numpy(zero_copy_only=False) == np.uint64(position)
            )
            if part is not None:
                matching &= origins.field("part").to_numpy(zero_copy_only=False) == np.uint32(part)
            if matching.any():
                return int(rows[np.argmax(matching)])
        return None

    def _read(self) -> Iterator[tuple[NDArray[np.int64], pa.StructArray]]:
        """Yield origins with the row of each, block by block."""
        first = 0
        for _, _, shard in self._dataset.manifest.shards():
            for rows, origins in self._read_shard(shard):
                yield rows + first, origins
            first += shard.rows

    def _read_shard(self, shard: Shard) -> Iterator[tuple[NDArray[np.int64], pa.StructArray]]:
        manifest, side = self._dataset.manifest, shard.origins
        first = 0
        with open_file(self._dataset, side or shard) as path:
            if manifest.holds_rows:
                for batch in read_mapped_batches(path, manifest.shard_schema()):
                    column = batch.column(ORIGINS)
                    counts = column.value_lengths().to_numpy(zero_copy_only=False)
                    yield np.repeat(np.arange(first, first + len(counts)), counts), column.flatten()
                    first += len(counts)
                return
            for origins in open_origins(path, manifest.format if side is None else "arrow"):
                yield np.arange(first, first + len(origins)), origins
                first += len(origins)
