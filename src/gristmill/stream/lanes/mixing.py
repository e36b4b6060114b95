"""From the user's weights to a mixture of lanes, and where the stream ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from gristmill.core.checks import MAX_COUNT, check_choice, check_real_number, check_whole_number
from gristmill.core.errors import UsageError
from gristmill.core.recipe import find_mixture_epochs
from gristmill.order import Mixture
from gristmill.stream.lanes.sources import make_fixed_weights_error, make_lane_name

if TYPE_CHECKING:
    from gristmill.stream.lanes.arguments import StreamArguments, Weights
    from gristmill.stream.lanes.row_order import RowOrder
    from gristmill.stream.lanes.sources import Lane, StreamDataset

COUNTS: Literal["counts"] = "counts"
"""The mark of a phase from a saved state: its numbers are not weights but rows of each lane in a period."""


class WeightPhase(NamedTuple):
    """Weights that hold from a row on."""

    first_row: int
    weights: Weights
    is_from_state: bool = False


def make_mixture(datasets: list[StreamDataset], arguments: StreamArguments, row_length: int | None) -> Mixture | None:
    """Make the mixture of all lanes; None: there are no weights, and all rows are one lane."""
    lanes = [lane for dataset in datasets for lane in dataset.lanes]
    phases = _find_phases(datasets, arguments)
    if phases is None:
        return None
    by_lane = []
    for phase in phases:
        weights = phase.weights if phase.is_from_state else _weigh_lanes(datasets, phase.weights)
        if arguments.weights_in == "tokens" and not phase.is_from_state:
            weights = _convert_to_rows(weights, lanes, row_length)
        by_lane.append((phase.first_row, weights))
    empty = {lane.name for lane in lanes if not lane.rows}
    for name in sorted(empty & {name for _, weights in by_lane for name, weight in weights.items() if weight}):
        raise UsageError(f"source {name} has a weight but no rows", help="leave it out, or give it the weight 0")
    return Mixture(by_lane)


def _find_phases(datasets: list[StreamDataset], arguments: StreamArguments) -> list[WeightPhase] | None:
    """Find the weights of datasets, or of lanes if there is one dataset; None: there are no weights."""
    mixture = arguments.mixture
    if isinstance(arguments.data, Mapping):
        with_weight = {name: entry[1] for name, entry in arguments.data.items() if isinstance(entry, tuple)}
        if mixture is None and with_weight:
            mixture = with_weight
        elif with_weight:
            raise UsageError("weights are set both with the folders and in `mixture`", help="use only one of them")
    if mixture is None:
        return _find_default_phases(datasets)
    is_by_name = isinstance(arguments.data, Mapping)
    valid_names = [entry.name for entry in (datasets if is_by_name else datasets[0].lanes)]
    epochs = find_mixture_epochs(mixture)
    if epochs is not None:
        return [_weigh_by_epochs(datasets, epochs, valid_names)]
    phases = parse_phases(mixture)
    for phase in phases:
        names = [lane.name for dataset in datasets for lane in dataset.lanes] if phase.is_from_state else valid_names
        for name in phase.weights:
            for dataset in datasets:
                if name not in names and name in dataset.manifest.mixed.get(dataset.split, {}):
                    raise make_fixed_weights_error(dataset.name, dataset.manifest, dataset.split)
            check_choice("a source of the mixture", name, names)
        if not phase.is_from_state and (missing := [name for name in valid_names if name not in phase.weights]):
            raise UsageError(f"the mixture has no weight for {missing[0]}", help="give it the weight 0 to leave it out")
    return phases


def _weigh_by_epochs(datasets: list[StreamDataset], epochs: Weights, valid_names: list[str]) -> WeightPhase:
    """Weigh each lane by its rows and how often it is read."""
    for name in epochs:
        check_choice("a source of the mixture", name, valid_names)
    if missing := [name for name in valid_names if name not in epochs]:
        raise UsageError(f"the mixture has no epochs for {missing[0]}", help="give it 0 to leave it out")
    weights = {}
    for dataset in datasets:
        for lane in dataset.lanes:
            count = epochs[lane.name] if lane.name in epochs else epochs[dataset.name]
            weights[lane.name] = check_real_number(f"the epochs of {lane.name}", count) * lane.rows
    return WeightPhase(0, weights, is_from_state=True)


def _find_default_phases(datasets: list[StreamDataset]) -> list[WeightPhase] | None:
    """Find the mixture in the manifest of the dataset."""
    with_mixture = [dataset for dataset in datasets if dataset.shares is not None]
    if not with_mixture:
        return None
    if len(datasets) > 1:
        raise UsageError(
            f"{with_mixture[0].name} has its own mixture, but the datasets have no weights: each row once would be "
            "another mixture",
            help=f'give every dataset a weight: {{"{datasets[0].name}": ("{datasets[0].name}", 0.5), …}}',
        )
    return [WeightPhase(0, _find_shares(datasets[0]))]


def parse_phases(mixture: object) -> list[WeightPhase]:
    """Parse weights, or phases of weights. Phases from `state["phases"]` are not changed."""
    if isinstance(mixture, Mapping):
        return [WeightPhase(0, mixture)]
    try:
        entries = [tuple(entry) for entry in mixture]  # type: ignore[attr-defined]
    except TypeError:
        entries = [()]
    phases = []
    for entry in entries:
        if len(entry) not in (2, 3) or not isinstance(entry[1], Mapping) or entry[2:] not in ((), (COUNTS,)):
            raise UsageError(
                f"a mixture must be weights or a list of phases, not {mixture!r:.80}",
                help='for example [(0, {"web": 1.0}), (1_000_000, {"web": 0.5, "code": 0.5})]',
            )
        phases.append(WeightPhase(check_whole_number("the row of a phase", entry[0]), entry[1], len(entry) == 3))
    return phases


def _weigh_lanes(datasets: list[StreamDataset], weights: Weights) -> dict[str, float]:
    """Divide the weight of each dataset among its lanes by the manifest's mixture."""
    lane_weights: dict[str, float] = {}
    for dataset in datasets:
        weight = weights.get(dataset.name, 0.0) if dataset.name else 0.0
        shares = _find_shares(dataset) if weight and dataset.shares is not None else {}
        for lane in dataset.lanes:
            share = shares[lane.name] / sum(shares.values()) if shares else 1.0
            lane_weights[lane.name] = weights[lane.name] if lane.name in weights else weight * share
    return lane_weights


def _find_shares(dataset: StreamDataset) -> dict[str, float]:
    """Find the shares of a dataset's lanes in its manifest. A source without rows in this split has none."""
    shares = dataset.shares or {}
    if not any(shares.values()):
        raise UsageError(
            f"the mixture of {dataset.name or 'the dataset'} has no weight for a source with rows in {dataset.split}",
            help='set the weights: mixture={"web": 0.7, …}',
        )
    return shares


def find_left_out(datasets: list[StreamDataset], arguments: StreamArguments) -> dict[str, str]:
    """Find the sources that the mixture of a manifest leaves out, and why."""
    if arguments.mixture is not None and not isinstance(arguments.data, Mapping):
        return {}
    reasons = {}
    for dataset in datasets:
        shards = dataset.manifest.splits.get(dataset.split, {})
        for source in dataset.manifest.mixture or ():
            if source not in shards and (arguments.sources is None or source in arguments.sources):
                reasons[make_lane_name(dataset.name, source)] = f"no rows in {dataset.split}"
        for lane in dataset.lanes:
            if dataset.shares is not None and not dataset.shares[lane.name]:
                reasons[lane.name] = (
                    "no weight in the dataset's mixture" if lane.rows else f"no rows in {dataset.split}"
                )
    return reasons


def _convert_to_rows(weights: Weights, lanes: list[Lane], row_length: int | None) -> dict[str, float]:
    """Convert shares of tokens to shares of rows: a source whose rows are half as long needs twice as many."""
    row_weights = {}
    for lane in lanes:
        if weight := weights.get(lane.name):
            tokens = lane.tokens(row_length)
            row_weights[lane.name] = weight * lane.rows / tokens if tokens else weight
    return row_weights


def find_end_row(arguments: StreamArguments, lanes: list[Lane], order: RowOrder, row_length: int | None) -> int | None:
    """Find the number of rows until the end; None: the stream is endless."""
    if arguments.rows is not None:
        return arguments.rows
    if arguments.epochs is not None and arguments.rows_per_epoch is not None:
        return check_whole_number(
            "the number of rows in all epochs", math.ceil(arguments.epochs * arguments.rows_per_epoch)
        )
    if arguments.epochs is not None:
        used = order.mixture.sources if order.mixture is not None else [lane.name for lane in lanes]
        rows = math.ceil(arguments.epochs * sum(lane.rows for lane in lanes if lane.name in used))
        return check_whole_number("the number of rows in all epochs", rows, least=1)
    if arguments.tokens is not None:
        return _count_rows_for(arguments.tokens, lanes, order, row_length)
    return None


def find_epoch_rows(arguments: StreamArguments, lanes: list[Lane], order: RowOrder) -> int | None:
    """Find the rows of one epoch; None: the stream is one pass.

    Sources with weights end at different rows, so only the user can define an epoch for all of them.
    """
    if arguments.rows_per_epoch is not None or arguments.epochs is None or order.mixture is not None:
        return arguments.rows_per_epoch
    return sum(lane.rows for lane in lanes)


def _count_rows_for(tokens: int, lanes: list[Lane], order: RowOrder, row_length: int | None) -> int:
    """Find the fewest rows that hold this many tokens, by bisection, if every row has the mean length of its source."""
    means = [lane.tokens(row_length) / lane.rows if lane.rows else 0.0 for lane in lanes]

    def count_tokens(rows: int) -> float:
        return sum(mean * draws for mean, draws in zip(means, order.draws_before(rows), strict=True))

    if not any(means):
        raise UsageError("the rows of this stream hold no tokens", help="set an end with rows=")
    enough = 1
    while count_tokens(enough) < tokens:
        if enough >= MAX_COUNT // 2:
            raise UsageError(f"no number of rows holds {tokens:,} tokens", help="set an end with rows=")
        enough *= 2
    low = enough // 2
    while low + 1 < enough:
        middle = (low + enough) // 2
        if count_tokens(middle) < tokens:
            low = middle
        else:
            enough = middle
    return enough


def check_max_epochs(
    limits: float | Mapping[str, float] | None, lanes: list[Lane], order: RowOrder, num_rows: int | None
) -> None:
    """Refuse an end that reads a source too often; name the source and the missing rows."""
    if limits is None:
        return
    if num_rows is None:
        raise UsageError(
            "max_epochs needs an end: an endless stream repeats every source", help="set an end with rows="
        )
    if isinstance(limits, Mapping):
        for name in limits:
            check_choice("a source in max_epochs", name, [lane.name for lane in lanes])
    for lane, draws in zip(lanes, order.draws_before(num_rows), strict=True):
        limit = limits.get(lane.name) if isinstance(limits, Mapping) else limits
        if limit is not None and draws > limit * lane.rows:
            missing = draws - math.floor(limit * lane.rows)
            raise UsageError(
                f"source {lane.name or 'all'} is read {draws / lane.rows:.3g} times in {num_rows:,} rows, more than "
                f"max_epochs {limit:g}: it is {missing:,} rows short",
                help=f"end earlier, lower its weight by {1 - limit * lane.rows / draws:.1%}, or raise max_epochs",
                source=lane.name,
                missing=missing,
            )
