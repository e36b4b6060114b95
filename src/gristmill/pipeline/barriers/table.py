"""The table of barriers: the only place that knows which barrier belongs to which global step.

The barrier of a step from an installed package is the package's entry point of the same name in `gristmill.barriers`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import UsageError
from gristmill.pipeline.barriers.base import AnnotatingBarrier
from gristmill.runtime.plugins import BARRIER, GROUPS, find_plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.core.step import GlobalStep
    from gristmill.pipeline.barriers.base import Barrier
    from gristmill.pipeline.stages.outputs.split_files import Annotator

BARRIERS: dict[str, str] = {
    "gristmill.steps.decontaminate.decontaminate.Decontaminate": (
        "gristmill.pipeline.barriers.decontaminate.barrier.DecontaminateBarrier"
    ),
    "gristmill.steps.deduplicate.deduplicate.Deduplicate": (
        "gristmill.pipeline.barriers.deduplicate.barrier.DeduplicateBarrier"
    ),
    "gristmill.steps.deduplicate.deduplicate.DeduplicatePieces": (
        "gristmill.pipeline.barriers.pieces.barrier.PiecesBarrier"
    ),
    "gristmill.steps.limit.Limit": "gristmill.pipeline.barriers.limit.LimitBarrier",
    "gristmill.steps.mix.Mix": "gristmill.pipeline.barriers.mix.MixBarrier",
    "gristmill.steps.shuffle.Shuffle": "gristmill.pipeline.barriers.shuffle.ShuffleBarrier",
    "gristmill.steps.split.SplitByCount": "gristmill.pipeline.barriers.split.SplitBarrier",
}
"""By the class of a global step: the class that makes its barrier from the step, imported when a recipe needs it. A
subclass has the barrier of its base."""


def make_barrier(step: GlobalStep) -> Barrier:
    """Make the barrier of a step.

    Raises:
        UsageError: No barrier is registered for the step's class.
    """
    bases = (f"{base.__module__}.{base.__qualname__}" for base in type(step).__mro__)
    home = next((BARRIERS[base] for base in bases if base in BARRIERS), None)
    make = _load_plugin_barrier(step) if home is None else _import_barrier(home)
    return make(step)


def find_annotator(step: GlobalStep) -> Annotator | None:
    """Find what notes for the step's barrier what it has to know of records, while the stage before it runs."""
    barrier = make_barrier(step)
    return barrier.annotator if isinstance(barrier, AnnotatingBarrier) else None


def _import_barrier(home: str) -> Callable[[Any], Barrier]:
    module, _, name = home.rpartition(".")
    barrier: Callable[[Any], Barrier] = getattr(import_module(module), name)
    return barrier


def _load_plugin_barrier(step: GlobalStep) -> Callable[[Any], Barrier]:
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
