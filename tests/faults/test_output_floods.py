"""A function that prints without measure slows down only itself. Nothing of it gets between the engine's messages."""

import os
import subprocess
import sys
from pathlib import Path

import gristmill_testing
import pytest
from gristmill_testing import scripts
from gristmill_testing.watching import wait_for_file

pytestmark = pytest.mark.usefixtures("nothing_left")

FLOOD = """
    import os, sys
    import gristmill as gm

    def function(n):
        if n == 0:
            line = b"x" * 65535 + b"\\n"
            for _ in range(1600):
                os.write({fd}, line)
        return n

    assert gm.parallel_map(function, range(20), workers=2, progress=False) == list(range(20))
    with open("done", "w"):
        pass
"""
NUM_BYTES = 1600 * 65536  # a hundred MiB


@pytest.mark.full
@pytest.mark.parametrize("fd", [1, 2])
def test_flood_into_a_pipe_that_is_read_in_small_sips(project, fd):
    script = scripts.write(project / "script.py", FLOOD.format(fd=fd))
    other = {1: "stderr", 2: "stdout"}[fd]
    process = subprocess.Popen(
        [sys.executable, script],
        cwd=project,
        **{{1: "stdout", 2: "stderr"}[fd]: subprocess.PIPE, other: subprocess.DEVNULL},
    )
    stream = process.stdout or process.stderr
    num_bytes = 0
    while chunk := os.read(stream.fileno(), 3000):
        num_bytes += len(chunk)
    stream.close()
    assert process.wait(240) == 0
    assert num_bytes == NUM_BYTES
    assert (project / "done").exists()


@pytest.mark.full
def test_flood_into_nothing(project):
    script = scripts.write(project / "script.py", FLOOD.format(fd=1))
    process = subprocess.run([sys.executable, script], stdout=subprocess.DEVNULL, timeout=240)
    assert process.returncode == 0
    assert (project / "done").exists()


@pytest.mark.full
def test_others_go_on_while_nobody_reads(project):
    """The flood's reader reads nothing at all until every other item is done."""
    script = scripts.write(
        project / "script.py",
        """
        import os
        import gristmill as gm

        def function(n):
            if n == 0:
                os.write(1, b"x" * 1_000_000)  # blocks: a pipe holds 64 KiB
            return n

        results = gm.parallel_imap(function, range(20), workers=2, chunk_size=1, ordered=False, progress=False)
        others = [next(results) for _ in range(18)]
        with open("others.new", "w") as file:
            file.write(repr(sorted(others)))
        os.rename("others.new", "others")
        assert sorted([*others, *results]) == list(range(20))
        """,
    )
    process = subprocess.Popen([sys.executable, script], cwd=project, stdout=subprocess.PIPE)
    wait_for_file(project / "others")
    assert "0" not in (project / "others").read_text().strip("[]").split(", ")
    text = process.stdout.read()
    process.stdout.close()
    assert process.wait(240) == 0
    assert text == b"x" * 1_000_000


@pytest.mark.full
def test_closed_output(project):
    """The reader of our output is gone. Only what prints fails, and as an ordinary exception."""
    script = scripts.write(
        project / "script.py",
        """
        import os
        import gristmill as gm

        def function(n):
            if n == 3:
                os.write(1, b"anybody?")
            return n

        results = gm.parallel_map(function, range(6), workers=2, on_error="return", progress=False)
        with open("results", "w") as file:
            file.write(repr([getattr(result, "error_type", result) for result in results]))
        """,
    )
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run([sys.executable, script], cwd=project, stdout=write, timeout=240)
    os.close(write)
    assert process.returncode == 0
    assert (project / "results").read_text() == "[0, 1, 2, 'BrokenPipeError', 4, 5]"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_prints_of_workers_reach_the_output_in_whole_lines(project, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    monkeypatch.setenv("PYTHONPATH", str(Path(gristmill_testing.__file__).parent.parent))
    script = scripts.write(
        project / "script.py",
        """
        import sys
        import gristmill as gm
        from gristmill_testing.watching import wait_for_file

        def function(n):
            for stream in (sys.stdout, sys.stderr):
                print(f"line {n}", end="", file=stream)
                open(f"begun-{stream.name}-{n}", "w").close()
                wait_for_file(f"begun-{stream.name}-{1 - n}")
                print(file=stream)

        gm.parallel_map(function, range(2), workers=2, chunk_size=1, progress=False)
        """,
    )
    process = scripts.run(script, cwd=project)
    assert process.returncode == 0, process.stderr
    assert sorted(process.stdout.splitlines()) == ["line 0", "line 1"]
    assert sorted(process.stderr.splitlines()) == ["line 0", "line 1"]
