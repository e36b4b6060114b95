"""The public names and signatures. A change here is a change for every user: it belongs in the changelog."""

import dataclasses
import inspect

import pytest

import gristmill as gm

NAMES = ["EventLog", "Failure", "__version__", "errors", "parallel_imap", "parallel_map"]

ERRORS = {
    "GristmillError": Exception,
    "ItemTimeoutError": TimeoutError,
    "OutOfMemoryError": MemoryError,
    "RemoteError": RuntimeError,
    "SetupError": RuntimeError,
    "UnpicklableError": TypeError,
    "UsageError": ValueError,
    "WorkerDiedError": RuntimeError,
}

PARALLEL_MAP = {
    "fn": inspect.Parameter.empty,
    "items": inspect.Parameter.empty,
    "workers": "auto",
    "backend": "processes",
    "setup": None,
    "timeout": None,
    "retries": 0,
    "on_error": "raise",
    "chunk_size": "auto",
    "ordered": True,
    "max_items_per_worker": None,
    "pin": False,
    "desc": None,
    "progress": None,
    "monitor": False,
}


def test_names_are_pinned():
    assert sorted(gm.__all__) == NAMES
    assert dir(gm) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_what_its_module_defines(name):
    value = getattr(gm, name)
    assert inspect.ismodule(value) == (name == "errors")
    if callable(value):
        assert value.__name__ == name


def test_star_import_gives_the_public_names():
    namespace = {}
    exec("from gristmill import *", namespace)
    assert set(NAMES) <= set(namespace)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gm.no_such_name


@pytest.mark.parametrize("name", ["parallel_map", "parallel_imap"])
def test_parallel_map_signature_is_pinned(name):
    parameters = inspect.signature(getattr(gm, name)).parameters
    assert {key: parameter.default for key, parameter in parameters.items()} == PARALLEL_MAP
    positional = [key for key, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    assert positional == ["fn", "items"]


def test_failure_fields_are_pinned():
    names = [field.name for field in dataclasses.fields(gm.Failure)]
    assert names == ["index", "kind", "error_type", "message", "traceback", "signal", "attempts"]


def test_errors_are_pinned_and_refine_a_builtin():
    found = {
        name: value
        for name, value in vars(gm.errors).items()
        if inspect.isclass(value) and issubclass(value, gm.errors.GristmillError)
    }
    assert sorted(found) == sorted(ERRORS)
    for name, builtin in ERRORS.items():
        assert issubclass(found[name], builtin)
