"""The state of a stream: the next row, and what protects its meaning.

One number says where a run resumes. All other fields ensure that the number is not used for something else: other data,
another order, or other weights in the past.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import xxhash

from gristmill.core.errors import UsageError
from gristmill.core.numbers import MAX_COUNT
from gristmill.order import ORDER_VERSION
from gristmill.stream.lanes.mixing import COUNTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gristmill.stream.lanes.row_order import RowOrder

Phases = list[tuple[int, dict[str, int], Literal["counts"]]]

_MEANINGS = {
    "order_version": "this version of Gristmill has another order of rows",
    "dataset_hash": "the data, the split or the sources differ from those that the state was saved with",
    "seed": "the seed differs from the one that the state was saved with",
    "mixture_hash": "earlier rows were drawn with other weights, or with another `shuffle`",
}


class StreamState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of `Stream.state_dict`: plain numbers and strings."""

    row: int
    seed: int
    order_version: int
    mixture_hash: str
    dataset_hash: str
    phases: Phases
    """The rows of each lane among 65,536, from each row on; empty without weights. `Stream(mixture=…)` accepts them,
    whatever the unit of its weights: "counts" says that they are exact."""


def make_state(
    row: int, order: RowOrder, *, seed: int, shuffle: bool | dict[str, int], dataset_hash: str
) -> StreamState:
    """Make the state before `row`."""
    mixture_phases = [] if order.mixture is None else order.mixture.phases
    phases: Phases = [(phase.first_row, phase.counts, COUNTS) for phase in mixture_phases]
    return StreamState(
        row=row,
        seed=seed,
        order_version=ORDER_VERSION,
        mixture_hash=_hash_past(row, phases, weighted=order.mixture is not None, shuffle=shuffle),
        dataset_hash=dataset_hash,
        phases=phases,
    )


def parse_state(state: Mapping[str, Any]) -> StreamState:
    """Parse a saved state, perhaps from JSON."""
    try:
        parsed = msgspec.convert(dict(state), StreamState)
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
    if name == "dataset_hash":
        override += "; tars and tables that were only touched or copied count as other files, with the same rows"
    return f"open the stream as it was, {override}"


def _hash_past(row: int, phases: Phases, *, weighted: bool, shuffle: bool | dict[str, int]) -> str:
    """Hash the weights of the rows before `row`. Later weights may still be changed."""
    past = [[first, sorted(counts.items())] for first, counts, _ in phases if first < row]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode([weighted, shuffle, past]))
