"""What a run costs: all of its processes, orphans included."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.harness.processes import SideError, run_side

ROOT = Path(__file__).parents[2]

SPIN = "t = __import__('time').process_time; [None for _ in iter(lambda: t() > {seconds}, True)]"


def run(code, **variables):
    return run_side([sys.executable, "-c", code], variables)


def test_reports_what_a_side_prints():
    measured = run('print(\'words\'); print(\'{"inner": 2.5, "units": 7, "recall": 1}\')')
    assert (measured.inner, measured.units, measured.facts) == (2.5, 7, {"recall": 1})


def test_counts_processes_of_processes():
    child = SPIN.format(seconds=0.4)
    measured = run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    assert measured.cpu >= 0.4


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
def test_counts_orphans():
    """In a process of its own, since adopting cannot be undone."""
    child = SPIN.format(seconds=0.4)
    side = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
    code = "import sys; from benchmarks.harness.processes import adopt_orphans, run_side; adopt_orphans(); "
    code += "print(run_side([sys.executable, '-c', sys.argv[1]], {}).cpu)"
    printed = subprocess.run([sys.executable, "-c", code, side], capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(printed.stdout) >= 0.4


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_is_that_of_all_processes():
    hold = "x = b'1' * (64 << 20); input()"
    code = (
        f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {hold!r}], stdin=subprocess.PIPE)"
    )
    measured = run(f"{code}; x = b'1' * (64 << 20); time.sleep(1); p.communicate(b'x')")
    assert measured.worker_mib >= 64
    assert measured.parent_mib >= 64
    assert measured.peak_mib >= 128


def test_failure_shows_the_last_lines():
    with pytest.raises(SideError, match="status 3: boom"):
        run("import sys; print('boom', file=sys.stderr); sys.exit(3)")


def test_settings_of_the_caller_do_not_reach_sides(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert run("import os, sys; sys.exit('PYTHONDONTWRITEBYTECODE' in os.environ)").wall > 0
