"""Joining: the blocks of a unit's slices, one after another, cut into shards where one is full.

The same blocks in the same order give the same shards, however many slices they come from. Blocks are copied, not
decoded; only formats that cannot be joined decode them again (`decode_blocks`). Memory: one block at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from gristmill.pipeline.stages.outputs.split_files import ORIGINS_SUFFIX, SplitFile
from gristmill.shards.arrow_stream import origins_footer, origins_header
from gristmill.shards.block_index import decode_costs, encode_costs
from gristmill.shards.manifests.stored_files import StoredFile
from gristmill.storage.commit import PendingFile
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.shards.formats.base import Encoder
    from gristmill.storage.locations import Location


@dataclass(frozen=True, slots=True)
class _Location:
    """The file and the range in which the bytes of a block are."""

    path: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class _Block:
    """The records of one cell in a file of blocks."""

    rows: int
    tokens: int
    trained_tokens: int
    data: _Location
    checksum: int
    costs: NDArray[np.uint64]
    """The attention cost of each row of tokens."""
    origins: _Location | None


def join_blocks(
    files: Sequence[SplitFile],
    stem: OutputStem,
    suffix: str,
    max_bytes: int,
    write_data: Callable[[Iterator[bytes], PendingFile], None],
    *,
    header_bytes: int | None,
    has_sizes: bool = False,
) -> list[SplitFile]:
    """Join the files of all slices of a unit into shards; `has_sizes`: their side files are indexes of samples.

    Blocks are copied behind a header of `header_bytes`; None: they are encoded again, so that the whole is one block.
    `write_data` writes the blocks of one shard to its file. A shard ends with the block that brings it to `max_bytes`,
    as it does where a single slice writes it (`SplitFileWriter`): otherwise the bytes would depend on the slices.
    """
    shards = []
    write_origins = partial(_write_origins, has_sizes=has_sizes)
    for split in sorted({file.split for file in files}):
        blocks = [block for file in files if file.split == split for block in _locate_blocks(file)]
        for number, shard_blocks in enumerate(_cut_into_shards(blocks, max_bytes)):
            name_file = partial(stem.name_file, split, number, is_shard=True)
            data = _write_file(stem, name_file(suffix), [block.data for block in shard_blocks], write_data)
            origins = [block.origins for block in shard_blocks if block.origins is not None]
            shards.append(
                SplitFile(
                    split=split,
                    rows=sum(block.rows for block in shard_blocks),
                    tokens=sum(block.tokens for block in shard_blocks),
                    trained_tokens=sum(block.trained_tokens for block in shard_blocks),
                    data=data,
                    **_describe_blocks(shard_blocks, data, header_bytes),
                    origins=_write_file(stem, name_file(ORIGINS_SUFFIX), origins, write_origins) if origins else None,
                )
            )
    return shards


def write_framed(encoder: Encoder, blocks: Iterable[bytes], file: PendingFile) -> None:
    """Write blocks between the header and the footer of their format."""
    file.write(encoder.header())
    for block in blocks:
        file.write(block)
    file.write(encoder.footer())


def decode_blocks(encoder: Encoder, blocks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Decode blocks of an encoder whose blocks are Arrow."""
    for block in blocks:
        yield from pa.ipc.open_stream(pa.py_buffer(encoder.header() + block + encoder.footer()))


def _describe_blocks(blocks: Sequence[_Block], data: StoredFile, header_bytes: int | None) -> dict[str, Any]:
    """Describe the blocks of a shard, as fields of its `SplitFile`."""
    rows = [block.rows for block in blocks]
    if header_bytes is None:
        return {"data_blocks": [data.bytes], "row_blocks": [sum(rows)], "block_checksums": [int(data.xxh3, 16)]}
    return {
        "first_block": header_bytes,
        "data_blocks": [block.data.size for block in blocks],
        "row_blocks": rows,
        "block_checksums": [block.checksum for block in blocks],
        "row_costs": encode_costs([block.costs for block in blocks]),
    }


def _write_origins(blocks: Iterator[bytes], file: PendingFile, *, has_sizes: bool) -> None:
    file.write(origins_header(has_sizes=has_sizes))
    for block in blocks:
        file.write(block)
    file.write(origins_footer())


def _locate_blocks(file: SplitFile) -> Iterator[_Block]:
    start = origins_start = row = 0
    costs = decode_costs(file.row_costs, file.rows)
    for number, (rows, size) in enumerate(zip(file.row_blocks, file.data_blocks, strict=True)):
        origins = None
        if file.origins is not None:
            origins = _Location(file.origins.path, origins_start, file.origins_blocks[number])
            origins_start += origins.size
        tokens, trained = (counts[number] if counts else 0 for counts in (file.token_blocks, file.trained_blocks))
        yield _Block(
            rows=rows,
            tokens=tokens,
            trained_tokens=trained,
            data=_Location(file.data.path, start, size),
            checksum=file.block_checksums[number],
            costs=costs[row : row + rows],
            origins=origins,
        )
        start += size
        row += rows


def _cut_into_shards(blocks: Sequence[_Block], max_bytes: int) -> Iterator[list[_Block]]:
    shard: list[_Block] = []
    size = 0
    for block in blocks:
        shard.append(block)
        # Data only: a header or an origin in the sum would move the borders between shards, and so change bytes.
        size += block.data.size
        if size >= max_bytes:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _write_file(
    stem: OutputStem,
    path: str,
    locations: Sequence[_Location],
    write_data: Callable[[Iterator[bytes], PendingFile], None],
) -> StoredFile:
    with PendingFile(stem.root / path, stem.run_id) as file:
        write_data(_read_blocks(stem.root, locations), file)
        file.commit(sync=stem.syncs)
    return StoredFile(path=path, bytes=file.num_bytes, xxh3=file.checksum)


def _read_blocks(root: Location, locations: Sequence[_Location]) -> Iterator[bytes]:
    with ExitStack() as stack:
        # The blocks of a file follow one another, but a shard may begin in the middle of one: keep each file open.
        files: dict[str, BinaryIO] = {}
        for location in locations:
            file = files.get(location.path)
            if file is None:
                file = files[location.path] = stack.enter_context(path_below(root, location.path).open("rb"))
            file.seek(location.start)
            yield file.read(location.size)
