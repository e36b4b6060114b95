"""The table of barriers: the only place that knows which barrier belongs to which global step.

The barrier of a step from an installed package is the package's entry point of the same name in `gristmill.barriers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError
from gristmill.pipeline.barriers.deduplicate.barrier import DeduplicateBarrier
from gristmill.pipeline.barriers.limit import LimitBarrier
from gristmill.pipeline.barriers.mix import MixBarrier
from gristmill.pipeline.barriers.shuffle import ShuffleBarrier
from gristmill.pipeline.barriers.split import SplitBarrier
from gristmill.runtime.plugins import BARRIER, GROUPS, find_plugin
from gristmill.steps.deduplicate.deduplicate import Deduplicate
from gristmill.steps.limit import Limit
from gristmill.steps.mix import Mix
from gristmill.steps.shuffle import Shuffle
from gristmill.steps.split import SplitByCount

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.core.step import GlobalStep
    from gristmill.pipeline.barriers.base import Barrier

BARRIERS: dict[type[GlobalStep], Callable[[Any], Barrier]] = {
    Deduplicate: DeduplicateBarrier,
    Limit: LimitBarrier,
    Mix: MixBarrier,
    Shuffle: ShuffleBarrier,
    SplitByCount: SplitBarrier,
}
"""By the class of a global step: what makes its barrier from the step. A subclass has the barrier of its base."""


def make_barrier(step: GlobalStep) -> Barrier:
    """Make the barrier of a step.

    Raises:
        UsageError: No barrier is registered for the step's class.
    """
    make = next((BARRIERS[base] for base in type(step).__mro__ if base in BARRIERS), None)
    if make is None:
        make = _load_barrier(step)
    return make(step)


def _load_barrier(step: GlobalStep) -> Callable[[Any], Barrier]:
    """Load the barrier of a step that is not built in."""
    plugin = find_plugin(BARRIER, step.name)
    if plugin is None:
        raise UsageError(
            f"step {step.name} needs all records at once, and no barrier is registered for {type(step).__name__}",
            help=f"give its package an entry point {step.name} in {GROUPS[BARRIER]}, or make it a LocalStep",
        )
    loaded = plugin.load()
    if not (isinstance(loaded, type) and callable(getattr(loaded, "pass_sources", None))):
        raise plugin.make_type_error(loaded, "a class with the method pass_sources")
    return loaded
