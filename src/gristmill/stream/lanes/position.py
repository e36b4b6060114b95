"""The position of a stream: its next row. The stream owns this number, and whoever reads it in order moves it.

The workers of a DataLoader cannot move it: they read ahead and do not learn which batches were used. But they must know
where to begin. The first pass continues at the position of the stream, and each later pass begins at the next epoch. So
the position is shared with the workers, as numbers in anonymous shared memory, written without locks. If several
workers write at the same time, they write the same values.

One word says which pass has begun since the stream was moved: the number of passes, the number of workers, and the seed
that the DataLoader gave to all workers of this pass. Each worker also notes which pass it has begun and ended. If not
all workers have ended a pass, it was abandoned, and how much of it was used is not known here.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import MutableSequence

    from gristmill.stream.lanes.passes import Passes

_MAX_WORKERS = 255
"""More workers share entries: then an abandoned pass may be mistaken for a complete one."""
_ROW, _PASS, _MOVES, _BEGUN = 0, 1, 2, 3
_ENDED = _BEGUN + _MAX_WORKERS
_LENGTH = _ENDED + _MAX_WORKERS
_READER_BITS, _WORKER_BITS, _COUNT_BITS = 40, 8, 15
_HERE = 1
"""The word for a dataset that is read in this process, batch by batch."""


class Position:
    """The next row, and which pass of worker processes has begun there."""

    def __init__(self, row: int = 0) -> None:
        self._numbers: MutableSequence[int] = [row, *[0] * (_LENGTH - 1)]
        self._owner: int | None = None
        """The process that shares the position with its workers; None: it is not shared."""
        self._num_moves = 0
        """How often the stream was moved, as this process knows it: a worker, from when it was started."""

    @property
    def row(self) -> int:
        return int(self._numbers[_ROW])

    @property
    def is_taken(self) -> bool:
        """Whether a DataLoader reads from here. Then it is not known how much was used."""
        return bool(self._numbers[_PASS])

    def move_to(self, row: int, *, by_dataset: bool = False) -> None:
        self._keep_for(os.getpid())
        self._num_moves += 1
        self._numbers[_MOVES] = self._num_moves
        self._numbers[_ROW] = row
        self._numbers[_PASS] = _HERE if by_dataset else 0

    def refuse_other_row(self, row: int) -> None:
        """Raise `UsageError` if an iteration is not where the stream is."""
        if row != self.row:
            raise UsageError(
                f"the stream is at row {self.row:,}, but this iteration is at row {row:,}: something else has moved it",
                help="iterate again to continue from there, or give each reader its own Stream",
            )

    def share(self) -> None:
        """Share the position with the workers that this process starts from now on."""
        if self._owner != os.getpid():
            self._numbers, self._owner = RawArray("q", [*self._numbers[:]]), os.getpid()

    def begin_pass(self, reader: int, worker: int, num_workers: int, passes: Passes, *, is_first: bool) -> int:
        """Return the first row of a pass of worker processes, which all have the same `reader`.

        `is_first` says that it is the first pass of this worker.
        """
        parent = multiprocessing.parent_process()
        self._keep_for(os.getpid() if parent is None or parent.pid is None else parent.pid)
        if is_first and self._numbers[_MOVES] != self._num_moves:  # the pass was abandoned while it began
            raise UsageError("the stream was moved after this worker was started", help="iterate the DataLoader again")
        worker, num_workers = worker % _MAX_WORKERS, min(num_workers, _MAX_WORKERS)
        begun = self._numbers[_PASS]
        # A generator that is seeded again gives the next pass the same number. But no worker begins a pass twice, so if
        # this worker has begun it already, it is a new pass.
        if _identify(begun) != _identify(_word(1, num_workers, reader)) or self._numbers[_BEGUN + worker] == begun:
            self._refuse_abandoned_pass(begun)
            begun = self._numbers[_PASS] = _word(_count(begun) + 1, num_workers, reader)
        self._numbers[_BEGUN + worker] = begun
        return passes.later_pass(self.row, _count(begun) - 1)

    def end_pass(self, worker: int) -> None:
        """Note that a worker has made the last batch of its pass."""
        worker %= _MAX_WORKERS
        self._numbers[_ENDED + worker] = self._numbers[_BEGUN + worker]

    def resume_pass(self, first_row: int) -> None:
        """Move the beginning of a pass of workers to the row of a state that each of them loads."""
        begun = self._numbers[_PASS]
        self._numbers[_ROW] = first_row
        self._numbers[_PASS] = _word(1, _count_workers(begun), begun)

    def begin_here(self, passes: Passes) -> int:
        """Begin a pass in this process and return its first row."""
        begun = self._numbers[_PASS]
        count = _count(begun)
        if count:
            self._refuse_abandoned_pass(begun)
            self.move_to(passes.later_pass(self.row, count))
        return self.row

    def next_pass(self, passes: Passes) -> int:
        """Return where the next pass begins, if the pass of the workers was complete."""
        return passes.later_pass(self.row, _count(self._numbers[_PASS]))

    def _refuse_abandoned_pass(self, begun: int) -> None:
        ended = self._numbers[_ENDED : _ENDED + _count_workers(begun)]
        is_abandoned = bool(_count(begun)) and any(word != begun for word in ended)
        # If the pass has changed since it was read, another worker has begun the next one and has checked this one.
        # That worker may have ended the next pass, too, so its entry in `ended` proves nothing.
        if is_abandoned and self._numbers[_PASS] == begun:
            raise UsageError(
                "the last pass of this DataLoader was left before its end, and its workers had read ahead: how much "
                "of it was used is not known here",
                help="resume after the last batch with dataset.load_state_dict(dataset.state_after(batch)), or at an "
                "epoch with dataset.set_epoch(n); rows_per_epoch= makes shorter passes",
            )

    def _keep_for(self, process: int) -> None:
        """Stop sharing in a process that is not a worker of the owner."""
        if self._owner not in (None, process):
            self._numbers, self._owner, self._num_moves = [self.row, *[0] * (_LENGTH - 1)], None, 0

    def __reduce__(self) -> tuple[Any, ...]:
        if self._owner is not None and get_spawning_popen() is not None:
            return _restore_shared, (self._numbers, self._owner, self._num_moves)
        return Position, (self.row,)


def _word(count: int, num_workers: int, reader: int) -> int:
    count, reader = count % (1 << _COUNT_BITS), reader % (1 << _READER_BITS)
    return (count << _WORKER_BITS | num_workers) << _READER_BITS | reader


def _count(word: int) -> int:
    return word >> (_READER_BITS + _WORKER_BITS)


def _count_workers(word: int) -> int:
    return word >> _READER_BITS & _MAX_WORKERS


def _identify(word: int) -> int:
    """Return the word without its count of passes."""
    return word % (1 << (_READER_BITS + _WORKER_BITS))


def _restore_shared(numbers: MutableSequence[int], owner: int, num_moves: int) -> Position:
    position = Position()
    position._numbers, position._owner, position._num_moves = numbers, owner, num_moves
    return position
