"""Keeping pandas out of processes that have no use for it.

pyarrow looks for pandas at its first conversion from or to Python objects, and if it is installed imports it: half a
second and 30 MiB for each worker of each stage. Told once that there is none, pyarrow does not look again, but for what
needs pandas (`to_pandas`), which works as ever. Only `pyarrow.array` of a pandas series would be taken for any other
sequence, so this is for processes in which no code but ours runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


class _NoPandas:
    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("not looked for", name=name)
        return None


def block_pandas_import() -> None:
    """Let pyarrow find no pandas in this process; nothing is done where it is loaded already."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
