"""Every way in which people start Python: scripts without a guard, -c, stdin, -m, the prompt, notebooks."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from gristmill_testing import scripts
from gristmill_testing.watching import wait_for_file

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]

PROGRAM = """
    import gristmill as gm

    def double(n):
        return n * 2

    print(gm.parallel_map(double, range(4), workers=2))
    print(gm.parallel_map(lambda n: n + 1, range(4), workers=2))
"""
EXPECTED = "[0, 2, 4, 6]\n[1, 2, 3, 4]\n"


def checked(process):
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return process.stdout


def test_script_without_a_guard(project):
    """The program runs once, not once a worker."""
    script = scripts.write(project / "script.py", 'print("hello")\n' + textwrap.dedent(PROGRAM))
    assert checked(scripts.run(script)) == "hello\n" + EXPECTED


@pytest.mark.full
def test_script_with_a_guard(project):
    script = scripts.write(
        project / "script.py",
        """
        import gristmill as gm

        def double(n):
            return n * 2

        if __name__ == "__main__":
            print(gm.parallel_map(double, range(4), workers=2))
        """,
    )
    assert checked(scripts.run(script)) == "[0, 2, 4, 6]\n"


def test_command_line(project):
    source = textwrap.dedent(PROGRAM)
    assert checked(scripts.run("-c", source)) == EXPECTED


@pytest.mark.full
def test_standard_input(project):
    source = textwrap.dedent(PROGRAM)
    assert checked(scripts.run("-", input=source)) == EXPECTED


def test_module(project):
    (project / "package").mkdir()
    (project / "package" / "__init__.py").touch()
    scripts.write(project / "package" / "__main__.py", PROGRAM)
    assert checked(scripts.run("-m", "package")) == EXPECTED


@pytest.mark.full
def test_script_of_another_folder(project):
    """Modules beside the script are found, though the current folder is another one."""
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    scripts.write(elsewhere / "neighbour.py", "def triple(n):\n    return n * 3\n")
    scripts.write(
        elsewhere / "script.py",
        """
        import os
        import gristmill as gm
        from neighbour import triple

        print(gm.parallel_map(triple, range(3), workers=1))
        print(gm.parallel_map(lambda _: os.getcwd(), [0], workers=1) == [os.getcwd()])
        """,
    )
    assert checked(scripts.run(elsewhere / "script.py")) == "[0, 3, 6]\nTrue\n"


@pytest.mark.full
def test_package_that_is_not_installed(project):
    """Found only by what the program itself did to `sys.path`."""
    (project / "late").mkdir()
    scripts.write(project / "late" / "found_late.py", "def negate(n):\n    return -n\n")
    script = scripts.write(
        project / "script.py",
        """
        import sys
        import gristmill as gm
        sys.path.append("late")
        import found_late

        print(gm.parallel_map(found_late.negate, [1, 2], workers=1))
        """,
    )
    assert checked(scripts.run(script)) == "[-1, -2]\n"


@pytest.mark.full
def test_prompt(project):
    """Typed at the prompt of an interactive interpreter."""
    with scripts.Terminal("-q", env={**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}) as terminal:
        terminal.read_until(">>> ")
        for line in ["import gristmill as gm", "base = 10"]:
            terminal.type(line + "\n")
            terminal.read_until(">>> ")
        terminal.type("def add(n):\n")
        terminal.read_until("... ")
        terminal.type("    return n + base\n")
        terminal.read_until("... ")
        terminal.type("\n")
        terminal.read_until(">>> ")
        terminal.type("gm.parallel_map(add, range(3), workers=2)\n")
        assert "[10, 11, 12]" in terminal.read_until(">>> ")
        terminal.type("gm.parallel_map(lambda n: n / 0, range(3), workers=2)\n")
        assert "ZeroDivisionError" in terminal.read_until(">>> ")
        terminal.type("gm.parallel_map(add, [5], workers=1)\n")
        assert "[15]" in terminal.read_until(">>> ")
        terminal.type("exit()\n")
        terminal.read_to_end()
    assert terminal.process.returncode == 0


@pytest.mark.full
def test_prompt_can_be_interrupted(project):
    with scripts.Terminal("-q", env={**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}) as terminal:
        terminal.read_until(">>> ")
        terminal.type("import gristmill as gm, time, pathlib\n")
        terminal.read_until(">>> ")
        terminal.type("gm.parallel_map(lambda n: pathlib.Path('busy').touch() or time.sleep(3600), [0], workers=1)\n")
        wait_for_file(project / "busy")
        scripts.interrupt(terminal.process)
        shown = terminal.read_until(">>> ")
        assert "KeyboardInterrupt" in shown
        terminal.type("gm.parallel_map(abs, [-3], workers=1)\n")
        assert "[3]" in terminal.read_until(">>> ")
        terminal.type("exit()\n")
        terminal.read_to_end()


@pytest.mark.full
def test_script_that_stays_interactive(project):
    """`python -i script.py`: workers must not become interactive too."""
    script = scripts.write(project / "script.py", PROGRAM)
    with scripts.Terminal("-q", "-i", script, env={**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}) as terminal:
        assert "[1, 2, 3, 4]" in terminal.read_until(">>> ")
        terminal.type("gm.parallel_map(double, [21], workers=1)\n")
        assert "[42]" in terminal.read_until(">>> ")
        terminal.type("exit()\n")
        terminal.read_to_end()


NOTEBOOK = """
    import json, sys
    import nbformat
    from nbclient import NotebookClient

    cells = [
        "import gristmill as gm\\nimport os, sys",
        "class Point:\\n    def __init__(self, x):\\n        self.x = x\\n",
        "factor = 3\\ndef scale(point):\\n    return Point(point.x * factor)\\n",
        "points = gm.parallel_map(scale, [Point(1), Point(2)], workers=2)\\n"
        "print([point.x for point in points], all(isinstance(point, Point) for point in points))",
        "print([r.error_type for r in gm.parallel_map(lambda n: 1 // n, [0], workers=1, on_error='return')])",
        "print(gm.parallel_map(lambda n: os.getpid() != parent, [0], workers=1) if (parent := os.getpid()) else 0)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    outputs = ["".join(out.get("text", "") for out in cell.outputs) for cell in notebook.cells]
    with open("outputs.json", "w") as file:
        json.dump(outputs, file)
"""


@pytest.mark.full
def test_notebook(project, tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    script = scripts.write(project / "script.py", NOTEBOOK)
    environment = {
        **os.environ,
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
    }
    process = scripts.run(script, seconds=80, env=environment)
    assert process.returncode == 0, process.stderr
    outputs = json.loads((project / "outputs.json").read_text())
    assert outputs[3].strip() == "[3, 6] True"
    assert outputs[4].strip() == "['ZeroDivisionError']"
    assert outputs[5].strip() == "[True]"


def test_what_main_defines_is_function_argument_and_result(project):
    """Classes of the program itself, in both directions; results are of the very same class."""
    script = scripts.write(
        project / "script.py",
        """
        import dataclasses, enum, typing
        import gristmill as gm

        class Point:
            def __init__(self, x):
                self.x = x
            def __eq__(self, other):
                return type(other) is Point and other.x == self.x

        @dataclasses.dataclass
        class Data:
            value: int

        class Color(enum.Enum):
            RED = 1

        class Pair(typing.NamedTuple):
            left: int

        class MyError(Exception):
            pass

        class Caller:
            def __init__(self, k):
                self.k = k
            def __call__(self, n):
                return n + self.k
            def method(self, n):
                return n * self.k

        def move(point):
            return Point(point.x + 1)

        results = gm.parallel_map(move, [Point(1), Point(2)], workers=2)
        assert results == [Point(2), Point(3)]
        assert all(isinstance(result, Point) for result in results)
        (data,) = gm.parallel_map(lambda d: Data(d.value + 1), [Data(1)], workers=1)
        assert data == Data(2) and isinstance(data, Data)
        assert gm.parallel_map(lambda c: c, [Color.RED], workers=1)[0] is Color.RED
        (pair,) = gm.parallel_map(lambda p: Pair(p.left + 1), [Pair(1)], workers=1)
        assert isinstance(pair, Pair) and pair == Pair(2)
        assert gm.parallel_map(Caller(5), [1], workers=1) == [6]
        assert gm.parallel_map(Caller(5).method, [1], workers=1) == [5]
        (made,) = gm.parallel_map(Point, [7], workers=1)
        assert made == Point(7)

        def fail(n):
            raise MyError(n)

        try:
            gm.parallel_map(fail, [1], workers=1)
        except MyError as error:
            assert error.args == (1,)
        else:
            raise AssertionError
        (failure,) = gm.parallel_map(fail, [1], workers=1, on_error="return")
        print(failure.error_type)
        """,
    )
    assert checked(scripts.run(script)) == "MyError\n"


@pytest.mark.full
@pytest.mark.xfail(reason="cloudpickle writes the class as it was when it was sent over the program's own")
def test_results_do_not_change_the_programs_classes(project):
    """Class attributes and methods of the program stay as they are when instances come back from workers."""
    script = scripts.write(
        project / "script.py",
        """
        import gristmill as gm

        class Point:
            seen = 0
            def __init__(self, x):
                self.x = x
            def show(self):
                return self.x

        show = Point.show
        for point in gm.parallel_imap(Point, range(5), workers=1, chunk_size=1):
            Point.seen += 1
        print(Point.seen, Point.show is show)
        """,
    )
    assert checked(scripts.run(script)) == "5 True\n"


@pytest.mark.full
def test_large_globals_are_sent_once_a_worker(project):
    """A function of the program refers to 64 MiB; that goes with the function, not with each item."""
    script = scripts.write(
        project / "script.py",
        """
        import os
        import psutil
        import gristmill as gm

        table = os.urandom(64 << 20)

        def look_up(n):
            return table[n]

        before = psutil.Process().io_counters().write_chars
        assert gm.parallel_map(look_up, range(200), workers=1, chunk_size=1) == list(table[:200])
        print((psutil.Process().io_counters().write_chars - before) >> 20)
        """,
    )
    assert 60 <= int(checked(scripts.run(script))) <= 80


@pytest.mark.full
@pytest.mark.parametrize("name", ["random", "queue", "socket", "select", "signal", "struct", "logging", "types"])
def test_modules_of_the_current_folder_do_not_hide_pythons_own(project, name):
    """A user's random.py is in the current folder, from which an installed program is run."""
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    scripts.write(elsewhere / "script.py", PROGRAM)
    (project / f"{name}.py").write_text('raise ImportError("this is not the module you are looking for")\n')
    assert checked(scripts.run(elsewhere / "script.py", cwd=project)) == EXPECTED


@pytest.mark.full
@pytest.mark.parametrize("name", ["random", "queue"])
def test_modules_beside_the_script_are_as_visible_as_in_the_parent(project, name):
    """Here the program itself sees its own random.py first; so do the workers, and the engine does without it."""
    (project / f"{name}.py").write_text("VALUE = 7\n")
    script = scripts.write(
        project / "script.py",
        f"""
        import {name}
        import gristmill as gm

        def function(n):
            import {name}
            return {name}.VALUE

        print(gm.parallel_map(function, range(2), workers=2))
        """,
    )
    assert checked(scripts.run(script)) == "[7, 7]\n"


@pytest.mark.full
def test_isolated_interpreter(project):
    script = scripts.write(project / "script.py", PROGRAM)
    process = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, timeout=240)
    assert checked(process) == EXPECTED


@pytest.mark.full
def test_no_memory_of_earlier_calls(project):
    """A function redefined at the prompt, as people do all day, is the new one."""
    script = scripts.write(
        project / "script.py",
        """
        import gristmill as gm

        def function(n):
            return "old"

        print(gm.parallel_map(function, [0], workers=1))

        def function(n):
            return "new"

        print(gm.parallel_map(function, [0], workers=1))
        """,
    )
    assert checked(scripts.run(script)) == "['old']\n['new']\n"
