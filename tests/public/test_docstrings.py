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
    results = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0
