import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from gristmill.core.errors import UsageError
from gristmill.runtime import source_code

LIMIT = 5


def project(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__in__", "/")
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "main.py")


def test_changes_with_the_file_and_with_what_it_imports(tmp_path):
    files = {
        "main": "import direct\nfrom package import part\nfrom package.deep import thing\ndef f(x):\n    import late\n",
        "direct": "import indirect\n",
        "indirect": "X = 1\n",
        "late": "X = 1\n",
        "package__in____init__": "",
        "package__in__part": "from . import sibling\nfrom .sibling import X\n",
        "package__in__sibling": "X = 1\n",
        "package__in__deep__in____init__": "thing = 1\n",
        "unrelated": "X = 1\n",
    }
    path = project(tmp_path, **files)
    seen = {source_code.fingerprint_file(path, "f")}
    for name, text in files.items():
        before = source_code.fingerprint_file(path, "f")
        project(tmp_path, **{name: text + "Y = 2\n"})
        after = source_code.fingerprint_file(path, "f")
        assert (before == after) == (name == "unrelated"), name
        seen.add(after)
    assert len(seen) == len(files)
    assert source_code.fingerprint_file(path, "f") != source_code.fingerprint_file(path, "g")


def test_does_not_depend_on_where_the_project_lies(tmp_path):
    files = {"main": "import helper\ndef f(x): ...\n", "helper": "X = 1\n"}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = project(tmp_path / "a", **files), project(tmp_path / "b", **files)
    assert source_code.fingerprint_file(one, "f") == source_code.fingerprint_file(two, "f")


def test_a_module_that_another_one_hides_does_not_count(tmp_path, monkeypatch):
    """As with two copies of an installed package on the path: only the first is imported, and its version counts."""
    for name in ("first", "second"):
        (tmp_path / name / "library").mkdir(parents=True)
        (tmp_path / name / "library/__init__.py").write_text("import hidden_module\n")
    (tmp_path / "second/hidden_module.py").write_text("a = 1\n")
    (tmp_path / "functions.py").write_text("import library\n\ndef function(): ...\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    monkeypatch.setattr(source_code, "_find_versioned_folders", lambda: (f"{tmp_path}/first/library/",))
    before = source_code.fingerprint_file(str(tmp_path / "functions.py"), "function")
    (tmp_path / "second/library/__init__.py").write_text("b = 2\n")
    (tmp_path / "second/hidden_module.py").write_text("a = 2\n")
    assert source_code.fingerprint_file(str(tmp_path / "functions.py"), "function") == before
    monkeypatch.setattr(sys, "path", [str(tmp_path / "second"), str(tmp_path / "first")])
    assert source_code.fingerprint_file(str(tmp_path / "functions.py"), "function") != before


def test_circular_imports_end(tmp_path):
    path = project(tmp_path, main="import other\n", other="import main\n")
    assert source_code.fingerprint_file(path, "f")


def test_broken_or_missing_files_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"main\.py.*line 1"):
        source_code.fingerprint_file(project(tmp_path, main="def f(:\n"), "f")
    with pytest.raises(UsageError, match=r"none\.py"):
        source_code.fingerprint_file(str(tmp_path / "none.py"), "f")


def make(value, default=1):
    def function(record, extra=default):
        return value, extra, LIMIT

    return function


def test_closures_and_defaults_count():
    prints = [
        source_code.fingerprint_callable(make(*arguments))
        for arguments in [
            (1,),
            (2,),
            ("1",),
            ([1, 2],),
            ({"a": 1},),
            (1, 2),
            (np.arange(3),),
            (np.arange(4),),
            ({1, 2},),
        ]
    ]
    assert None not in prints
    assert len(set(prints)) == len(prints)
    assert source_code.fingerprint_callable(make(1)) == prints[0]


def test_constants_of_the_module_count(monkeypatch):
    before = source_code.fingerprint_callable(make(1))
    monkeypatch.setitem(globals(), "LIMIT", 6)
    assert source_code.fingerprint_callable(make(1)) != before


def test_lambdas_on_one_line_differ():
    first, second = lambda x: x + 1, lambda x: x + 2
    assert source_code.fingerprint_callable(first) != source_code.fingerprint_callable(second)
    outer = [lambda x: [y + 1 for y in x], lambda x: [y + 2 for y in x]]
    assert source_code.fingerprint_callable(outer[0]) != source_code.fingerprint_callable(outer[1])


class Threshold:
    def __init__(self, low):
        self.low = low

    def __call__(self, record):
        return record > self.low

    def method(self, record):
        return record < self.low


def test_objects_methods_partials_and_builtins():
    low, high = Threshold(1), Threshold(2)
    prints = [
        source_code.fingerprint_callable(called)
        for called in (
            low, high, low.method, high.method, functools.partial(max, 1), functools.partial(max, 2), len, str.upper,
            "a".join, "b".join, Threshold,
        )
    ]  # fmt: skip
    assert None not in prints
    assert len(set(prints)) == len(prints)


def test_a_function_that_calls_itself():
    def count(depth):
        return depth and count(depth - 1)

    assert source_code.fingerprint_callable(count)


def test_two_functions_that_call_each_other():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert source_code.fingerprint_callable(even)


def test_unknown_code_gives_nothing():
    namespace = {}
    exec("f = lambda x: x", namespace)
    assert source_code.fingerprint_callable(namespace["f"]) is None
    assert source_code.fingerprint_callable(make(namespace["f"])) is None
    with open(__file__) as file:
        assert source_code.fingerprint_callable(make(file)) is None  # cannot be pickled


SCRIPT = """
    import argparse, collections, dataclasses, re, sys, types
    from os.path import join  # frozen: there is no file of that name
    from gristmill.runtime import source_code
    number = int(sys.argv[1])
    words = {"stop", "the", "a", "of"}
    args = argparse.Namespace(number=number)
    pattern = re.compile("a" * number)
    point = collections.namedtuple("Point", "x")(number)
    @dataclasses.dataclass
    class Options:
        number: int
        words: set
    options = Options(number, {"w", "x", "y", "z"})
    class Settings:
        number = number
    class Base:
        def __call__(self, record): return self.choose(record)
    class Chooser(Base):
        def choose(self, record): return record[args.number]
    class Slots:
        __slots__ = ("number",)
        def __init__(self, number): self.number = number
        def __call__(self, record): return self.number
    def make(value):
        return lambda record: (value, record, words)
    def named(record): return args.number
    def called(record): return named(record) and other(record)
    def other(record): return called(record)
    fixed = [make({"x", "y", "z", "w"}), make([1.5, {"k": b"v"}]), lambda r: join(r)]
    changing = [
        named, called, Chooser(), Slots(number), lambda r: options.words, lambda r: Settings.number, lambda r: point,
        lambda r: pattern.match(r), lambda r: [x for x in r if x < number], make(options), make([named, {other}]),
    ]
    print(*map(source_code.fingerprint_callable, fixed + changing))
"""


def test_is_the_same_in_every_process_and_changes_with_what_it_names(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    outputs = [
        subprocess.run(
            [sys.executable, script, number],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed, number in [("1", "1"), ("2", "1"), ("3", "2")]
    ]
    assert outputs[0] == outputs[1]
    assert "None" not in outputs[0]
    assert len(set(outputs[0])) == len(outputs[0])
    assert [one == two for one, two in zip(outputs[0], outputs[2], strict=True)] == [True] * 3 + [False] * 11


def test_tensors_count_with_their_content():
    torch = pytest.importorskip("torch")
    tensors = [torch.full((3, 500), number, dtype=torch.bfloat16) for number in (1, 1, 2)]
    one, again, two = [source_code.fingerprint_callable(make(tensor)) for tensor in tensors]
    assert one == again != two
    assert one is not None


def test_at_a_prompt_nothing_is_known():
    run = subprocess.run(
        [sys.executable, "-"],
        input="from gristmill.runtime import source_code\nprint(source_code.fingerprint_callable(lambda x: x))",
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert run.stdout.strip() == "None"
