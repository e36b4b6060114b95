"""Which data-parallel rank this process is."""

from __future__ import annotations

import os

import torch.distributed

from gristmill.core.errors import UsageError


def find_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """As given; else as `torch.distributed` says; else as the environment does (torchrun); else alone.

    With tensor or pipeline parallelism several processes must get the same rows: give their data-parallel rank.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("give both rank and world_size, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    given = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in given:
        return 0, 1
    try:
        return int(given[0] or ""), int(given[1] or "")
    except ValueError:
        raise UsageError(f"RANK and WORLD_SIZE must be numbers, not {given[0]!r} and {given[1]!r}") from None
