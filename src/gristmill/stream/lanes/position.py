"""The position of a stream, which is its next row, and the state that is saved of it.

A loop that reads the stream in order moves the position. The workers of a DataLoader cannot: they read ahead and do not
learn which batches were used. But they must know where to begin. The first pass continues at the position of the
stream, and each later pass begins at the next epoch. So the position is shared with the workers, as numbers in
anonymous shared memory, written without locks: workers that write at the same time write the same values.

One word says which pass has begun since the stream was moved: the number of passes, the number of workers, and the seed
that the DataLoader gave to all workers of this pass. Each worker also notes which pass it has begun and ended. If not
all workers have ended a pass, it was abandoned, and no one knows how much of it was used.

In a state one number says where a run resumes. All other fields ensure that it is not used with other data, another
order, or other weights in the past.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import xxhash

from gristmill.core.checks import MAX_COUNT, describe_type
from gristmill.core.errors import UsageError
from gristmill.order import ORDER_VERSION
from gristmill.stream.lanes.mixing import COUNTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, MutableSequence

    from gristmill.stream.lanes.row_order import Passes, RowOrder


_MAX_WORKERS = 255
"""More workers share entries: then an abandoned pass may be mistaken for a complete one."""
_ROW, _PASS, _MOVES, _BEGUN = 0, 1, 2, 3
_ENDED = _BEGUN + _MAX_WORKERS
_LENGTH = _ENDED + _MAX_WORKERS
_READER_BITS, _WORKER_BITS, _COUNT_BITS = 40, 8, 15
_IN_PROCESS = 1
"""The word for a dataset that is read in this process, batch by batch."""

Phases = list[tuple[int, dict[str, int], Literal["counts"]]]

_MEANINGS = {
    "order_version": "this version of Gristmill has another order of rows",
    "dataset_hash": "the data, the split or the sources differ from those that the state was saved with",
    "seed": "the seed differs from the one that the state was saved with",
    "mixture_hash": "earlier rows were drawn with other weights, or with another `shuffle`",
    "window": "the rows around the state's were put into batches by other batch_tokens, or up to another end",
}


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
        """Whether a DataLoader reads from this position. Then it is not known how much was used."""
        return bool(self._numbers[_PASS])

    def move_to(self, row: int, *, by_dataset: bool = False) -> None:
        self._keep_for(os.getpid())
        self._num_moves += 1
        self._numbers[_MOVES] = self._num_moves
        self._numbers[_ROW] = row
        self._numbers[_PASS] = _IN_PROCESS if by_dataset else 0

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
                "of it was used is not known",
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


class StreamState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of `Stream.state_dict`: plain numbers and strings."""

    row: int
    seed: int
    order_version: int
    mixture_hash: str
    dataset_hash: str
    phases: Phases
    """The rows of each lane among 65,536, from each row on; empty without weights. `Stream(mixture=…)` accepts them,
    with weights in any unit: "counts" says that they are exact."""
    window: list[int] | None = None
    """With `batch_tokens`, if the row is inside a window: the first row and the end of that window, the tokens of a
    batch, and the multiple of its width. Which rows of the window were read depends on them. None: on nothing."""


def make_state(
    row: int,
    order: RowOrder,
    *,
    seed: int,
    shuffle: bool | Mapping[str, int],
    dataset_hash: str,
    window: list[int] | None = None,
) -> StreamState:
    """Make the state before `row`, which may be inside a window of batches by tokens."""
    past = row if window is None else window[1]  # rows up to the end of the window may have been read
    mixture_phases = [] if order.mixture is None else order.mixture.phases
    phases: Phases = [(phase.first_row, phase.counts, COUNTS) for phase in mixture_phases]
    used_phases = [[first, sorted(counts.items())] for first, counts, _ in phases if first < past]
    return StreamState(
        row=row,
        seed=seed,
        order_version=ORDER_VERSION,
        mixture_hash=xxhash.xxh3_128_hexdigest(msgspec.json.encode([order.mixture is not None, shuffle, used_phases])),
        dataset_hash=dataset_hash,
        phases=phases,
        window=window,
    )


def parse_state(state: Mapping[str, Any]) -> StreamState:
    """Parse a saved state, perhaps from JSON."""
    try:
        parsed = msgspec.convert(dict(state), describe_type(StreamState))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise UsageError(f"this is not the state of a stream: {error}") from None
    if not 0 <= parsed.row <= MAX_COUNT:
        raise UsageError(f"this is not the state of a stream: row {parsed.row}")
    return parsed


def check_same_stream(saved: StreamState, ours: StreamState, ignore: Collection[str]) -> None:
    """Refuse the state of another stream; `ours` is the state of this stream at the same row."""
    for name in ignore:
        if name not in _MEANINGS:
            raise UsageError(f"ignore can name {', '.join(_MEANINGS)}, not {name!r}")
    for name, meaning in _MEANINGS.items():
        was, now = getattr(saved, name), getattr(ours, name)
        if was != now and name not in ignore:
            raise UsageError(
                f"the state does not fit this stream: {meaning} ({name} was {was}, is {now})",
                help=_make_advice(name, saved),
                field=name,
            )


def _make_advice(name: str, saved: StreamState) -> str:
    override = f'or accept other rows on purpose with ignore=["{name}"]'
    if name == "mixture_hash" and saved.phases:
        change = f"append ({saved.row}, weights) to change the weights from here on"
        return f"start with mixture={saved.phases} and {change}, {override}"
    if name == "window":
        until = f", at least until row {saved.window[1]:,}" if saved.window else ""
        return f"open the stream with the batch_tokens, Collate and end that it had{until}, {override}"
    if name == "dataset_hash":
        override += "; tars and tables that were only touched or copied count as other files, with the same rows"
    return f"open the stream as it was, {override}"
