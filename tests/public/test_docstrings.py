"""The examples in docstrings are run."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import gristmill

MODULES = [
    "gristmill",
    *(module.name for module in pkgutil.walk_packages(gristmill.__path__, "gristmill.")),
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "gristmill").startswith("gristmill"):
            raise
        pytest.skip(f"needs {error.name}, which is not installed")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0
