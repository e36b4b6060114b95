"""What a stream was asked for: all that travels to another process."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.numbers import check_bool, check_positive_number, check_real_number, check_seed, check_whole_number
from gristmill.stream.collate import Collate

MAX_BATCH = 1 << 24
"""Rows of a rank; and ranks."""


class StreamArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `Stream`, with absolute paths."""

    data: Any
    mixture: Any
    weights_in: str
    split: str | None
    sources: Any
    seed: int
    shuffle: bool
    epochs: float | None
    rows: int | None
    tokens: int | None
    rows_per_epoch: int | None
    max_epochs: Any
    drop_last: bool
    collate: Collate | None

    def __post_init__(self) -> None:
        check_choice("weights_in", self.weights_in, ("rows", "tokens"))
        if isinstance(self.sources, str) or not isinstance(self.sources, Collection | None):
            raise UsageError(f'sources is a list, not {self.sources!r:.80}: ["web"]')
        if not isinstance(self.collate, Collate | None):
            raise UsageError(f"collate must be a Collate, not {self.collate!r:.80}")
        ends = {"epochs": self.epochs, "rows": self.rows, "tokens": self.tokens}
        given = {name: _end(name, end) for name, end in ends.items() if end is not None}
        if len(given) > 1:
            raise UsageError(f"a stream has one end, not {' and '.join(given)}")
        changes = {
            "data": _absolute(self.data),
            "mixture": self.mixture if isinstance(self.mixture, Mapping) else self.mixture or None,
            "seed": check_seed(self.seed),
            "shuffle": check_bool("shuffle", self.shuffle),
            "drop_last": check_bool("drop_last", self.drop_last),
            "max_epochs": _limits(self.max_epochs),
            **given,
        }
        if self.rows_per_epoch is not None:
            changes["rows_per_epoch"] = check_whole_number("rows_per_epoch", self.rows_per_epoch, least=1)
        for name, value in changes.items():
            msgspec.structs.force_setattr(self, name, value)

    @property
    def end(self) -> tuple[str, float]:
        """Which of `epochs`, `rows` and `tokens` ends the stream, and its value; infinite where none does."""
        ends = {"epochs": self.epochs, "rows": self.rows, "tokens": self.tokens}
        return next(((name, end) for name, end in ends.items() if end is not None), ("rows", math.inf))


def _end(name: str, end: Any) -> float:
    return check_positive_number(name, end) if name == "epochs" else check_whole_number(name, end, least=1)


def _limits(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: check_real_number(f"max_epochs of {name}", limit) for name, limit in given.items()}
    return None if given is None else check_real_number("max_epochs", given)


def _absolute(data: Any) -> Any:
    """Paths that mean the same in another current folder."""
    if isinstance(data, Mapping):
        return {str(name): _with_weight(name, given) for name, given in data.items()}
    path = os.fspath(data) if isinstance(data, str | os.PathLike) else data
    if not isinstance(path, str):
        raise UsageError(
            f"a dataset is a folder, not {data!r:.80}", help='several are given by name: {"web": ("out/web", 0.7), …}'
        )
    return path if "://" in path else os.path.abspath(path)  # noqa: PTH100  (a Path would lose what is not normal)


def _with_weight(name: object, given: Any) -> Any:
    if not isinstance(given, tuple):
        return _absolute(given)
    if len(given) != 2:
        raise UsageError(f"{name} is a folder and its weight, not {given!r:.80}", help='("out/web", 0.7)')
    return _absolute(given[0]), check_real_number(f"the weight of {name}", given[1])


def check_ranks(batch_size: int, rank: int, world_size: int) -> tuple[int, int, int]:
    """The same as plain numbers; what no trainer means is refused."""
    batch_size = check_whole_number("batch_size", batch_size, least=1, most=MAX_BATCH)
    world_size = check_whole_number("world_size", world_size, least=1, most=MAX_BATCH)
    rank = check_whole_number("rank", rank)
    if rank >= world_size:
        raise UsageError(f"rank {rank} is not one of {world_size}", help="ranks are counted from 0 to world_size - 1")
    return batch_size, rank, world_size
