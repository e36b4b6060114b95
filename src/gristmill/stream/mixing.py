"""Weights as the user gives them into a mixture of lanes, and where the stream ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.names import one_of
from gristmill.order import Mixture

if TYPE_CHECKING:
    from gristmill.stream.arguments import StreamArguments
    from gristmill.stream.row_order import RowOrder
    from gristmill.stream.sources import Lane, Part

Weights = Mapping[str, float]
MixtureLike = Weights | Sequence[tuple[int, Weights]]


def mixture_of(parts: list[Part], given: StreamArguments, row_length: int | None) -> Mixture | None:
    """The mixture over all lanes; None where there is one lane only and no weight."""
    lanes = [lane for part in parts for lane in part.lanes]
    phases = _phases(parts, given)
    if phases is None:
        return None
    by_lane = [(row, _of_lanes(parts, weights)) for row, weights in phases]
    if given.weights_in == "tokens":
        by_lane = [(row, _in_rows(weights, lanes, row_length)) for row, weights in by_lane]
    empty = {lane.name for lane in lanes if not lane.rows}
    for name in empty & {name for _, weights in by_lane for name, weight in weights.items() if weight}:
        raise UsageError(f"source {name} has a weight, but no rows", help="leave it out, or give it the weight 0")
    return Mixture(by_lane)


def _phases(parts: list[Part], given: StreamArguments) -> list[tuple[int, Weights]] | None:
    """Weights by part, or by lane where there is one part; None: there are none."""
    mixture = given.mixture
    if isinstance(given.data, Mapping):
        with_weight = {name: entry[1] for name, entry in given.data.items() if isinstance(entry, tuple)}
        if mixture is None and with_weight:
            mixture = with_weight
        elif with_weight:
            raise UsageError("weights stand beside the folders or in `mixture`, not in both")
    known = [part.name for part in parts] if isinstance(given.data, Mapping) else [x.name for x in parts[0].lanes]
    if mixture is None:
        return None if parts[0].shares is None or len(parts) > 1 else [(0, parts[0].shares)]
    phases = [(0, mixture)] if isinstance(mixture, Mapping) else [(int(row), weights) for row, weights in mixture]
    lane_names = {lane.name for part in parts for lane in part.lanes}
    named = {name for _, weights in phases for name in weights}
    if named <= lane_names and not named <= set(known):
        return phases  # a state's phases: they are of lanes already
    for name in named:
        one_of("a source of the mixture", name, known)
    for name in known:
        if name not in named:
            raise UsageError(f"the mixture has no weight for {name}", help="give it the weight 0 to leave it out")
    return phases


def _of_lanes(parts: list[Part], weights: Weights) -> dict[str, float]:
    """A part's weight, shared out among its lanes by the manifest's mixture."""
    found: dict[str, float] = {}
    for part in parts:
        total = sum((part.shares or {}).values()) or 1.0
        for lane in part.lanes:
            if lane.name in weights:
                found[lane.name] = weights[lane.name]
            elif part.name in weights:
                found[lane.name] = weights[part.name] * (part.shares[lane.name] / total if part.shares else 1.0)
    return found


def _in_rows(weights: Weights, lanes: list[Lane], row_length: int | None) -> dict[str, float]:
    """Shares of tokens as shares of rows: a source of half as long rows needs twice as many."""
    found = {}
    for lane in lanes:
        if weight := weights.get(lane.name):
            tokens = lane.tokens(row_length)
            found[lane.name] = weight * lane.rows / tokens if tokens else weight
    return found


def horizon(given: StreamArguments, lanes: list[Lane], order: RowOrder, row_length: int | None) -> int | None:
    """How many rows the stream has; None: it is endless."""
    if given.rows is not None:
        return given.rows
    if given.epochs is not None:
        used = order.mixture.sources if order.mixture is not None else [lane.name for lane in lanes]
        return math.ceil(given.epochs * sum(lane.rows for lane in lanes if lane.name in used))
    if given.tokens is not None:
        return _rows_for(given.tokens, lanes, order, row_length)
    return None


def _rows_for(tokens: int, lanes: list[Lane], order: RowOrder, row_length: int | None) -> int:
    """The fewest rows that hold so many tokens, if every row of a source were its mean; found by halving."""
    means = [lane.tokens(row_length) / lane.rows if lane.rows else 0.0 for lane in lanes]

    def held(rows: int) -> float:
        return sum(mean * draws for mean, draws in zip(means, order.draws_before(rows), strict=True))

    if not any(means):
        raise UsageError("the rows of this stream hold no tokens", help="give it an end in rows=")
    enough = 1
    while held(enough) < tokens:
        enough *= 2
    low = enough // 2
    while low + 1 < enough:
        middle = (low + enough) // 2
        if held(middle) < tokens:
            low = middle
        else:
            enough = middle
    return enough


def check_max_epochs(
    given: float | Mapping[str, float] | None, lanes: list[Lane], order: RowOrder, num_rows: int | None
) -> None:
    """Refuse an end that reads a source too often, and say which and by how much."""
    if given is None:
        return
    if num_rows is None:
        raise UsageError("max_epochs needs an end: an endless stream reads everything again", help="give it rows=")
    if isinstance(given, Mapping):
        for name in given:
            one_of("a source in max_epochs", name, [lane.name for lane in lanes])
    for lane, draws in zip(lanes, order.draws_before(num_rows), strict=True):
        limit = given.get(lane.name) if isinstance(given, Mapping) else given
        if limit is not None and draws > limit * lane.rows:
            missing = draws - math.floor(limit * lane.rows)
            raise UsageError(
                f"source {lane.name or 'all'} is read {draws / lane.rows:.3g} times in {num_rows:,} rows, more than "
                f"max_epochs {limit:g}: it is {missing:,} rows short",
                help=f"end earlier, lower its weight by {1 - limit * lane.rows / draws:.1%}, or raise max_epochs",
                source=lane.name,
                missing=missing,
            )
