"""The proof of exact elastic resume on a user's own data: one run through every world size, worker and batch count.

A run of a few steps is made with each combination, as all its ranks and all their loader workers would make it, each
from a stream of its own. Its last state goes through JSON and into the next combination. What they have read, one after
the other, is compared with what a slow reader gives: one row at a time, the order worked out number by number from the
definitions, the ids read by `open_dataset`.
"""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS
from gristmill.order import Permutation
from gristmill.order.permutation import epoch_key
from gristmill.shards.dataset import Dataset, open_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class Leg:
    """A run that went on from the state of the one before it."""

    world_size: int
    num_workers: int
    batch_size: int
    first_row: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Proof:
    """What was compared, and the first row that differs, if one does."""

    legs: list[Leg]
    num_rows: int
    different_row: int | None

    def __bool__(self) -> bool:
        return self.different_row is None


def prove(
    stream: Stream, worlds: Sequence[int], workers: Sequence[int], batches: Sequence[int], steps: int = 2
) -> Proof:
    """Run through all combinations, `steps` of each, the world size changing every time."""
    for name, numbers, least in (
        ("world", worlds, 1),
        ("workers", workers, 0),
        ("batch", batches, 1),
        ("steps", [steps], 1),
    ):
        if not numbers or min(numbers) < least:
            raise UsageError(f"{name} must be numbers from {least} on, not {', '.join(map(str, numbers))}")
    oracle = SlowReader(stream)
    state = stream.state_dict(row=0)
    legs: list[Leg] = []
    row = 0
    for batch_size, num_workers, world_size in itertools.product(batches, workers, worlds):
        first_row = row
        for batch in _run(stream, state, world_size, num_workers, batch_size, steps):
            for ids, length in zip(batch[INPUT_IDS], batch.tokens, strict=True):
                if not np.array_equal(ids[:length], oracle.row(row)[:length]):
                    return Proof(legs, row, row)
                row += 1
            state = json.loads(json.dumps(stream.state_dict(row=batch.next_row)))
        legs.append(Leg(world_size, num_workers, batch_size, first_row, row - first_row))
    return Proof(legs, row, None)


def _run(
    stream: Stream, state: dict[str, Any], world_size: int, num_workers: int, batch_size: int, steps: int
) -> Iterator[Any]:
    """The batches of all ranks, step by step; each worker of each rank has opened the data for itself."""
    num_workers = max(num_workers, 1)
    makers = {}
    for rank, worker in itertools.product(range(world_size), range(num_workers)):
        maker = makers[rank, worker] = pickle.loads(pickle.dumps(stream))
        maker.load_state_dict(state)
    for step in range(steps):
        for rank in range(world_size):
            yield makers[rank, step % num_workers].batch(step, batch_size, rank, world_size)


class SlowReader:
    """Rows one by one, with nothing in common with the fast way but the definitions."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._datasets: dict[str, Dataset] = {}

    def row(self, row: int) -> Any:
        """The ids at a row of the stream."""
        order, given = self._stream.order, self._stream.arguments
        lane, draw = self._stream.lanes[0], row
        if order.mixture is not None:
            sources, draws = order.mixture([row])
            name, draw = order.mixture.sources[int(sources[0])], int(draws[0])
            lane = next(lane for lane in self._stream.lanes if lane.name == name)
        epoch, index = divmod(draw, lane.rows)
        if given.shuffle:
            index = Permutation(lane.rows, epoch_key(given.seed, lane.name, epoch))(index)
        for shard in lane.shards:
            if index < shard.rows:
                dataset = self._datasets.get(shard.folder)
                if dataset is None:
                    dataset = self._datasets[shard.folder] = open_dataset(shard.folder)
                return dataset[shard.first_row + index][INPUT_IDS]
            index -= shard.rows
        raise AssertionError("a permutation stays inside its lane")
