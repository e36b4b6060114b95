"""The names of steps in recipes and their classes. A class is imported when a recipe names it, not before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.core.names import find_nearest

if TYPE_CHECKING:
    from gristmill.core.step import Step


def _recipe_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


# `read` is how a source begins, not a step in a list.
STEPS = {_recipe_name(name): name for name in steps.__all__ if name != "Read"}


def step_class(name: str) -> type[Step]:
    """Return the class of a step by its name in recipes.

    >>> step_class("map_batches").__name__
    'MapBatches'
    """
    if name not in STEPS:
        if name == "read":
            raise UsageError("read is not a step: it starts a source", help="put it under sources")
        meant = find_nearest(name, STEPS)
        raise UsageError(
            f'there is no step "{name}"',
            help=f'did you mean "{meant}"?' if meant else f"the steps are {', '.join(STEPS)}",
        )
    step_type: type[Step] = getattr(steps, STEPS[name])
    return step_type
