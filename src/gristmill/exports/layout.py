"""What every format says of itself: its files, and how one shard gets into them.

A layout is made once, by the process that asks for the export, when the sizes of all shards are known. It then goes to
the workers, and each shard is written at places that depend on the shards before it only: in any order, all at once.
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
    """A file of the export."""

    name: str
    """What follows the prefix: `_train.bin`."""
    num_bytes: int | None = None
    """None: known only when it is written."""
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Place:
    """A shard, and what comes before it in its split."""

    path: str
    rows: int
    number: int
    first_row: int = 0
    first_token: int = 0
    tokens: int = 0
    schema: pa.Schema | None = None
    """The columns that the manifest gives it, where it is Arrow or Parquet."""
    origins: str | None = None
    """The side file with its records' origins, if its format cannot hold them."""


class Layout(Protocol):
    """One split in one format. Travels to the workers."""

    @property
    def files(self) -> Sequence[PlannedFile]: ...

    def later_names(self) -> Iterator[str]:
        """Names that would come next, where files are numbered: an older and longer set may hold them."""

    def fill(self, place: Place, targets: Targets) -> int | None:
        """Write one shard into the files; gives how many numbers JSON could not hold, where that is counted."""

    def usage(self, prefix: str) -> str:
        """How to use what was written at the prefix, in a line."""


class Targets:
    """The files of a layout, open for writing from `with` to its end; each is opened when it is first needed."""

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
