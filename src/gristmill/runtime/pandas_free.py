"""Blocks the import of pandas in processes that do not need it.

At its first conversion from or to Python objects pyarrow imports pandas if it is installed: half a second and 30 MiB
in each worker of each stage. If that import fails once, pyarrow does not try again, except where it needs pandas
(`to_pandas`), which still works. `pyarrow.array` would treat a pandas series like any other sequence, so this is only
for processes that run no user code.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


class _NoPandas:
    """A finder of modules that refuses pandas and leaves all others to the finders after it."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("blocked", name=name)
        return None


def block_pandas_import() -> None:
    """Make pyarrow's import of pandas fail in this process. Does nothing if pandas is loaded already."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
