"""Compiled code is kept, shared, checked and never out of date; each case in processes of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, numpy as np
import loops
assert "numba" not in sys.modules, "importing kernels must not load numba"
print(loops.summed(np.array([1, 2, 3])), "compiled" if "numba" in sys.modules else "loaded")
"""
WITH_NUMBA = """
import numba, numpy as np, loops
print(loops.summed(np.array([1, 2, 3])), sum(loops.summed.dispatcher.stats.cache_hits.values()))
"""
LOOPS = """
from gristmill.runtime.kernels import kernel

@kernel
def doubled(number):
    return 2 * number

@kernel
def summed(numbers):
    if len(numbers) == 0:
        raise ValueError("no numbers")
    total = 0
    for number in numbers:
        total += doubled(number)
    return total
"""


def make_runner(folder):
    """A function that runs a script in a new process, with a cache folder and a module `loops` of its own."""
    (folder / "loops.py").write_text(LOOPS)

    def start(script=SCRIPT, **environment):
        environment = {"NUMBA_CACHE_DIR": str(folder / "cache")} | environment
        path = os.pathsep.join([str(folder), *filter(None, sys.path)])
        return subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def run(tmp_path):
    """Runs scripts; nothing is compiled yet."""
    return make_runner(tmp_path)


@pytest.fixture(scope="module")
def first_cache(tmp_path_factory):
    """The cache folder that a first process has left."""
    folder = tmp_path_factory.mktemp("first")
    assert output(make_runner(folder)()) == ["12", "compiled"]
    return folder / "cache"


@pytest.fixture
def run_again(first_cache, tmp_path):
    """Runs scripts after a first process: equal sources share code wherever they are."""
    shutil.copytree(first_cache, tmp_path / "cache")
    return make_runner(tmp_path)


def output(process):
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return out.split()


def cached(tmp_path):
    return sorted((tmp_path / "cache" / "gristmill").iterdir())


def test_the_second_process_finds_the_code_of_the_first(run_again, tmp_path):
    assert output(run_again()) == ["12", "loaded"]
    assert output(run_again(WITH_NUMBA)) == ["12", "1"]
    kinds = sorted((path.name.split("-")[0], path.suffix) for path in cached(tmp_path))
    assert kinds == [("doubled", ".bin"), ("doubled", ".code"), ("summed", ".bin"), ("summed", ".code")]


def test_settings_of_numba_are_left_to_numba(run_again):
    assert output(run_again(NUMBA_OPT="1")) == ["12", "compiled"]


def test_processes_that_compile_at_once(run, tmp_path):
    assert [output(process) for process in [run(), run()]] == [["12", "compiled"]] * 2
    assert len(cached(tmp_path)) == 4
    assert output(run()) == ["12", "loaded"]


def test_changed_source_is_compiled_again_also_under_an_old_time(run_again, tmp_path):
    assert output(run_again()) == ["12", "loaded"]
    loops = tmp_path / "loops.py"
    before = loops.stat()
    loops.write_text(LOOPS.replace("2 * number", "3 * number"))  # of the same size
    os.utime(loops, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # Python itself looks at the time only
    assert output(run_again()) == ["18", "compiled"]


DAMAGE = {"cut short": lambda code: code[:100], "changed": lambda code: code[:-1] + b"?", "empty": lambda code: b""}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_replaced(run_again, tmp_path, damage):
    for path in cached(tmp_path):
        path.write_bytes(damage(path.read_bytes()))
    assert output(run_again(WITH_NUMBA)) == ["12", "0"]
    assert output(run_again(WITH_NUMBA)) == ["12", "1"]
    assert output(run_again()) == ["12", "loaded"]


def test_a_folder_that_cannot_be_made_is_gone_without(run, tmp_path):
    (tmp_path / "cache").write_text("a file is in the way")
    assert output(run()) == ["12", "compiled"]


def test_without_a_home_folder_of_one_s_own(run, tmp_path):
    assert output(run(NUMBA_CACHE_DIR="", HOME="/proc/nobody")) == ["12", "compiled"]


def test_the_default_is_the_user_s_cache_folder(run, tmp_path):
    assert output(run(NUMBA_CACHE_DIR="", HOME=str(tmp_path))) == ["12", "compiled"]
    assert len(list(tmp_path.glob("*/**/kernels/*.bin"))) == 2


def test_errors_are_raised_from_loaded_code_too(run):
    script = """
import numpy as np, loops
try:
    loops.summed(np.array([1])[:0])
except ValueError as error:
    print(error)
"""
    assert output(run(script)) == output(run(script)) == ["no", "numbers"]


def test_kernels_of_other_modules_are_not_called(run, tmp_path):
    (tmp_path / "elsewhere.py").write_text(
        "from gristmill.runtime.kernels import kernel\nfrom loops import doubled\n"
        "@kernel\ndef quadrupled(number):\n    return 2 * doubled(number)\n"
    )
    script = """
import elsewhere
try:
    elsewhere.quadrupled(1)
except TypeError as error:
    print("refused" if "doubled" in str(error) else error)
"""
    assert output(run(script)) == ["refused"]


def test_what_packing_needs_runs_from_loaded_code(run, tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "src")!r})
import numpy as np
from gristmill.steps.pack.pack import Pack
from gristmill.steps.pack.rows import fill_rows, plan_rows
packing = plan_rows(Pack(row_length=4), np.array([3, 1, 2]))
print(fill_rows([np.arange(6, dtype=np.uint16)], np.array([0, 3, 4, 6]), packing, 4, 9).tolist())
"""
    cold = output(run(script))
    compiled = {path: path.stat().st_ino for path in cached(tmp_path)}
    assert compiled
    assert output(run(script)) == cold
    assert {path: path.stat().st_ino for path in cached(tmp_path)} == compiled  # nothing was compiled a second time


def test_a_module_of_another_name_has_code_of_its_own(run_again, tmp_path):
    """Numba imports the module that its stored code was made in, and after a move there is none."""
    (tmp_path / "loops.py").rename(tmp_path / "moved.py")
    script = "import numba, numpy as np, moved\nprint(moved.summed(np.array([1, 2, 3])))"
    assert output(run_again(script)) == ["12"]
