"""The data-parallel rank of this process."""

from __future__ import annotations

import os

import torch.distributed

from gristmill.core.errors import UsageError
from gristmill.stream.lanes.arguments import check_ranks


class Ranks:
    """The rank and the number of ranks. If they are not set, they are looked up at each use.

    A trainer may start its process group after the dataset was made, as Lightning does.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        if (rank is None) != (world_size is None):
            raise UsageError("set both rank and world_size, or neither")
        self._fixed = None
        if rank is not None and world_size is not None:
            _, rank, world_size = check_ranks(1, rank, world_size)
            self._fixed = rank, world_size
        else:
            find_ranks()  # an invalid environment is refused now

    @property
    def rank(self) -> int:
        return (self._fixed or find_ranks())[0]

    @property
    def world_size(self) -> int:
        return (self._fixed or find_ranks())[1]

    def __reduce__(self) -> tuple[type[Ranks], tuple[int, int]]:
        # A worker, where this is unpickled, has no process group.
        return Ranks, (self.rank, self.world_size)


def find_ranks() -> tuple[int, int]:
    """Find the rank and the world size: from `torch.distributed`, else from the environment (torchrun), else 0 of 1.

    With tensor or pipeline parallelism several processes must read the same rows: set their data-parallel rank.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    values = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in values:
        return 0, 1
    try:
        rank, world_size = int(values[0] or ""), int(values[1] or "")
    except ValueError:
        raise UsageError(f"RANK and WORLD_SIZE must be numbers, not {values[0]!r} and {values[1]!r}") from None
    check_ranks(1, rank, world_size)
    return rank, world_size
