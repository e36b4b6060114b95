"""`import gristmill` and `gristmill --help` stay light: nothing heavy is loaded, and each takes under 0.15 s."""

import re
import subprocess
import sys
import time

import pytest

COMMANDS = {
    "import": [sys.executable, "-c", "import gristmill"],
    "help": [sys.executable, "-m", "gristmill", "--help"],
}
HEAVY = {
    "asyncio",
    "cloudpickle",
    "fastokens",
    "fsspec",
    "huggingface_hub",
    "jinja2",
    "matplotlib",
    "msgspec",
    "multiprocessing",
    "numba",
    "numpy",
    "pandas",
    "psutil",
    "pyarrow",
    "ray",
    "rich",
    "tokenizers",
    "torch",
    "transformers",
    "yaml",
}
OURS_ON_IMPORT = {"gristmill", "gristmill.runtime"}
OURS_ON_HELP = {
    *OURS_ON_IMPORT,
    "gristmill.cli",
    "gristmill.cli.main",
    "gristmill.cli.printing",
    "gristmill.core",
    "gristmill.core.checks",
    "gristmill.core.errors",
}


def _imported_modules(command):
    """Names of all modules that a Python command imports, as the interpreter itself reports them."""
    interpreter, *arguments = command
    run = subprocess.run(
        [interpreter, "-X", "importtime", *arguments], capture_output=True, text=True, check=True, timeout=240
    )
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", run.stderr, re.MULTILINE))


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_heavy_is_loaded(name):
    modules = _imported_modules(COMMANDS[name])
    assert "gristmill" in modules
    assert not {module.split(".")[0] for module in modules} & HEAVY


def test_import_loads_none_of_the_public_names():
    ours = {module for module in _imported_modules(COMMANDS["import"]) if module.startswith("gristmill")}
    assert ours == OURS_ON_IMPORT


def test_help_loads_no_command():
    ours = {module for module in _imported_modules(COMMANDS["help"]) if module.startswith("gristmill")}
    assert ours == OURS_ON_HELP


@pytest.mark.slow  # what is loaded decides, and that is tested above; this measures it
@pytest.mark.parametrize("name", COMMANDS)
def test_takes_under_150_ms(name):
    # The best of several runs: what else the machine does can only add to the time.
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        subprocess.run(COMMANDS[name], capture_output=True, check=True, timeout=240)
        best = min(best, time.perf_counter() - start)
        if best < 0.15:
            return
    pytest.fail(f"best of 20 runs took {best:.3f} s")
