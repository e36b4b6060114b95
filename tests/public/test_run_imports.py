"""The modules that the parent process of a small run imports: on a small job, imports are most of the time."""

import json
import os
import subprocess
import sys
from importlib import import_module

import pytest

SCRIPT = """
import json, sys
from gristmill.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as stopped:
    assert not stopped.code, stopped.code
with open("modules.json", "w") as file:
    json.dump([name for name in sys.modules if getattr(sys.modules[name], "__spec__", None)], file)
"""
PACKAGES = {
    *("gristmill", "numpy", "pyarrow", "msgspec", "xxhash", "yaml", "_yaml", "click", "typing_extensions"),
    *("cloudpickle", "dateutil", "six"),  # pyarrow's
    *("psutil", "rich", "zstandard", "lz4"),
}
"""The packages that may be imported, as far as they are not of the standard library."""
NOT_NEEDED = (
    *("ssl", "pdb", "asyncio", "multiprocessing", "unittest"),
    *("pyarrow.parquet", "pyarrow.fs", "pyarrow.dataset", "rich.console", "rich.table"),
    *("gristmill.text.chats.templates", "gristmill.text.chats.example_maker", "gristmill.text.tokenizers.choose"),
    *("gristmill.steps.deduplicate.deduplicate", "gristmill.pipeline.barriers.deduplicate", "gristmill.steps.render"),
    *(
        "gristmill.readers.tables.parquet",
        "gristmill.readers.webdataset",
    ),
    *("gristmill.shards.formats.parquet", "gristmill.shards.formats.tar", "gristmill.exports", "gristmill.stream"),
)
MAX_OWN_MODULES = 265


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The modules of a first and a second run of the starter recipe, with documents as its output."""
    folder = tmp_path_factory.mktemp("starter")
    environment = {**os.environ, "GRISTMILL_PLAN_CACHE": str(folder / "plans")}
    environment.pop("PYTHONPROFILEIMPORTTIME", None)

    def call(*words):
        command = [sys.executable, "-c", SCRIPT, *words]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=240)
        return json.loads((folder / "modules.json").read_text())

    call("init", "corpus")
    steps = "steps=[length: {min_chars: 20}, split: {validation: 0.1}, write: {format: jsonl}]"
    return [call("run", "corpus/recipe.yaml", "--set", steps, "--overwrite", "--backend", "serial") for _ in range(2)]


def list_loaded(modules, name):
    return [module for module in modules if module == name or module.startswith(f"{name}.")]


@pytest.mark.parametrize("run", [0, 1], ids=["first", "second"])
def test_only_these_packages_are_imported(modules, run):
    packages = {name.partition(".")[0] for name in modules[run]}
    # Names with an underscore are parts of the standard library, or from the .pth files of an installation.
    packages = {name for name in packages if not name.startswith("_")}
    assert packages - set(sys.stdlib_module_names) - PACKAGES - {"sitecustomize", "usercustomize"} == set()


@pytest.mark.parametrize("name", NOT_NEEDED)
def test_what_the_second_run_does_not_need_is_not_imported(modules, name):
    assert list_loaded(modules[1], name) == []


@pytest.mark.parametrize("name", ["pandas", "numba", "tokenizers", "fastokens", "jinja2", "fsspec", "rich.progress"])
def test_heavy_packages_are_never_imported(modules, name):
    assert [list_loaded(loaded, name) for loaded in modules] == [[], []]


def test_the_number_of_own_modules(modules):
    own = list_loaded(modules[1], "gristmill")
    assert len(own) <= MAX_OWN_MODULES, f"{len(own)} modules: import what few recipes need where it is needed"


def test_steps_are_fetched_at_first_use():
    steps = import_module("gristmill.steps")
    for module, names in steps._MODULES.items():
        home = import_module(f".{module}", "gristmill.steps")
        assert all(getattr(steps, name) is getattr(home, name) for name in names.split())
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = steps.no_such_name
