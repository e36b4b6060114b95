"""The state of a stream: the next row, and what guards its meaning.

One number says where a run goes on. All else is there so that the number is not taken for a row of something else: of
other data, in another order, under other weights in the past.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.numbers import MAX_COUNT
from gristmill.order import ORDER_VERSION
from gristmill.stream.mixing import COUNTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gristmill.stream.row_order import RowOrder

Phases = list[tuple[int, dict[str, int], Literal["counts"]]]

_MEANINGS = {
    "order_version": "the order of rows is another in this version of Gristmill",
    "dataset_hash": "the data are not those that the state was saved with (or another split, or other sources)",
    "seed": "the seed is not the one that the state was saved with",
    "mixture_hash": "the rows so far were drawn with other weights, or with another `shuffle`",
}


class StreamState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `Stream.state_dict` gives, as a dict of plain numbers and strings."""

    row: int
    seed: int
    order_version: int
    mixture_hash: str
    dataset_hash: str
    phases: Phases
    """Rows of each lane in 65,536, from each row on; empty where there are no weights. `Stream(mixture=…)` takes them
    again, whatever the units of its weights are: "counts" says that they are exact."""


def make_state(row: int, order: RowOrder, *, seed: int, shuffle: bool, dataset_hash: str) -> StreamState:
    """The state before `row`."""
    known = [] if order.mixture is None else order.mixture.phases
    phases: Phases = [(phase.first_row, phase.counts, COUNTS) for phase in known]
    return StreamState(
        row=row,
        seed=seed,
        order_version=ORDER_VERSION,
        mixture_hash=_past_hash(row, phases, weighted=order.mixture is not None, shuffle=shuffle),
        dataset_hash=dataset_hash,
        phases=phases,
    )


def parse_state(state: Mapping[str, Any]) -> StreamState:
    """A state from what was saved, perhaps as JSON."""
    try:
        parsed = msgspec.convert(dict(state), StreamState)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise UsageError(f"this is not the state of a stream: {error}") from None
    if not 0 <= parsed.row <= MAX_COUNT:
        raise UsageError(f"this is not the state of a stream: row {parsed.row}")
    return parsed


def check_same_stream(saved: StreamState, ours: StreamState, ignore: Collection[str]) -> None:
    """Refuse a state of another stream; `ours` is this stream's at the same row."""
    for name in ignore:
        if name not in _MEANINGS:
            raise UsageError(f"ignore names {', '.join(_MEANINGS)}, not {name!r}")
    for name, meaning in _MEANINGS.items():
        was, now = getattr(saved, name), getattr(ours, name)
        if was != now and name not in ignore:
            raise UsageError(
                f"the state does not fit this stream: {meaning} ({name} was {was}, is {now})",
                help=_advice(name, saved),
                field=name,
            )


def _advice(name: str, saved: StreamState) -> str:
    override = f'or go on with other rows on purpose: ignore=["{name}"]'
    if name == "mixture_hash" and saved.phases:
        change = f"append ({saved.row}, weights) to change them from here on"
        return f"start with mixture={saved.phases} and {change}, {override}"
    return f"open the stream as it was, {override}"


def _past_hash(row: int, phases: Phases, *, weighted: bool, shuffle: bool) -> str:
    """Of the weights that rows before `row` were drawn with: what comes later may still be changed."""
    past = [[first, sorted(counts.items())] for first, counts, _ in phases if first < row]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode([weighted, shuffle, past]))
