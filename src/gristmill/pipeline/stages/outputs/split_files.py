"""Files of blocks: for each split a file, each block in it encoded on its own.

A block holds what came of one input cell. It depends on nothing before or after it, so files may be cut or joined
between blocks without changing a byte inside them. That is why the size of tasks never shows in the output.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

import msgspec
import pyarrow.compute as pc
import xxhash

from gristmill.core.records import INPUT_IDS, SPLIT
from gristmill.core.splits import TRAIN
from gristmill.shards.block_index import ShardBlocks, decode_costs, encode_costs
from gristmill.shards.canonical import origins_block, origins_footer, origins_header
from gristmill.shards.formats.arrow import ArrowEncoder
from gristmill.shards.formats.base import KeyedEncoder, SampleEncoder, has_sample_sizes
from gristmill.shards.stored_files import StoredFile, StoredRange
from gristmill.shards.token_rows import LENGTHS, is_masked, num_tokens, num_trained_tokens
from gristmill.storage.commit import PendingFile, is_lease_epoch
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import Count, StoredName  # noqa: TC001  (msgspec looks at the types of fields)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from gristmill.shards.formats.base import Encoder
    from gristmill.storage.locations import Location

ORIGINS_SUFFIX = ".origins.arrow"


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """Notes on the records of a file for the barrier after the stage, taken while they were written."""

    made_by: str
    """A name of everything that decides what the files hold, besides the records."""
    files: list[StoredFile]
    counts: list[Count] = []
    """The numbers of records in the files, where the barrier needs them."""
    checksums: list[bytes]
    """The checksums of the chunks of these files."""


class AnnotationWriter(Protocol):
    """Notes what a barrier has to know of the records of one file. Leaving it without `commit` leaves no file."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def add(self, records: pa.RecordBatch) -> None:
        """Take the records of one block."""

    def commit(self) -> Annotation:
        """Give all files their names."""


class Annotator(Protocol):
    """Opens the writers of annotations, in workers: sent to them with the stage."""

    def open(self, stem: OutputStem) -> AnnotationWriter:
        """Open the writer for one file; its own files begin with `stem`."""


class ScoreBlocks(StoredRange, frozen=True, kw_only=True):
    """Blocks of one unit or slice: a separate file, or a range of the dataset's score file."""

    rows: Count


class SplitFile(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one split on disk: a whole shard or stream, or bare blocks that wait to be joined into one."""

    split: StoredName
    rows: Count
    tokens: Count = 0
    """Tokens in rows of tokens, without padding."""
    trained_tokens: Count = 0
    data: StoredFile
    data_blocks: list[Count]
    """The bytes of each block, without header and footer."""
    row_blocks: list[Count]
    """The rows of each block."""
    token_blocks: list[Count] = []
    """The tokens of each block; empty where there are no tokens."""
    trained_blocks: list[Count] = []
    """The trained tokens of each block; empty where there are no chats."""
    first_block: Count = 0
    """Where the first block begins."""
    block_checksums: list[int] = []
    """The xxh3 of each block; empty in streams for a later stage, which need none."""
    row_costs: bytes = b""
    """The attention cost of each row of tokens (`encode_costs`)."""
    origins: StoredFile | None = None
    origins_blocks: list[Count] = []
    """The bytes of each block of origins."""
    origins_checksums: list[int] = []
    """The xxh3 of each block of origins."""
    versions: list[str] = []
    """The versions of the file and of that with its origins when the receipt was written; empty for a later stage."""
    annotation: Annotation | None = None

    def blocks(self) -> ShardBlocks:
        """Describe its blocks for the index of the dataset."""
        costs = decode_costs(self.row_costs, self.rows)
        return ShardBlocks(
            self.first_block, self.data_blocks, self.row_blocks, self.block_checksums, [costs] if len(costs) else []
        )

    def shard_files(self) -> list[StoredFile]:
        """List the file, and that with its origins."""
        return [self.data, *([self.origins] if self.origins is not None else [])]

    def files(self) -> list[StoredFile]:
        """List the file and its side files."""
        annotated = self.annotation.files if self.annotation is not None else []
        return [*self.shard_files(), *annotated]


@dataclass(frozen=True, slots=True)
class OutputStem:
    """The beginning of the paths of a task's files, and the run that writes them."""

    root: Location
    """The output folder, or that of intermediate data."""
    stem: str
    """The start of the files' paths below it."""
    run_id: str
    syncs: bool = True
    """Whether files are synced when they get their names; if not, the parent syncs them before it notes the task."""
    source: str | None = None
    """The source whose shards are written where they stay, because the store cannot rename. None: they are moved."""

    @property
    def name(self) -> str:
        """The last component of the stem."""
        return self.stem.rpartition("/")[2]

    def name_file(self, split: str, number: int, suffix: str, *, is_shard: bool = False) -> str:
        """Name a file of a split; a shard may stay where it is written."""
        if self.source is None or not is_shard:
            return f"{self.stem}-{split}-{number}{suffix}"
        path = f"{split}/{self.source}/shard-{self.name}-{number}{suffix}"
        return f"origins/{path.removesuffix(ORIGINS_SUFFIX)}.arrow" if suffix == ORIGINS_SUFFIX else path


def open_stem(root: Location, stem: str, run_id: str, *, syncs: bool = True, source: str | None = None) -> OutputStem:
    """Name the files of one attempt at a task.

    Where several machines can reach the folder, every attempt has separate names: a worker that is believed dead may
    still write, but never to a file that a receipt names.
    """
    folder = open_folder(root)
    if is_lease_epoch(run_id) or folder.is_remote:
        stem = f"{stem}-{run_id}-{secrets.token_hex(4)}"
    return OutputStem(root, stem, run_id, syncs, None if folder.can_rename else source)


class SplitFileWriter:
    """Writes blocks of several splits, each to its own files.

    A file that is `framed` has the format's header and footer, so it can be read as it is. Bare blocks cannot; they are
    what joining puts between one header and one footer.
    """

    def __init__(
        self,
        encoder: Encoder,
        stem: OutputStem,
        *,
        framed: bool = True,
        max_bytes: float = float("inf"),
        max_rows: int | None = None,
        is_final: bool = False,
        annotator: Annotator | None = None,
    ) -> None:
        """Open the files of a task; those that are `is_final` are shards of the dataset."""
        self.is_final = is_final
        self.encoder = encoder
        self.stem = stem
        self.framed = framed
        self.annotator = annotator
        self.open_files = ExitStack()
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._current: dict[str, _OpenSplitFile] = {}
        """The file of each split that is not full yet."""
        self._finished: list[SplitFile] = []

    def __enter__(self) -> SplitFileWriter:
        self.open_files.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.open_files.__exit__(None, None, None)

    def add(self, split: str, records: pa.RecordBatch) -> None:
        """Write one block, or several where a file is full in the middle of the records."""
        start = 0
        while start < records.num_rows:
            file = self._current.get(split)
            if file is None:
                file = self._current[split] = _OpenSplitFile(self, split, len(self._finished))
            count = records.num_rows - start
            if self._max_rows is not None:
                count = min(count, self._max_rows - file.num_rows)
            file.add(records.slice(start, count))
            start += count
            if file.num_bytes >= self._max_bytes or file.num_rows == self._max_rows:
                self._finished.append(self._current.pop(split).commit())

    def commit(self) -> list[SplitFile]:
        """Give all files their names, and sync them if the stem says so."""
        self._finished += [self._current[split].commit() for split in sorted(self._current)]
        self._current.clear()
        return self._finished


class _OpenSplitFile:
    """A file of blocks that is being written, with a side file for origins where the format cannot hold them."""

    def __init__(self, writer: SplitFileWriter, split: str, number: int) -> None:
        self._split = split
        self._encoder = encoder = writer.encoder
        self._blocks = ShardBlocks(len(encoder.header()) if writer.framed else 0)
        self._is_indexed = writer.is_final or not writer.framed
        self._row_blocks: list[int] = []
        self._token_blocks: list[int] = []
        self._trained_blocks: list[int] = []
        self._last_key: str | None = None
        """The key of the last sample in a tar."""
        name_file = partial(writer.stem.name_file, split, number, is_shard=writer.is_final)
        self._data = _BlockFile(writer, name_file(encoder.suffix), encoder.header(), encoder.footer())
        self._origins: _BlockFile | None = None
        self._origins_checksums: list[int] = []
        if not encoder.holds_origins:
            header = origins_header(has_sizes=has_sample_sizes(encoder))
            self._origins = _BlockFile(writer, name_file(ORIGINS_SUFFIX), header, origins_footer())
        self._annotation: AnnotationWriter | None = None
        if writer.annotator is not None:
            annotation = writer.annotator.open(replace(writer.stem, stem=name_file("")))
            self._annotation = writer.open_files.enter_context(annotation)

    @property
    def num_rows(self) -> int:
        return sum(self._row_blocks)

    @property
    def num_bytes(self) -> int:
        """The bytes of the blocks alone: joining cuts shards by the same number."""
        return sum(self._data.blocks)

    def add(self, records: pa.RecordBatch) -> None:
        self._row_blocks.append(records.num_rows)
        if LENGTHS in records.schema.names and INPUT_IDS in records.schema.names:
            self._token_blocks.append(num_tokens(records))
            if is_masked(records.schema):
                self._trained_blocks.append(num_trained_tokens(records))
        sizes = None
        if isinstance(self._encoder, SampleEncoder) and self._encoder.layout is not None:
            pieces, self._last_key, sizes = self._encoder.sized_block_after(records, self._last_key)
        elif isinstance(self._encoder, KeyedEncoder):
            keyed_block, self._last_key = self._encoder.block_after(records, self._last_key)
            pieces = [keyed_block]
        elif isinstance(self._encoder, ArrowEncoder) and not self._is_indexed:
            pieces = self._encoder.pieces(records)
        else:
            pieces = [self._encoder.block(records)]
        if self._is_indexed:
            block = b"".join(pieces) if len(pieces) > 1 else pieces[0] if pieces else b""
            self._blocks.add(block, records)
            pieces = [block]
        self._data.add(*pieces)
        if self._origins is not None:
            block = origins_block(records, sizes)
            self._origins_checksums.append(xxhash.xxh3_64_intdigest(block))
            self._origins.add(block)
        if self._annotation is not None:
            self._annotation.add(records)

    def commit(self) -> SplitFile:
        origins = self._origins
        return SplitFile(
            split=self._split,
            rows=sum(self._row_blocks),
            tokens=sum(self._token_blocks),
            trained_tokens=sum(self._trained_blocks),
            data=self._data.commit(),
            data_blocks=self._data.blocks,
            row_blocks=self._row_blocks,
            token_blocks=self._token_blocks,
            trained_blocks=self._trained_blocks,
            first_block=self._blocks.offset,
            block_checksums=self._blocks.checksums,
            row_costs=encode_costs(self._blocks.costs),
            origins=origins.commit() if origins is not None else None,
            origins_blocks=origins.blocks if origins is not None else [],
            origins_checksums=self._origins_checksums,
            annotation=self._annotation.commit() if self._annotation is not None else None,
        )


class _BlockFile:
    """One file of blocks, under a temporary name until it is committed."""

    def __init__(self, writer: SplitFileWriter, path: str, header: bytes, footer: bytes) -> None:
        self._path = path
        self._file = writer.open_files.enter_context(PendingFile(writer.stem.root / path, writer.stem.run_id))
        self._syncs = writer.stem.syncs
        self._footer = footer if writer.framed else b""
        self.blocks: list[int] = []
        self._file.write(header if writer.framed else b"")

    def add(self, *pieces: bytes | pa.Buffer) -> None:
        """Write a block, which may be in pieces."""
        self.blocks.append(sum(map(len, pieces)))
        for piece in pieces:
            self._file.write(piece)

    def commit(self) -> StoredFile:
        self._file.write(self._footer)
        self._file.commit(sync=self._syncs)
        return StoredFile(path=self._path, bytes=self._file.num_bytes, xxh3=self._file.checksum)


def group_by_split(
    batch: pa.RecordBatch, default: str = TRAIN, *, keep_column: bool = False
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Group the records of a batch by their split, in their order; `default` is for records that name none."""
    if not batch.num_rows:
        return
    if SPLIT not in batch.schema.names:
        yield default, batch
        return
    splits = batch.column(SPLIT)
    rest = batch if keep_column else batch.drop_columns([SPLIT])
    for split in sorted(pc.unique(splits).to_pylist()):
        yield split, rest.filter(pc.equal(splits, split))
