"""Code that is loaded at run time. Nothing here knows records or datasets.

`kernels` compiles loops over numbers and caches the machine code. `functions` imports the user's functions and ships
them to other machines, `source_code` fingerprints them, `plugins` finds what installed packages add. `process` is about
one process: what stays loaded in it, and its limits while it tries an untrusted file. This module imports the public
names of packages from their modules at first use.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # as in typing, which every worker would otherwise import here
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def fetch_at_first_use(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package: `modules` maps its modules to the names in each."""
    homes = {name: module for module, names in modules.items() for name in names.split()}
    names = sorted(homes)

    def fetch(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{homes[name]}", package)
        value = getattr(module, name, module)  # a module that is public itself has no such name
        setattr(sys.modules[package], name, value)
        return value

    return fetch, lambda: names, names
