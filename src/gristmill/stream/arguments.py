"""What a stream was asked for: all that travels to another process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.errors import UsageError
from gristmill.core.names import one_of

if TYPE_CHECKING:
    from gristmill.stream.collate import Collate


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
    max_epochs: Any
    drop_last: bool
    collate: Collate | None

    def __post_init__(self) -> None:
        one_of("weights_in", self.weights_in, ("rows", "tokens"))
        ends = {"epochs": self.epochs, "rows": self.rows, "tokens": self.tokens}
        given = {name: end for name, end in ends.items() if end is not None}
        if len(given) > 1:
            raise UsageError(f"a stream has one end, not {' and '.join(given)}")
        for name, end in given.items():
            if end <= 0:
                raise UsageError(f"{name} must be above 0, not {end}")
        if isinstance(self.sources, str):
            raise UsageError(f'sources is a list: ["{self.sources}"]')
        msgspec.structs.force_setattr(self, "data", _absolute(self.data))


def _absolute(data: Any) -> Any:
    """Paths that mean the same in another current folder."""
    if isinstance(data, Mapping):
        return {name: _absolute(given) for name, given in data.items()}
    if isinstance(data, tuple):
        return (_absolute(data[0]), *data[1:])
    path = os.fspath(data)
    return path if "://" in path else os.path.abspath(path)  # noqa: PTH100  (a Path would lose what is not normal)
