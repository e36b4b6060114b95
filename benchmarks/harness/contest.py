"""A contest as data: the sides that do the same work, and what is claimed about them.

A side is a command that runs in a process of its own. Its cost is wall time, CPU time of all its processes, or seconds
that it measures itself, divided by the units of work it did (megabytes, chats, rows). So a slow peer may be given a
part of the input, and rates are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OURS = "gristmill"
Metric = Literal["wall", "cpu", "inner"]


@dataclass(frozen=True)
class Setting:
    """How large the contests are, and what they are fed with."""

    folder: Path
    """For inputs, outputs and environments; may grow to 30 GB with size `full`."""
    scale: float = 1.0
    """The share of the sizes in the table of figures: 1 for `full`, 0.1 for `small`, 0.01 for `smoke`."""
    with_peers: bool = True
    corpus: Path | None = None
    chats: Path | None = None
    tokenizer: Path | None = None

    def scaled(self, amount: float, *, at_least: float = 1) -> float:
        """Return an amount of size `full` at this size.

        >>> from pathlib import Path
        >>> Setting(Path("."), scale=0.01).scaled(400), Setting(Path("."), scale=0.01).scaled(40)
        (4.0, 1)
        """
        return max(at_least, amount * self.scale)

    @property
    def output(self) -> Path:
        """The folder that the running side writes to; emptied before each run."""
        return self.folder / "output"


@dataclass(frozen=True)
class Side:
    """One way to do the work: a command, and the environment that has what it needs."""

    name: str
    command: list[str]
    """The words after the interpreter."""
    environment: str = OURS
    """The name of a file in `benchmarks/peers`, or Gristmill's own environment."""
    units: float = 1.0
    """The work done, in the contest's unit; a side may print its own count."""
    max_rounds: int | None = None
    """Slow sides are not run in every round."""
    variables: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] | None = None
    """Called before each run, not timed."""


@dataclass(frozen=True)
class Ratio:
    """The claim that Gristmill does the work at least this many times faster than another side."""

    peer: str
    at_least: float | None
    metric: Metric = "wall"
    side: str = OURS


@dataclass(frozen=True)
class Limit:
    """The claim that a side costs at most so much."""

    what: str
    at_most: float | None
    unit: str
    """`s`, `s/GB`, `MiB` and so on, as printed."""
    value: Callable[[dict], float]
    """The value from one run of the side, see `Run.as_dict`."""
    side: str = OURS


@dataclass(frozen=True)
class Contest:
    """Sides that do the same work, and the claims about them."""

    name: str
    work: str
    make_sides: Callable[[Setting], list[Side]]
    claims: list[Ratio | Limit]
    unit: str = "MB"
    data: Callable[[Setting], str] = lambda _: ""
    """One line about the input."""
    rounds: int = 3
