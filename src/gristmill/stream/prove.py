"""The proof of exact elastic resume on a user's own data: one run through every world size, worker and batch count.

A run of a few steps is made with each combination, by all its ranks and all their loader workers: real processes of a
DataLoader where torch is installed (`stream.torch.prove`), else streams of their own in this process. Its last state
goes through JSON and into the next combination. What they have read, one after the other, is compared with what a slow
reader gives: one row at a time, the order worked out number by number from the definitions, ids, lengths and masks read
by `open_dataset`, labels made token by token.
"""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gristmill.core.errors import UsageError
from gristmill.core.numbers import check_whole_number
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.order import Permutation
from gristmill.order.permutation import epoch_key
from gristmill.shards.dataset import Dataset, open_dataset
from gristmill.shards.token_rows import LENGTHS
from gristmill.stream.arguments import check_ranks
from gristmill.stream.kernels import IGNORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gristmill.stream.collate import Batch, Collate
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
    num_tokens: int
    different_row: int | None = None
    different_in: str | None = None
    """input_ids, labels, tokens (their number) or state."""

    def __bool__(self) -> bool:
        return self.different_row is None


class Run(Protocol):
    """The first `steps` batches of all ranks after a state, step by step and in each step rank by rank."""

    def __call__(
        self, stream: Stream, state: Mapping[str, Any], leg: Leg, steps: int
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """Each with the state after it."""


def prove(
    stream: Stream,
    worlds: Sequence[int],
    workers: Sequence[int],
    batches: Sequence[int],
    steps: int = 2,
    run: Run | None = None,
) -> Proof:
    """Run through all combinations, `steps` of each, the world size changing every time."""
    for name, given, least in (("world", worlds, 1), ("workers", workers, 0), ("batch", batches, 1)):
        if not given:
            raise UsageError(f"{name} needs a number at least")
        for number in given:
            check_whole_number(name, number, least=least)
    steps = check_whole_number("steps", steps, least=1)
    oracle = SlowReader(stream)
    state = stream.state_dict(row=0)
    legs: list[Leg] = []
    row = num_tokens = 0
    for batch_size, num_workers, world_size in itertools.product(batches, workers, worlds):
        check_ranks(batch_size, 0, world_size)
        leg = Leg(world_size, num_workers, batch_size, row, 0)
        for batch, after in (run or simulated)(stream, state, leg, steps):
            for number in np.flatnonzero(batch.row_mask).tolist():
                different = oracle.difference(batch, number, row)
                if different is not None:
                    return Proof(legs, row, num_tokens, row, different)
                row += 1
                num_tokens += int(batch.tokens[number])
            state = json.loads(json.dumps(after))
        legs.append(Leg(world_size, num_workers, batch_size, leg.first_row, row - leg.first_row))
        if state["row"] != row:
            return Proof(legs, row, num_tokens, row, "state")
    return Proof(legs, row, num_tokens)


def simulated(stream: Stream, state: Mapping[str, Any], leg: Leg, steps: int) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """Each worker of each rank is a stream that has opened the data for itself."""
    makers = {}
    for rank, worker in itertools.product(range(leg.world_size), range(max(leg.num_workers, 1))):
        maker = makers[rank, worker] = pickle.loads(pickle.dumps(stream))
        maker.load_state_dict(state)
    for step, rank in itertools.product(range(steps), range(leg.world_size)):
        maker = makers[rank, step % max(leg.num_workers, 1)]
        global_size = leg.batch_size * leg.world_size
        if not maker.has_batch(maker.passes.row_of_step(state["row"], step, global_size), global_size):
            return
        batch = maker.batch(step, leg.batch_size, rank, leg.world_size)
        yield batch, maker.state_dict(row=batch.next_row)


class SlowReader:
    """Rows one by one, with nothing in common with the fast way but the definitions."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._datasets: dict[str, Dataset] = {}

    def difference(self, batch: Batch, number: int, row: int) -> str | None:
        """What of a batch's row is not as it is at this row of the stream."""
        record = self.record(row)
        length = int(np.sum(record[LENGTHS]))
        if int(batch.tokens[number]) != length:
            return "tokens"
        if not np.array_equal(np.asarray(batch[INPUT_IDS][number])[:length], record[INPUT_IDS][:length]):
            return INPUT_IDS
        if "labels" in batch:
            labels = np.asarray(batch["labels"][number])
            if labels.tolist() != slow_labels(record, self._stream.collate, len(labels)):
                return "labels"
        return None

    def record(self, row: int) -> dict[str, Any]:
        """What is stored at a row of the stream."""
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
                return dataset[shard.first_row + index]
            index -= shard.rows
        raise AssertionError("a permutation stays inside its lane")


def slow_labels(record: Mapping[str, Any], options: Collate, width: int) -> list[int]:
    """Token by token."""
    lengths = [int(length) for length in record[LENGTHS]]
    firsts = {sum(lengths[:number]) for number, length in enumerate(lengths) if length}
    labels = []
    for place in range(sum(lengths)):
        is_learnt = LOSS_MASK not in record or bool(record[LOSS_MASK][place])
        if place in firsts and not options.learn_first_token:
            is_learnt = False
        labels.append(int(record[INPUT_IDS][place]) if is_learnt else IGNORED)
    if options.labels == "shifted":
        labels = labels[1:]
    return labels + [IGNORED] * (width - len(labels))
