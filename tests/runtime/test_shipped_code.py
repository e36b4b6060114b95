"""Code that was collected on one machine runs on another, without the files and beside files that differ."""

import subprocess
import sys
import textwrap

import msgspec
import pytest

from gristmill.core.errors import UsageError
from gristmill.runtime.function import Function
from gristmill.runtime.shipped_code import collect_code

NODE = """
import sys
import msgspec
from gristmill.runtime.function import Function
from gristmill.runtime.shipped_code import ShippedCode

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
