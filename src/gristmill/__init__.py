"""Raw corpora in, GPU-ready training batches out, and proof that nothing was lost on the way.

Importing this package loads none of it: each public name is fetched from its module at first use.
"""

from gristmill.runtime import fetch_at_first_use

TYPE_CHECKING = False  # as in typing, which every worker would otherwise import here
if TYPE_CHECKING:
    from gristmill import steps as steps
    from gristmill.core import errors as errors
    from gristmill.core.recipe import Recipe as Recipe
    from gristmill.core.recipe import Source as Source
    from gristmill.engine.failure_report import Failure as Failure
    from gristmill.engine.observer import EventLog as EventLog
    from gristmill.engine.parallel_map import parallel_imap as parallel_imap
    from gristmill.engine.parallel_map import parallel_map as parallel_map
    from gristmill.pipeline.api import plan as plan
    from gristmill.pipeline.api import run as run
    from gristmill.pipeline.inspecting.viewing import view as view
    from gristmill.pipeline.jobs.export import export as export
    from gristmill.pipeline.jobs.mix_datasets import mix as mix
    from gristmill.pipeline.jobs.training_jobs import train_tokenizer as train_tokenizer
    from gristmill.recipe.dump import dump_recipe as dump_recipe
    from gristmill.recipe.load import load_recipe as load_recipe
    from gristmill.shards.dataset import open_dataset as open_dataset

__version__ = "0.1.0"

_MODULES = {
    "core.errors": "errors",
    "core.recipe": "Recipe Source",
    "engine.failure_report": "Failure",
    "engine.observer": "EventLog",
    "engine.parallel_map": "parallel_imap parallel_map",
    "pipeline.api": "plan run",
    "pipeline.inspecting.viewing": "view",
    "pipeline.jobs.export": "export",
    "pipeline.jobs.mix_datasets": "mix",
    "pipeline.jobs.training_jobs": "train_tokenizer",
    "recipe.dump": "dump_recipe",
    "recipe.load": "load_recipe",
    "shards.dataset": "open_dataset",
    "steps": "steps",
}
__getattr__, __dir__, __all__ = fetch_at_first_use(__name__, _MODULES)
__all__ += ["__version__"]
