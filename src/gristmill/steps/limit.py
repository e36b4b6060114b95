"""`limit`: keep the first records of each source, in the order of their files."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar

from gristmill.core.errors import UsageError
from gristmill.core.splits import TRAIN
from gristmill.core.step import GlobalStep

if TYPE_CHECKING:
    from collections.abc import Iterable

OVER_LIMIT = "over_limit"
"""The reason for dropping the other records."""


class Limit(GlobalStep, tag="limit", frozen=True, kw_only=True):
    """Keep the first `max_records` training records of each source, in path order; drop the others as `over_limit`.

    Records of other splits than `train` are all kept.

    >>> Limit(max_records=5).shares([3, 0, 4, 2])
    [3, 0, 2, 0]
    """

    version: ClassVar[int] = 2
    needs_first_only: ClassVar[bool] = True

    max_records: int

    def applies_to_split(self, split: str) -> bool:
        """Whether the limit applies to the records of a split."""
        return split == TRAIN

    def max_first(self, split: str) -> int | None:
        return self.max_records if self.applies_to_split(split) else None

    def __post_init__(self) -> None:
        if self.max_records < 0:
            raise UsageError(f"max_records must be at least 0, not {self.max_records}")

    def shares(self, counts: Iterable[int]) -> list[int]:
        """Return how many of the first records to keep of each part of a source, from how many each part has."""
        ends = [0, *accumulate(counts)]
        bounded = [min(end, self.max_records) for end in ends]
        return [stop - start for start, stop in pairwise(bounded)]


class FirstRecords(Limit, tag="limit", frozen=True, kw_only=True):
    """The limit of a trial run (`--limit`): the first records of every split."""

    def applies_to_split(self, split: str) -> bool:  # noqa: ARG002
        return True
