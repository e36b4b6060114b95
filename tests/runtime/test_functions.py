"""Code that was collected on one machine runs on another, without the files and beside files that differ."""

import pickle
import subprocess
import sys
import textwrap

import msgspec
import pytest

from gristmill.core.errors import UsageError
from gristmill.runtime.functions import Function, collect_code


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_is_found_beside_its_recipe_and_travels_as_a_name(tmp_path):
    write(tmp_path, "functions.py", "def double(x):\n    return 2 * x\n")
    function = Function.of("functions.py:double").in_folder(str(tmp_path))
    assert function(4) == 8
    copy = pickle.loads(pickle.dumps(function))
    assert copy == function
    assert copy(5) == 10


def test_imports_what_lies_beside_it_and_sees_changes_at_once(tmp_path):
    write(tmp_path, "beside_it_1.py", "FACTOR = 3\n")
    path = write(tmp_path, "own.py", "from beside_it_1 import FACTOR\ndef f(x):\n    return x * FACTOR\n")
    assert Function.of(f"{path}:f")(2) == 6
    path.write_text("def f(x):\n    return x + 1  # a change\n")
    assert Function.of(f"{path}:f")(2) == 3
    assert not list(tmp_path.glob("__pycache__/own*"))  # nothing is left beside the user's file


def test_dataclasses_and_methods_work(tmp_path):
    path = write(
        tmp_path,
        "classes.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Point:\n    x: int\n    @staticmethod\n    def make(x):\n        return Point(x).x\n",
    )
    assert Function.of(f"{path}:Point.make")(7) == 7


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("def clean(x): ...\n", "claen", "clean"),
        ("clean = 5\n", "clean", "int"),
        ("import no_such_module\n", "clean", "no_such_module"),
        ("def clean(:\n", "clean", "line 1"),
        ("1/0\n", "clean", "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, name, said):
    path = write(tmp_path, "wrong.py", text)
    with pytest.raises(UsageError) as error:
        Function.of(f"{path}:{name}").resolve()
    assert said in str(error.value)
    assert "wrong.py" in str(error.value)


def test_a_function_is_named_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "own_package").mkdir()
    path = write(tmp_path, "own_package/__init__.py", "") and write(
        tmp_path, "own_package/clean.py", "def double(x):\n    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    function = Function.of("own_package.clean:double").in_folder("/elsewhere")
    assert pickle.loads(pickle.dumps(function))(4) == 8
    assert (str(function), function.find_file()) == ("own_package.clean:double", str(path))
    assert function.fingerprint() is not None
    assert ("own_package.clean", str(path), path.read_text()) in collect_code([function]).modules
    with pytest.raises(UsageError, match="file next to the recipe"):
        Function.of("no_such_package.clean:double").resolve()


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"none\.py"):
        Function.of(f"{tmp_path}/none.py:f").resolve()


def test_equality():
    assert Function.of("a.py:f") == Function.of("a.py:f") != Function.of("a.py:g")
    assert Function.of(len) == Function.of(len) != Function.of(max)
    assert Function.of(len) != Function.of("a.py:len")


NODE = """
import sys
import msgspec
from gristmill.runtime.functions import Function
from gristmill.runtime.functions import ShippedCode

sys.path.insert(0, sys.argv[1])
msgspec.json.decode(sys.stdin.buffer.read(), type=ShippedCode).install()
function = Function(sys.argv[2], "clean")
print(function("text"))
try:
    function(None)
except TypeError as error:
    import traceback
    print(traceback.format_exc())
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    files = {
        "code.py": """
            import helper
            from plain import numbers

            def clean(text):
                from package.inner import deep
                return helper.clean(text) + deep.NAME + str(numbers.ONE)
            """,
        "helper.py": "def clean(text): return 'driver ' + text  # the line",
        "package/__init__.py": "",
        "package/inner/__init__.py": "from . import deep",
        "package/inner/deep.py": "NAME = ' deep '",
        "plain/numbers.py": "ONE = 1",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def run_on_node(shipped, other, path):
    """Run the function in another process, where `other` is in front of all other folders of modules."""
    command = [sys.executable, "-c", NODE, str(other), str(path)]
    run = subprocess.run(command, input=msgspec.json.encode(shipped), capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.decode()


def test_files_that_are_missing_or_differ(project, tmp_path):
    path = project / "code.py"
    shipped = collect_code([Function(str(path), "clean")])
    other = tmp_path / "other"
    project.rename(other)  # the node has no such path, and its modules of the same names come first
    (other / "helper.py").write_text("def clean(text): return 'node'")
    (other / "package" / "inner" / "deep.py").write_text("NAME = 'node'")
    output = run_on_node(shipped, other, path)
    assert output.startswith("driver text deep 1")
    assert "# the line" in output  # tracebacks show the driver's text


def test_modules_of_a_callable(project, monkeypatch):
    """What a Python function imports when it runs is shipped too."""
    monkeypatch.syspath_prepend(project)
    namespace = {}
    path = project / "code.py"
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    shipped = collect_code([Function.of(namespace["clean"]), Function.of(str.upper)])
    assert [name for name, _, _ in shipped.modules] == [
        "helper",
        "package",
        "package.inner",
        "package.inner.deep",
        "plain.numbers",
    ]


def test_two_modules_of_one_name(project, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text("import same\ndef clean(text): return same.NAME")
        (tmp_path / name / "same.py").write_text(f"NAME = {name!r}")
    with pytest.raises(UsageError, match="two modules are called same"):
        collect_code([Function(str(tmp_path / name / "code.py"), "clean") for name in "ab"])
