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
result = loops.summed(np.array([1, 2, 3]))
print(result, "loaded" if sum(loops.summed.dispatcher.stats.cache_hits.values()) else "compiled")
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


def output(process):
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return out.split()


def cached(tmp_path):
    return sorted((tmp_path / "cache" / "gristmill").rglob("*.nb?"))


def test_the_second_process_finds_the_code_of_the_first(run):
    assert output(run()) == ["12", "compiled"]
    assert output(run()) == ["12", "loaded"]


SEVERAL_TYPES = """
import sys, numpy as np
import loops
kinds = [np.int64, np.int32, np.uint16, np.uint8]
for kind in kinds if sys.argv[1:] else kinds[::-1]:
    assert loops.summed(np.array([1, 2, 3], kind)) == 12
    assert loops.summed(np.array([1, 2], kind)[::-1]) == 6
print(sum(loops.summed.dispatcher.stats.cache_hits.values()))
"""


@pytest.mark.full
def test_processes_that_compile_different_types_at_once(run):
    """Each writes the index of the types that are compiled: none is lost, and none names the code of another one."""
    for process in [run(SEVERAL_TYPES), run(SEVERAL_TYPES.replace("if sys", "if not sys"))]:
        output(process)
    assert output(run(SEVERAL_TYPES)) == ["8"]


def test_changed_source_is_compiled_again_also_under_an_old_time(run, tmp_path):
    output(run())
    loops = tmp_path / "loops.py"
    before = loops.stat()
    loops.write_text(LOOPS.replace("2 * number", "3 * number"))  # of the same size
    os.utime(loops, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # Python itself looks at the time only
    assert output(run()) == ["18", "compiled"]


DAMAGE = {"cut short": lambda code: code[:100], "changed": lambda code: code[:-1] + b"?", "empty": lambda code: b""}


@pytest.mark.full
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_replaced(run, tmp_path, damage):
    output(run())
    for path in cached(tmp_path):
        path.write_bytes(damage(path.read_bytes()))
    assert output(run()) == ["12", "compiled"]
    assert output(run()) == ["12", "loaded"]


@pytest.mark.full
def test_a_folder_that_cannot_be_made_is_gone_without(run, tmp_path):
    (tmp_path / "cache").write_text("a file is in the way")
    assert output(run()) == ["12", "compiled"]


@pytest.mark.full
def test_without_a_home_folder_of_one_s_own(run, tmp_path):
    assert output(run(NUMBA_CACHE_DIR="", HOME="/proc/nobody")) == ["12", "compiled"]


@pytest.mark.full
def test_the_default_is_the_user_s_cache_folder(run, tmp_path):
    assert output(run(NUMBA_CACHE_DIR="", HOME=str(tmp_path))) == ["12", "compiled"]
    assert len(list(tmp_path.glob("*/**/kernels/**/*.nbi"))) == 2


@pytest.mark.full
def test_errors_are_raised_from_loaded_code_too(run):
    script = """
import numpy as np, loops
try:
    loops.summed(np.array([1])[:0])
except ValueError as error:
    print(error)
"""
    assert output(run(script)) == output(run(script)) == ["no", "numbers"]


ELSEWHERE = """
from gristmill.runtime.kernels import kernel
from loops import FACTOR, doubled

@kernel
def summed(number):
    return FACTOR * doubled(number)
"""


@pytest.mark.full
@pytest.mark.parametrize("change", [("2 * number", "5 * number"), ("FACTOR = 3", "FACTOR = 4")])
def test_a_change_of_another_module_is_compiled_again(run, tmp_path, change):
    loops = tmp_path / "loops.py"
    loops.write_text(f"FACTOR = 3\n{LOOPS}")
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    script = SCRIPT.replace("import loops", "import elsewhere as loops").replace("np.array([1, 2, 3])", "1")
    assert output(run(script)) == ["6", "compiled"]
    assert output(run(script)) == ["6", "loaded"]
    loops.write_text(loops.read_text().replace(*change))
    assert output(run(script))[1] == "compiled"
    answer = {"FACTOR = 3": "8", "2 * number": "15"}[change[0]]
    assert output(run(script)) == [answer, "loaded"]


@pytest.mark.full
def test_a_folder_that_others_can_write_to_is_not_read(run, tmp_path):
    output(run())
    (tmp_path / "cache" / "gristmill").chmod(0o777)
    process = run()
    out, errors = process.communicate(timeout=240)
    assert out.split() == ["12", "compiled"]
    assert "other users" in errors
    (tmp_path / "cache" / "gristmill").chmod(0o700)
    assert output(run()) == ["12", "loaded"]


@pytest.mark.full
def test_what_packing_needs_runs_from_loaded_code(run, tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "src")!r})
import numpy as np
from gristmill.steps.pack import Pack
from gristmill.steps.pack_rows import fill_rows, plan_rows
packing = plan_rows(Pack(row_length=4), np.array([3, 1, 2]))
print(fill_rows([np.arange(6, dtype=np.uint16)], np.array([0, 3, 4, 6]), packing, 4, 9).tolist())
"""
    cold = output(run(script))
    compiled = {path: path.stat().st_mtime_ns for path in cached(tmp_path)}
    assert compiled
    assert output(run(script)) == cold
    assert {
        path: path.stat().st_mtime_ns for path in cached(tmp_path)
    } == compiled  # nothing was compiled a second time
