"""Every error survives the way from a worker, is what Python would raise, and says what to do."""

import pickle
import re
import tomllib
from pathlib import Path

import pytest

from gristmill.core import errors
from gristmill.core.errors import GristmillError, OutOfMemoryError, UsageError

TOP = Path(__file__).parents[2]
EXTRA = r"install_command\([\"'](\w+)[\"']\)"
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GristmillError)]


@pytest.mark.every_case
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind):
    error = kind("it broke", help="mend it", file="a.jsonl", line=3)
    error.add_note("in shard 7")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.message, copy.help, copy.context) == ("it broke", "mend it", {"file": "a.jsonl", "line": 3})
    assert copy.__notes__ == ["in shard 7"]
    assert str(copy) == "it broke\n  help: mend it"


def test_without_help_only_the_message_is_shown():
    assert str(UsageError("it broke")) == "it broke"


def test_an_error_is_caught_as_the_one_of_python():
    with pytest.raises(ValueError, match="it broke"):
        raise UsageError("it broke")
    with pytest.raises(MemoryError):
        raise OutOfMemoryError("it broke")


def test_extras_that_errors_name_exist():
    extras = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for path in (TOP / "src").rglob("*.py") for extra in re.findall(EXTRA, path.read_text())}
    assert named
    assert named <= set(extras)
