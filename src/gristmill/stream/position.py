"""Where a stream stands. The stream is the one owner of this number; what reads it in order moves it.

The workers of a DataLoader cannot move it: they read ahead, and of what is handed out they hear nothing. But they must
know where to begin. The first pass over a DataLoader goes on where the stream stands, the passes after it begin at row
0; were that to hang on what each process remembers, a pass after a resume would leave out the rows before it. So the
position is shared with the workers: three numbers in memory without a name, written without locks. What is written by
several at once is the same.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableSequence

_ROW, _MOVES, _TAKEN = range(3)
_READER_BITS = 40
_MAX_MOVES = (1 << 23) - 1
"""Counted from 1 again after these: a word has no more bits left."""


class Position:
    """The next row, how often it was moved, and which pass has begun there since."""

    def __init__(self, row: int = 0) -> None:
        self._numbers: MutableSequence[int] = [row, 1, 0]
        self._owner: int | None = None
        """The process that shares it with its workers; None: nobody does."""

    @property
    def row(self) -> int:
        return int(self._numbers[_ROW])

    @property
    def is_taken(self) -> bool:
        """Whether a pass has begun here: then how far it has come is not known."""
        return self._numbers[_TAKEN] >> _READER_BITS == self._numbers[_MOVES]

    def move_to(self, row: int) -> None:
        self._keep_for(os.getpid())
        self._numbers[_ROW] = row
        self._numbers[_MOVES] = self._numbers[_MOVES] % _MAX_MOVES + 1

    def share(self) -> None:
        """From now on workers that this process starts see it move."""
        if self._owner != os.getpid():
            self._numbers, self._owner = RawArray("q", [*self._numbers[:]]), os.getpid()

    def begin_pass(self, reader: int, *, in_worker: bool) -> int:
        """The first row of a pass; all workers of a pass name the same `reader`.

        One word holds both the move and the reader, so that no worker can see half of what another has written.
        """
        parent = multiprocessing.parent_process() if in_worker else None
        self._keep_for(os.getpid() if parent is None or parent.pid is None else parent.pid)
        taken = (self._numbers[_MOVES] << _READER_BITS) | (reader % (1 << _READER_BITS))
        if self.is_taken and self._numbers[_TAKEN] != taken:
            return 0
        self._numbers[_TAKEN] = taken
        return self.row

    def next_pass(self) -> int:
        """Where a pass would begin."""
        return 0 if self.is_taken else self.row

    def _keep_for(self, process: int) -> None:
        """A process that was not started as a worker of the owner goes its own way."""
        if self._owner not in (None, process):
            self._numbers, self._owner = [self.row, 1, 0], None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._owner is not None and get_spawning_popen() is not None:
            return _shared, (self._numbers, self._owner)
        return Position, (self.row,)


def _shared(numbers: MutableSequence[int], owner: int) -> Position:
    position = Position()
    position._numbers, position._owner = numbers, owner
    return position
