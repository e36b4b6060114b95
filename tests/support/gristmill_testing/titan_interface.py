"""What torchtitan asks of a data loader, where torchtitan is not installed: it needs nightly builds of torch.

Written from its commit b5bcd76c (21 August 2026): `Configurable` in torchtitan/config/configurable.py,
`BaseDataLoader` in torchtitan/components/data/loader.py, and how torchtitan/trainer.py builds and uses one.
"""

import importlib.util
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import ClassVar

from torch.distributed.checkpoint.stateful import Stateful


class Configurable:
    """A class whose nested `Config` builds it."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        """Fields of the class, and `build`."""

        _owner: ClassVar[type | None] = None

        def build(self, **runtime):
            """Make the owner, with what is known at run time."""
            return self._owner(config=self, **runtime)

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        config = cls.__dict__.get("Config")
        if config is None:
            raise TypeError(f"{cls.__name__} has no Config")
        assert is_dataclass(config)
        assert "__slots__" in config.__dict__
        assert all(field.kw_only for field in fields(config))
        config._owner = cls


class BaseDataLoader(Stateful, ABC, Configurable):
    """A loader that yields `({"input": …, "positions": …}, labels)` and has a state."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """No fields of its own."""

    @abstractmethod
    def __iter__(self):
        """Yield batches."""

    def close(self):
        """Free what the loader holds."""


def install_titan_interface():
    """Make `torchtitan.components.data.loader` importable, unless the real one is."""
    if importlib.util.find_spec("torchtitan") is not None:
        return
    for name in ("torchtitan", "torchtitan.components", "torchtitan.components.data"):
        sys.modules[name] = ModuleType(name)
    loader = sys.modules["torchtitan.components.data.loader"] = ModuleType("torchtitan.components.data.loader")
    loader.BaseDataLoader = BaseDataLoader
