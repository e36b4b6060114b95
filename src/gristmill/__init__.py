"""Raw corpora in, GPU-ready training batches out, and proof that nothing was lost on the way.

Importing this package loads nothing else: each public name is fetched from its module at first use.
"""

TYPE_CHECKING = False  # as in typing, which every worker would otherwise import here
if TYPE_CHECKING:
    from gristmill import steps
    from gristmill.core import errors
    from gristmill.core.recipe import Recipe, Source
    from gristmill.engine.failure import Failure
    from gristmill.engine.observing.events import EventLog
    from gristmill.engine.parallel_map import parallel_imap, parallel_map
    from gristmill.pipeline.api import plan, run
    from gristmill.pipeline.inspecting.viewing import view
    from gristmill.pipeline.jobs.export import export
    from gristmill.pipeline.jobs.mix import mix
    from gristmill.pipeline.jobs.tokenizer_jobs import train_tokenizer
    from gristmill.recipe.dump import dump_recipe
    from gristmill.recipe.load import load_recipe
    from gristmill.shards.dataset import open_dataset

__version__ = "0.1.0"

__all__ = [
    "EventLog",
    "Failure",
    "Recipe",
    "Source",
    "__version__",
    "dump_recipe",
    "errors",
    "export",
    "load_recipe",
    "mix",
    "open_dataset",
    "parallel_imap",
    "parallel_map",
    "plan",
    "run",
    "steps",
    "train_tokenizer",
    "view",
]

_HOMES = {
    "EventLog": "gristmill.engine.observing.events",
    "Failure": "gristmill.engine.failure",
    "Recipe": "gristmill.core.recipe",
    "Source": "gristmill.core.recipe",
    "dump_recipe": "gristmill.recipe.dump",
    "errors": "gristmill.core.errors",
    "export": "gristmill.pipeline.jobs.export",
    "load_recipe": "gristmill.recipe.load",
    "mix": "gristmill.pipeline.jobs.mix",
    "open_dataset": "gristmill.shards.dataset",
    "parallel_imap": "gristmill.engine.parallel_map",
    "parallel_map": "gristmill.engine.parallel_map",
    "plan": "gristmill.pipeline.api",
    "run": "gristmill.pipeline.api",
    "steps": "gristmill.steps",
    "train_tokenizer": "gristmill.pipeline.jobs.tokenizer_jobs",
    "view": "gristmill.pipeline.inspecting.viewing",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    module = import_module(_HOMES[name])
    value = globals()[name] = getattr(module, name, module)  # the module itself for `errors` and `steps`
    return value


def __dir__() -> list[str]:
    return __all__
