"""Which data-parallel rank this process is."""

from __future__ import annotations

import os

import torch.distributed

from gristmill.core.errors import UsageError
from gristmill.stream.arguments import check_ranks


class Ranks:
    """The rank and the number of ranks, as given; else looked up whenever they are asked for.

    A trainer may start its process group after the dataset was made: Lightning does.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        if (rank is None) != (world_size is None):
            raise UsageError("give both rank and world_size, or neither")
        self._given = None
        if rank is not None and world_size is not None:
            _, rank, world_size = check_ranks(1, rank, world_size)
            self._given = rank, world_size
        else:
            find_ranks()  # what cannot be is refused now

    @property
    def rank(self) -> int:
        return (self._given or find_ranks())[0]

    @property
    def world_size(self) -> int:
        return (self._given or find_ranks())[1]

    def __reduce__(self) -> tuple[type[Ranks], tuple[int, int]]:
        # Where it is unpickled, in a worker, there is no process group.
        return Ranks, (self.rank, self.world_size)


def find_ranks() -> tuple[int, int]:
    """As `torch.distributed` says; else as the environment does (torchrun); else alone.

    With tensor or pipeline parallelism several processes must get the same rows: give their data-parallel rank.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    given = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in given:
        return 0, 1
    try:
        rank, world_size = int(given[0] or ""), int(given[1] or "")
    except ValueError:
        raise UsageError(f"RANK and WORLD_SIZE must be numbers, not {given[0]!r} and {given[1]!r}") from None
    check_ranks(1, rank, world_size)
    return rank, world_size
