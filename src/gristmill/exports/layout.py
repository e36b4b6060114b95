"""What every export format provides: its files, and how one shard gets into them.

The exporting process makes a layout once the sizes of all shards are known, and sends it to the workers. Where a shard
is written depends on the shards before it only, so shards are written in any order and at the same time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gristmill.storage.preallocated import write_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa
    from numpy.typing import NDArray


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


class Layout(Protocol):
    """One split in one export format. It is sent to the workers."""

    @property
    def files(self) -> Sequence[PlannedFile]: ...

    def later_names(self) -> Iterator[str]:
        """Name the files that would follow, where files are numbered: a longer export of before may have left them."""

    def fill(self, slot: ShardSlot, targets: Targets) -> int | None:
        """Write one shard into the files; return how many numbers JSON could not hold, where that is counted."""

    def usage(self, prefix: str) -> str:
        """Show in one line how to use the files at the prefix."""


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
