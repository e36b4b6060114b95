import pickle

import pytest

from gristmill.core.errors import UsageError
from gristmill.runtime.function import Function


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


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"none\.py"):
        Function.of(f"{tmp_path}/none.py:f").resolve()


def test_equality():
    assert Function.of("a.py:f") == Function.of("a.py:f") != Function.of("a.py:g")
    assert Function.of(len) == Function.of(len) != Function.of(max)
    assert Function.of(len) != Function.of("a.py:len")
