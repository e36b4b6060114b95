"""The names of steps in recipes and their classes. A class is imported when a recipe names it, not before.

A step is built in, or comes from an installed package (`runtime.plugins`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.core.names import find_nearest
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.runtime.plugins import STEP, find_plugin, list_plugin_names, refuse_shadowed

if TYPE_CHECKING:
    from gristmill.core.step import Step
    from gristmill.runtime.plugins import Plugin


def _find_recipe_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


# `read` is how a source begins, not a step in a list.
STEPS = {_find_recipe_name(name): name for name in steps.__all__ if name != "Read"}


def step_class(name: str) -> type[Step]:
    """Return the class of a step by its name in recipes.

    >>> step_class("map_batches").__name__
    'MapBatches'
    """
    if name == "read":
        raise UsageError("read is not a step: it starts a source", help="put it under sources")
    if name in STEPS:
        refuse_shadowed(STEP, name)
        step_type: type[Step] = getattr(steps, STEPS[name])
        return step_type
    plugin = find_plugin(STEP, name)
    if plugin is not None:
        return _load_step(plugin)
    names = [*STEPS, *list_plugin_names(STEP)]
    meant = find_nearest(name, names)
    raise UsageError(
        f'there is no step "{name}"',
        help=f'did you mean "{meant}"?' if meant else f"the steps are {', '.join(names)}",
        unknown_step=name,
    )


def _load_step(plugin: Plugin) -> type[Step]:
    loaded = plugin.load()
    if not (isinstance(loaded, type) and issubclass(loaded, (LocalStep, GlobalStep))):
        raise plugin.make_type_error(loaded, "a class derived from LocalStep, FilterStep or GlobalStep")
    tag = loaded.__struct_config__.tag
    if tag != plugin.name:
        raise UsageError(
            f"{plugin}: the tag of {loaded.__name__} is {tag!r}, so manifests and books would name it otherwise",
            help=f'write class {loaded.__name__}(…, tag="{plugin.name}")',
        )
    return loaded
