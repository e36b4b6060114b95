import subprocess
import sys

import pytest

from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.recipe.catalog import step_class


def test_unknown_names():
    with pytest.raises(UsageError) as error:
        step_class("lenght")
    assert "length" in error.value.help
    with pytest.raises(AttributeError):
        _ = steps.NoSuchStep
    assert dir(steps) == steps.__all__


def test_importing_the_list_of_steps_is_light():
    code = "import sys, gristmill.steps; print(sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("pyarrow", "numpy", "msgspec", "yaml"):
        assert f"'{heavy}'" not in loaded
