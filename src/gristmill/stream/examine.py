"""What a user can find out about a stream before the training: whether it resumes exactly, its speed, its balance.

`prove` runs one training through many combinations of sizes. Each runs for a few steps, with all its ranks and all
their loader workers: real processes of a DataLoader where torch is installed (`stream.torch.loader`), otherwise
separate streams in this process. Its last state goes through JSON into the next combination. The rows that they read
are compared with those of a slow reader, which reads one row at a time, computes the order from the definitions, takes
ids, lengths and masks from `open_dataset`, and makes labels token by token.

`measure_stream` compares fields in one thread of this process, and loaders with the usual fields. A dataset on a store
is also read through an empty cache: in full shuffle, where each row may cost a block, and with shuffled blocks.
`measure_imbalance` shows what `Stream(…, balance=True)` would gain.
"""

from __future__ import annotations

import itertools
import json
import pickle
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gristmill.core.checks import check_whole_number
from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK
from gristmill.order import Permutation
from gristmill.order.permutation import make_epoch_key, make_window_key
from gristmill.shards.dataset import Dataset, open_dataset
from gristmill.shards.token_rows import LENGTHS, list_parts
from gristmill.stream.collate import Collate
from gristmill.stream.lanes.balance import RankRows, RowCosts, deal_rows
from gristmill.stream.pair_collate import PairCollate
from gristmill.stream.stream_kernels import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gristmill.stream.collate import Batch
    from gristmill.stream.lanes.sources import Lane
    from gristmill.stream.rows.block_reader import BlockReader
    from gristmill.stream.stream import Stream


USUAL_FIELDS = ("input_ids", "labels")
FIELDS = (("input_ids",), USUAL_FIELDS, (*USUAL_FIELDS, "position_ids", "cu_seqlens"))
_PROCESS = "this process"
_WINDOW = {"blocks": 64}


@dataclass(frozen=True, slots=True)
class ElasticRun:
    """A few steps with one combination of sizes, resumed from the state of the run before it."""

    world_size: int
    num_workers: int
    batch_size: int
    first_row: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a proof: what was compared, and the first row that differs, if one does."""

    runs: list[ElasticRun]
    num_rows: int
    num_tokens: int
    different_row: int | None = None
    different_in: str | None = None
    """What differs there: input_ids, labels, tokens (their number), rows (of a rank) or state."""

    def __bool__(self) -> bool:
        return self.different_row is None


class RankReader(Protocol):
    """A function that reads the first batches of all ranks after a state, step by step, in each step rank by rank."""

    def __call__(
        self, stream: Stream, state: Mapping[str, Any], run: ElasticRun, steps: int
    ) -> Iterator[tuple[Batch, dict[str, Any]]]:
        """Yield each batch with the state after it."""


def prove(
    stream: Stream,
    worlds: Sequence[int],
    workers: Sequence[int],
    batches: Sequence[int],
    steps: int = 2,
    read_ranks: RankReader | None = None,
) -> Proof:
    """Run `steps` steps of every combination, with another world size each time, and compare every row."""
    for name, counts, least in (("world", worlds, 1), ("workers", workers, 0), ("batch", batches, 1)):
        if not counts:
            raise UsageError(f"{name} needs at least one number")
        for count in counts:
            check_whole_number(name, count, least=least)
    steps = check_whole_number("steps", steps, least=1)
    if any(shard.is_foreign for lane in stream.lanes for shard in lane.shards):
        raise UsageError(
            "a proof compares rows with those in the manifest of a dataset, and third-party files have none",
            help="name the output folder of a run",
        )
    slow_reader = SlowReader(stream)
    state = stream.state_dict(row=0)
    runs: list[ElasticRun] = []
    row = num_tokens = 0
    for batch_size, num_workers, world_size in itertools.product(batches, workers, worlds):
        stream.check_ranks(batch_size, 0, world_size)
        run = ElasticRun(world_size, num_workers, batch_size, row, 0)
        step_row = row
        for turn, (batch, next_state) in enumerate((read_ranks or simulate_ranks)(stream, state, run, steps)):
            step_row = row if turn % world_size == 0 else step_row
            rank_rows = slow_reader.deal(step_row, batch_size, world_size)[turn % world_size]
            numbers = np.flatnonzero(batch.row_mask).tolist()
            for number, rank_row in zip(numbers, rank_rows, strict=False):
                different = slow_reader.find_difference(batch, number, rank_row)
                if different is not None:
                    return Proof(runs, row, num_tokens, rank_row, different)
                row += 1
                num_tokens += int(batch.tokens[number])
            if len(numbers) != len(rank_rows):
                return Proof(runs, row, num_tokens, row, "rows")
            state = json.loads(json.dumps(next_state))
        runs.append(ElasticRun(world_size, num_workers, batch_size, run.first_row, row - run.first_row))
        if state["row"] != row:
            return Proof(runs, row, num_tokens, row, "state")
    return Proof(runs, row, num_tokens)


def simulate_ranks(
    stream: Stream, state: Mapping[str, Any], run: ElasticRun, steps: int
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    """Read as a `RankReader` without processes: each worker of each rank is a stream that opens the data for itself."""
    streams = {}
    for rank, worker in itertools.product(range(run.world_size), range(max(run.num_workers, 1))):
        copy = streams[rank, worker] = pickle.loads(pickle.dumps(stream))
        copy.load_state_dict(state)
    for step, rank in itertools.product(range(steps), range(run.world_size)):
        copy = streams[rank, step % max(run.num_workers, 1)]
        global_size = run.batch_size * run.world_size
        if not copy.has_batch(copy.passes.row_of_step(state["row"], step, global_size), global_size):
            return
        batch = copy.batch(step, run.batch_size, rank, run.world_size)
        yield batch, copy.state_dict(row=batch.next_row)


class SlowReader:
    """Reads rows one by one. It shares nothing with the fast path but the definitions."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._datasets: dict[str, Dataset] = {}

    def find_difference(self, batch: Batch, number: int, row: int) -> str | None:
        """Name what differs between a row of a batch and this row of the stream; None: nothing."""
        record = self.record(row)
        length = int(np.sum(record[LENGTHS]))
        if int(batch.tokens[number]) != length:
            return "tokens"
        options = self._stream.collate
        if isinstance(options, PairCollate):
            return self._find_pair_difference(batch, number, record)
        places = list_slow_places(record, options.align)
        if not np.array_equal(np.asarray(batch[INPUT_IDS][number])[places], record[INPUT_IDS][:length]):
            return INPUT_IDS
        if "labels" in batch:
            labels = np.asarray(batch["labels"][number]).tolist()
            expected = [IGNORED] * len(labels)
            for place, label in zip(places, compute_slow_labels(record, options, length), strict=True):
                expected[place] = label
            if labels != expected:
                return "labels"
        return None

    def _find_pair_difference(self, batch: Batch, number: int, record: Mapping[str, Any]) -> str | None:
        """Compare the sequences of a row of preferences: chosen answers are in the first half of a batch."""
        _, *answers = list_parts(self._stream.datasets[0].manifest.schema.to_arrow())
        for side, name in enumerate(answers):
            expected = [*record["prompt_ids"].tolist(), *record[name].tolist()]
            row = number + side * len(batch.sources)
            mask = [0] * len(record["prompt_ids"]) + [1] * len(record[name])
            for array, values in ((INPUT_IDS, expected), ("completion_mask", mask)):
                if np.asarray(batch[array][row]).tolist()[: len(values)] != values:
                    return f"{array} of {name}"
        return None

    def deal(self, step_row: int, batch_size: int, world_size: int) -> list[list[int]]:
        """List the rows of each rank in the step that begins at a row."""
        end = self._stream.passes.end_of(step_row)
        global_batch = range(step_row, step_row + batch_size * world_size)
        real_rows = [row for row in global_batch if end is None or row < end]
        if not self._stream.arguments.balance:
            return [[row for row in real_rows if (row - step_row) // batch_size == rank] for rank in range(world_size)]
        costs = {row: sum(int(length) ** 2 for length in self.record(row)[LENGTHS]) for row in real_rows}
        hands: list[list[int]] = [[] for _ in range(world_size)]
        by_cost = sorted(global_batch, key=lambda row: (-costs.get(row, 0), row))
        for first in range(0, len(by_cost), world_size):
            by_total = sorted(range(world_size), key=lambda rank: sum(costs.get(row, 0) for row in hands[rank]))
            for rank, row in zip(by_total, by_cost[first : first + world_size], strict=True):
                hands[rank].append(row)
        return [sorted(set(hand) & set(real_rows)) for hand in hands]

    def record(self, row: int) -> dict[str, Any]:
        """Return the stored record at a row of the stream."""
        order, arguments = self._stream.order, self._stream.arguments
        lane, draw = self._stream.lanes[0], row
        if order.mixture is not None:
            sources, draws = order.mixture([row])
            name, draw = order.mixture.sources[int(sources[0])], int(draws[0])
            lane = next(lane for lane in self._stream.lanes if lane.name == name)
        epoch, index = divmod(draw, lane.rows)
        if arguments.window is not None:
            index = _shuffle_blocks(lane, arguments.window, arguments.seed, epoch, index)
        elif arguments.shuffle:
            index = Permutation(lane.rows, make_epoch_key(arguments.seed, lane.name, epoch))(index)
        for shard in lane.shards:
            if index < shard.rows:
                dataset = self._datasets.get(shard.folder)
                if dataset is None:
                    dataset = self._datasets[shard.folder] = open_dataset(shard.folder)
                return dataset[shard.first_row + index]
            index -= shard.rows
        raise AssertionError("a permutation stays inside its lane")


def list_slow_places(record: Mapping[str, Any], align: int) -> list[int]:
    """List where each token of a row is in a batch: documents begin at multiples of `align`."""
    places: list[int] = []
    for length in record[LENGTHS]:
        begin = -(-(places[-1] + 1) // align) * align if places else 0
        places += range(begin, begin + int(length))
    return places


def _shuffle_blocks(lane: Lane, window: int, seed: int, epoch: int, index: int) -> int:
    """Find the stored row of a place in an epoch whose blocks are shuffled, one window after the other."""
    rows = [int(count) for shard in lane.shards if shard.blocks is not None for count in shard.blocks.rows]
    key = make_epoch_key(seed, f"blocks/{lane.name}", epoch)
    order = [Permutation(len(rows), key)(number) for number in range(len(rows))]
    for number, first in enumerate(range(0, len(order), window)):
        blocks = order[first : first + window]
        size = sum(rows[block] for block in blocks)
        if index < size:
            index = Permutation(size, make_window_key(key, number))(index)
            for block in blocks:
                if index < rows[block]:
                    return sum(rows[:block]) + index
                index -= rows[block]
        index -= size
    raise AssertionError("the windows of an epoch have all its rows")


def compute_slow_labels(record: Mapping[str, Any], options: Collate, width: int) -> list[int]:
    """Make the labels of a row token by token."""
    lengths = [int(length) for length in record[LENGTHS]]
    first_positions = {sum(lengths[:number]) for number, length in enumerate(lengths) if length}
    labels = []
    for position in range(sum(lengths)):
        is_trained = LOSS_MASK not in record or bool(record[LOSS_MASK][position])
        if position in first_positions and (options.align > 1 or not options.learn_first_token):
            is_trained = False
        labels.append(int(record[INPUT_IDS][position]) if is_trained else IGNORED)
    if options.labels == "shifted":
        labels = labels[1:]
    return labels + [IGNORED] * (width - len(labels))


@dataclass(frozen=True, slots=True)
class MeasuredLoader:
    """The speed of one way to use a stream."""

    loader: str
    fields: list[str]
    first_batch_seconds: float
    rows_per_second: float
    tokens_per_second: float
    bytes_per_row: float | None = None
    """What was fetched for each row, on average; None: the dataset is on this disk."""


@dataclass(frozen=True, slots=True)
class StreamBench:
    """All measurements of a stream, and what to use."""

    measurements: list[MeasuredLoader]
    advice: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, with rounded numbers."""
        rounded = [
            {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(entry).items()}
            for entry in self.measurements
        ]
        return {"measurements": rounded, "advice": self.advice}


def measure_stream(
    open_stream: Callable[..., Stream],
    batch_size: int,
    seconds: float,
    workers: Sequence[int],
    torch_loaders: Callable[[Stream, int, int], tuple[str, Iterable[Batch]]] | None,
) -> StreamBench:
    """Measure a stream that `open_stream(collate=…)` opens, for some seconds in each way.

    Args:
        open_stream: Opens the stream; it takes arguments of `Stream` that differ from the user's.
        batch_size: Rows in a batch.
        seconds: The time for each measurement.
        workers: Numbers of loader workers; 0 is a `TorchLoader`.
        torch_loaders: Makes a loader of a stream, a batch size and a number of workers; None: torch is not installed.
    """
    if isinstance(open_stream().collate, PairCollate):
        return _bench_pairs(open_stream, batch_size, seconds)
    streams = [open_stream(collate=Collate(fields=fields)) for fields in FIELDS]
    measurements = [
        _measure(_PROCESS, fields, stream, stream.batches(batch_size), seconds)
        for fields, stream in zip(FIELDS, streams, strict=True)
    ]
    loaders = measurements[1:2]
    for num_workers in workers if torch_loaders is not None else ():
        assert torch_loaders is not None
        stream = open_stream(collate=Collate(fields=USUAL_FIELDS))
        name, batches = torch_loaders(stream, batch_size, num_workers)
        loaders.append(_measure(name, USUAL_FIELDS, stream, batches, seconds))
    cold: list[MeasuredLoader] = []
    if streams[0].reader.is_remote:
        for name, shuffle in (("empty cache, full shuffle", True), ("empty cache, shuffled blocks", _WINDOW)):
            with tempfile.TemporaryDirectory() as cache:
                stream = open_stream(collate=Collate(fields=USUAL_FIELDS), cache=cache, shuffle=shuffle)
                cold.append(_measure(name, USUAL_FIELDS, stream, stream.batches(batch_size), seconds))
    return StreamBench([*measurements, *loaders[1:], *cold], _advise(loaders, cold))


def _bench_pairs(open_stream: Callable[..., Stream], batch_size: int, seconds: float) -> StreamBench:
    """Measure a stream of preferences, whose batches have one form."""
    stream = open_stream()
    measured = _measure(_PROCESS, stream.collate.fields, stream, stream.batches(batch_size), seconds)
    return StreamBench([measured], [])


def _measure(
    name: str, fields: Sequence[str], stream: Stream, batches: Iterable[Batch], seconds: float
) -> MeasuredLoader:
    start = time.perf_counter()
    iterator = iter(batches)
    first = next(iterator)
    begin = time.perf_counter()
    num_rows = num_tokens = 0
    # A stream may end in its first batch: then that one is the measurement.
    for batch in itertools.chain(iterator, [first]):
        num_rows += int(batch.row_mask.sum())
        num_tokens += int(batch.tokens.sum())
        if time.perf_counter() - begin >= seconds:
            break
    elapsed = max(time.perf_counter() - begin, 1e-9)
    blocks: BlockReader | None = getattr(stream.reader.table, "blocks", None)
    fetched = None if blocks is None else blocks.cache.fetched_bytes / max(num_rows + len(first.row_mask), 1)
    return MeasuredLoader(name, list(fields), begin - start, num_rows / elapsed, num_tokens / elapsed, fetched)


def _advise(loaders: Sequence[MeasuredLoader], cold: Sequence[MeasuredLoader]) -> list[str]:
    best = max(loaders, key=lambda entry: entry.rows_per_second)
    advice = [f"fastest here: {best.loader}, {best.rows_per_second:,.0f} rows/s"]
    if best.loader != _PROCESS and loaders[0].rows_per_second > 0.9 * best.rows_per_second:
        advice.append("one thread of the training process is as fast: TorchLoader(stream, batch_size, num_threads=1)")
    if len(cold) == 2:
        full, blocks = cold
        factor = blocks.rows_per_second / max(full.rows_per_second, 1e-9)
        if factor > 1.5:
            advice.append(
                f'until the cache is full, shuffle={{"blocks": {_WINDOW["blocks"]}}} is {factor:.1f}x as fast as '
                "a full shuffle; gristmill stream plan computes what each fetches"
            )
        else:
            advice.append("a full shuffle is as fast as shuffled blocks from this store: keep it")
    return advice


def measure_imbalance(stream: Stream, batch_size: int, world_size: int, steps: int) -> tuple[float, float]:
    """Compare the most expensive rank with the mean, over some steps: with slices, and with dealt rows.

    1.0 is perfect balance. With 1.5, two thirds of the time that a step waits for attention is work.
    """
    rank_rows = RankRows(stream.order, RowCosts(stream.datasets))
    worst = np.zeros(2)
    total = 0.0
    for step in range(steps):
        row = stream.passes.row_of_step(stream.first_row, step, batch_size * world_size)
        rows = np.arange(row, row + batch_size * world_size)
        costs = rank_rows.find_costs(rows, stream.passes.end_of(row))
        dealt = costs[deal_rows(costs, world_size)]
        worst += costs.reshape(world_size, -1).sum(axis=1).max(), dealt.sum(axis=1).max()
        total += costs.sum() / world_size
    sliced, balanced = worst / max(total, 1.0)
    return float(sliced), float(balanced)
