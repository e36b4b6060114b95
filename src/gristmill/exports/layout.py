"""The protocol of export formats: which datasets a format takes, which files it writes, and how a shard gets into them.

The exporting process makes a `Layout` for each split once the sizes of all shards are known, and sends it to the
workers. Where a shard is written depends only on the shards before it, so shards are written in any order and at the
same time. Token shards are read batch by batch from the mapped file: memory stays at one batch, for any shard.

Rows come in the order of the manifest. Without packing or `shuffle` that is the order of the documents' origins: the
input files of a source in the order of their paths, and the documents of a file in its order.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.exports.training import STORED
from gristmill.shards.canonical import make_damage_error, read_mapped_batches
from gristmill.shards.formats.base import READ_ERRORS
from gristmill.shards.token_rows import CHATS, PREFERENCES, check_rows
from gristmill.storage.parallel_files import write_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from gristmill.shards.manifest import Manifest
    from gristmill.storage.locations import Location


_MAX_COUNTED_ID = 1 << 24


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that an export will write."""

    name: str
    """The part of its name that follows the prefix: `_train.bin`."""
    num_bytes: int | None = None
    """The size; None: not known before it is written."""
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class ShardSlot:
    """A shard to export, and what precedes it in its split."""

    path: str
    rows: int
    number: int
    first_row: int = 0
    first_token: int = 0
    tokens: int = 0
    schema: pa.Schema | None = None
    """The columns according to the manifest, for Arrow and Parquet shards."""
    origins: str | None = None
    """The side file with the records' origins, if the format cannot hold them."""


@dataclass(frozen=True, slots=True)
class ShardSize:
    """The size of a shard in rows and tokens."""

    rows: int
    tokens: int
    longest: int = 0
    """The number of tokens in the longest row."""
    inner_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The ids that occur before the last token of a row, sorted; empty: not asked for."""
    last_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The last ids of rows, sorted, with -1 for a row without tokens; empty: not asked for."""

    @property
    def max_id(self) -> int:
        """The largest token id; -1: not asked for, or there are no tokens."""
        return int(max(self.inner_ids.max(initial=-1), self.last_ids.max(initial=-1)))


def sum_sizes(sizes: Iterable[ShardSize]) -> ShardSize:
    """Return the size of several shards together."""
    measured = list(sizes)
    return ShardSize(
        sum(size.rows for size in measured),
        sum(size.tokens for size in measured),
        max((size.longest for size in measured), default=0),
        _unite(size.inner_ids for size in measured),
        _unite(size.last_ids for size in measured),
    )


def _unite(ids: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.unique(np.concatenate([np.empty(0, np.int64), *ids]))


@dataclass(frozen=True, slots=True)
class ExportSplit:
    """A split to export: its shards, and the facts about the dataset that shape the files."""

    name: str
    slots: Sequence[ShardSlot]
    manifest: Manifest
    schema: pa.Schema
    """The columns of its rows: those in the manifest, or sampled ones where the format `needs_typed_columns`."""
    vocab_size: int = 0
    """The vocabulary size with added tokens; 0 unless the format `counts_tokens`."""
    dataset_size: ShardSize | None = None
    """The size of all splits together; None unless the format `counts_tokens`."""
    columns: str = STORED
    """The columns of token rows, a choice of `exports.training.COLUMNS`."""
    row_group_rows: int | None = None
    """The rows in a row group, where the format `has_row_groups`; None: the format's default."""

    @property
    def num_rows(self) -> int:
        return sum(slot.rows for slot in self.slots)

    @property
    def num_tokens(self) -> int:
        """The number of tokens; 0 unless the format `counts_tokens`."""
        return sum(slot.tokens for slot in self.slots)


class Layout(Protocol):
    """One split in one export format. It is sent to the workers."""

    @property
    def files(self) -> Sequence[PlannedFile]: ...

    def later_names(self) -> Iterator[str]:
        """Name the files that would follow, where files are numbered: an older, longer export may have left them."""
        return iter(())

    def fill(self, slot: ShardSlot, targets: Targets) -> int | None:
        """Write one shard into the files; return how many numbers JSON could not hold, where that is counted."""

    def usage(self, prefix: str) -> str:
        """Show in one line how to use the files at the prefix, which may be on one of the `readable_stores`."""


class ExportFormat(ABC):
    """A format of `gristmill export`. `exports.formats` is the table of all formats.

    The class attributes tell the exporting process what to prepare. It calls `check_dataset` first, then counts tokens
    or samples columns, then calls `make_layout` once for each split that has rows.
    """

    name: str
    """The value of `--to`."""
    counts_tokens: ClassVar[bool] = False
    """Whether the layout depends on the vocabulary size and on the number of tokens in each shard."""
    depends_on_ids: ClassVar[bool] = False
    """Whether the layout depends on the ids that occur, for a format that `counts_tokens`."""
    needs_typed_columns: ClassVar[bool] = False
    """Whether the layout needs a type for each key of records that are stored as JSON."""
    takes_columns: ClassVar[bool] = False
    """Whether the user may choose the columns of token rows."""
    has_row_groups: ClassVar[bool] = False
    """Whether the user may choose the number of rows in a row group."""
    shuffles_documents: ClassVar[bool] = False
    """Whether readers of the format shuffle documents, so that their order in the files does not matter."""
    pads_documents: ClassVar[bool] = False
    """Whether documents are padded to multiples of the `align` of `pack`."""
    readable_stores: ClassVar[tuple[str, ...]] = ()
    """The protocols of stores whose files the readers of the format open by their URL: `s3`, `gs`, `az`."""
    folder_suffixes: ClassVar[tuple[str, ...]] = ()
    """The suffixes of the files, for a format that is written to a folder. Empty: the path begins the files' names."""

    @abstractmethod
    def check_dataset(self, manifest: Manifest, folder: Location) -> None:
        """Raise `UsageError` if the format cannot hold this dataset, and say what to do instead."""

    @abstractmethod
    def make_layout(self, split: ExportSplit) -> Layout:
        """Plan the files of one split."""

    def make_common_files(self, splits: Sequence[ExportSplit]) -> Sequence[PlannedFile]:  # noqa: ARG002
        """Plan files that belong to no single split, with their whole content as `head`."""
        return ()

    def default_columns(self, manifest: Manifest) -> str:  # noqa: ARG002 (for formats that take columns)
        """Choose the columns of token rows if the user does not."""
        return STORED


class Targets:
    """The files of a layout, open for writing within a `with` block; each is opened when it is first needed."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self._fds: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def write(self, number: int, offset: int, values: NDArray[np.generic]) -> None:
        """Write into a file, by its number in the layout."""
        if number not in self._fds:
            self._fds[number] = os.open(self.paths[number], os.O_WRONLY | os.O_CLOEXEC)
        write_at(self._fds[number], np.ascontiguousarray(values).data, offset)


class IdsDoNotFitError(GristmillError, OverflowError):
    """A token id is too large for the numbers of the format."""


def refuse_untokenized(manifest: Manifest, to: str, folder: Location) -> None:
    """Refuse a dataset of documents or chats that holds no tokens."""
    if not manifest.holds_rows:
        raise UsageError(
            f"{folder} holds {manifest.kind}, and {to} is a format for tokens",
            help="add a `tokenize` step to the recipe, or export to webdataset, parquet or jsonl",
        )
    if manifest.kind == PREFERENCES:
        raise UsageError(
            f"{folder} holds preferences, and {to} has no place for a prompt with several answers",
            help="export to parquet or jsonl, with TRL's columns",
        )


def find_row_length(manifest: Manifest) -> int | None:
    """Find the number of tokens in each packed row; None: rows differ in length."""
    ids = manifest.schema.to_arrow().field(INPUT_IDS).type
    return int(ids.list_size) if pa.types.is_fixed_size_list(ids) else None


def refuse_unpacked(manifest: Manifest, to: str, folder: Location) -> None:
    """Refuse tokens in rows that differ in length."""
    if find_row_length(manifest) is None:
        raise UsageError(
            f"{folder} is not packed: its rows differ in length, and {to} takes packed rows",
            help="add `- pack: {row_length: 2048}` to the recipe",
        )


def refuse_packed(manifest: Manifest, to: str, folder: Location) -> None:
    """Refuse packed rows, where whole documents in order are needed."""
    if row_length := find_row_length(manifest):
        raise UsageError(
            f"{folder} is packed into rows of {row_length} tokens, and {to} takes whole documents in order",
            help="run the recipe without `pack` into another folder and export that, or export to numpy",
        )


def refuse_masked(manifest: Manifest, to: str, folder: Location) -> None:
    """Refuse chats, where only some tokens are trained."""
    if manifest.kind == CHATS:
        raise UsageError(
            f"{folder} says which tokens are trained ({LOSS_MASK}), and {to} cannot store that",
            help="export to parquet or jsonl, or pack it and export to numpy",
        )


def measure_shard(slot: ShardSlot, *, with_ids: bool) -> ShardSize:
    """Measure a shard, padding included. The tokens themselves are read only for the ids that occur."""
    return sum_sizes(_measure_batch(batch, with_ids=with_ids) for batch in read_shard_batches(slot))


def _measure_batch(batch: pa.RecordBatch, *, with_ids: bool) -> ShardSize:
    ids, lengths = token_ids(batch), pc.list_value_length(batch.column(INPUT_IDS)).to_numpy().astype(np.int64)
    size = ShardSize(batch.num_rows, len(ids), int(lengths.max(initial=0)))
    if not with_ids:
        return size
    last_places = np.cumsum(lengths)[lengths > 0] - 1
    inner_ids, empty = np.delete(ids, last_places), [-1] if np.any(lengths == 0) else []
    # Counting is much faster than sorting, but takes 8 bytes for each id up to the largest one.
    is_small = int(inner_ids.max(initial=0)) < _MAX_COUNTED_ID
    unique_ids = np.flatnonzero(np.bincount(inner_ids)) if is_small else np.unique(inner_ids).astype(np.int64)
    return replace(size, inner_ids=unique_ids, last_ids=np.unique([*empty, *np.unique(ids[last_places])]))


def read_shard_batches(slot: ShardSlot) -> Iterator[pa.RecordBatch]:
    """Read the batches of a shard of token rows from the mapped file, each checked."""

    def read_checked_rows() -> Iterator[pa.RecordBatch]:
        for batch in read_mapped_batches(Path(slot.path), slot.schema):
            check_rows(batch)
            yield batch

    return check_shard_batches(read_checked_rows(), slot.path, slot.rows)


def check_shard_batches(batches: Iterator[pa.RecordBatch], path: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Pass on the batches of a shard; raise an error if it cannot be read or does not hold that many rows."""
    num_rows = 0
    while True:
        try:
            batch = next(batches, None)
        except READ_ERRORS as error:
            raise make_damage_error(path, f"cannot be read: {error}") from error
        if batch is None:
            break
        num_rows += batch.num_rows
        yield batch
    if num_rows != rows:
        raise make_damage_error(path, f"holds {num_rows} records, but the manifest says {rows}")


def token_ids(batch: pa.RecordBatch) -> NDArray[np.unsignedinteger]:
    """Return all ids of a batch, row after row; a view where possible."""
    ids: NDArray[np.unsignedinteger] = batch.column(INPUT_IDS).flatten().to_numpy(zero_copy_only=False)
    return ids


def refuse_large_ids(ids: NDArray[np.unsignedinteger], dtype: np.dtype[np.integer], path: str, help: str) -> None:
    """Refuse ids that `dtype` cannot hold."""
    limit = int(np.iinfo(dtype).max)
    if np.iinfo(ids.dtype).max > limit and len(ids) and int(ids.max()) > limit:
        raise IdsDoNotFitError(
            f"token id {int(ids.max())} does not fit into {dtype}, whose largest number is {limit}",
            help=help,
            path=path,
        )


def describe_unpadded(manifest: Manifest) -> list[str]:
    """Warn that a format does not pad the documents of rows that were packed with `align`."""
    if (align := find_align(manifest)) == 1:
        return []
    problem = f"documents were packed with align: {align}, but this format does not pad them"
    return [f"{problem}; megatron-bridge pads them, and so does a Stream with Collate(align={align})"]


def find_align(manifest: Manifest) -> int:
    """Find the `align` that rows were packed with, by the recipe in the manifest; 1: none."""
    steps = manifest.recipe.get("steps")
    for step in steps if isinstance(steps, list) else ():
        pack = step.get("pack") if isinstance(step, dict) else None
        align = pack.get("align", 1) if isinstance(pack, dict) else 1
        if isinstance(align, int) and align > 1:
            return align
    return 1
