"""Makes the functions of `pyarrow.compute` when they are first used.

Its import makes 290 functions with signatures and documentation, of which a run uses some dozen: an eighth of what a
worker takes to import everything. Here the module is imported with an empty registry, and asks for what is missing by
its own `__getattr__`. This is only for processes of our own: a user's process gets the module as it is.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

_NAMES = {"and_": "and", "or_": "or"}
"""Functions whose names would be keywords."""
_NEEDED_BY_IMPORT = ["utf8_zero_fill"]
_COUNTS_ROWS = ("scalar_aggregate", 0)


class _NearlyEmptyRegistry:
    def __init__(self, registry: Any) -> None:
        self.get_function = registry.get_function

    def list_functions(self) -> list[str]:
        return _NEEDED_BY_IMPORT


def make_compute_functions_on_demand() -> None:
    """Import `pyarrow.compute` without its functions. Does nothing if it is loaded, or is not as it was when tried."""
    if "pyarrow.compute" in sys.modules:
        return
    core: Any = import_module("pyarrow._compute")
    get_registry = core.function_registry
    core.function_registry = lambda: _NearlyEmptyRegistry(get_registry())
    try:
        compute: Any = import_module("pyarrow.compute")
        compute._wrap_function("equal", get_registry().get_function("equal"))
    except Exception:  # another version, with other parts; imported as it is when it is needed
        sys.modules.pop("pyarrow.compute", None)
        return
    finally:
        core.function_registry = get_registry
    compute.function_registry = get_registry

    def make_function(name: str) -> Any:
        if name == "__all__":  # asked for by `import *`
            return [name for name in list_names() if not name.startswith("_")]
        try:
            function = get_registry().get_function(_NAMES.get(name, name))
        except KeyError:
            function = None
        # Functions of these two kinds cannot be called by themselves.
        if function is None or function.kind == "hash_aggregate" or (function.kind, function.arity) == _COUNTS_ROWS:
            raise AttributeError(f"module 'pyarrow.compute' has no attribute {name!r}")
        wrapper = compute._wrap_function(name, function)
        setattr(compute, name, wrapper)
        return wrapper

    def list_names() -> list[str]:
        """Make all functions, for somebody who looks for their names."""
        for name in (*_NAMES, *get_registry().list_functions()):
            with suppress(AttributeError):
                getattr(compute, name)
        return sorted(vars(compute))

    compute.__getattr__ = make_function
    compute.__dir__ = list_names
