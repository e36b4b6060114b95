"""The protocol of export formats: which datasets a format takes, which files it writes, and how a shard gets into them.

The exporting process makes a `Layout` for each split once the sizes of all shards are known, and sends it to the
workers. Where a shard is written depends only on the shards before it, so shards are written in any order and at the
same time.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from gristmill.exports.training import STORED
from gristmill.storage.preallocated import write_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa
    from numpy.typing import NDArray

    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.locations import Location


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
class ExportSplit:
    """A split to export: its shards, and the facts about the dataset that shape the files."""

    name: str
    slots: Sequence[ShardSlot]
    manifest: Manifest
    schema: pa.Schema
    """The columns of its rows: those in the manifest, or sampled ones where the format `needs_typed_columns`."""
    vocab_size: int = 0
    """The vocabulary size with added tokens; 0 unless the format `counts_tokens`."""
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

    def fill(self, slot: ShardSlot, targets: Targets) -> int | None:
        """Write one shard into the files; return how many numbers JSON could not hold, where that is counted."""

    def usage(self, prefix: str) -> str:
        """Show in one line how to use the files at the prefix."""


class ExportFormat(ABC):
    """A format of `gristmill export`. `exports.formats` is the table of all formats.

    The class attributes tell the exporting process what to prepare. It calls `check_dataset` first, then counts tokens
    or samples columns, then calls `make_layout` once for each split that has rows.
    """

    name: str
    """The value of `--to`."""
    counts_tokens: ClassVar[bool] = False
    """Whether the layout depends on the vocabulary size and on the number of tokens in each shard."""
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
