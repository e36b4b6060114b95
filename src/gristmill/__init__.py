"""Raw corpora in, GPU-ready training batches out, and proof that nothing was lost on the way.

Importing this package loads nothing else: each public name is fetched from its module at first use.
"""

TYPE_CHECKING = False  # as in typing, which every worker would otherwise import here
if TYPE_CHECKING:
    from gristmill.core import errors
    from gristmill.engine.events import EventLog
    from gristmill.engine.failure import Failure
    from gristmill.engine.parallel_map import parallel_imap, parallel_map

__version__ = "0.1.0.dev0"

__all__ = ["EventLog", "Failure", "__version__", "errors", "parallel_imap", "parallel_map"]

_HOMES = {
    "EventLog": "gristmill.engine.events",
    "Failure": "gristmill.engine.failure",
    "errors": "gristmill.core.errors",
    "parallel_imap": "gristmill.engine.parallel_map",
    "parallel_map": "gristmill.engine.parallel_map",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    module = import_module(_HOMES[name])
    value = globals()[name] = getattr(module, name, module)  # the module itself for `errors`
    return value


def __dir__() -> list[str]:
    return __all__
