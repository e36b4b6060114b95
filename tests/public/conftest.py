from importlib.util import find_spec

import pytest
from gristmill_testing.documents import readers_environment
from gristmill_testing.prepared_interpreter import PreparedInterpreter

LIBRARIES = ("numpy", "pyarrow", "tokenizers", "torch.utils.data", "transformers.trainer", "datasets")
"""What examples import, none of it ours: an example must bring all that it needs of Gristmill."""


@pytest.fixture(scope="session")
def run_script():
    """Runs a script in a folder and gives what it printed; it must succeed."""
    interpreter = PreparedInterpreter([name for name in LIBRARIES if find_spec(name.partition(".")[0])])

    def run(name, folder):
        done = interpreter.run(name, folder=folder, environment=readers_environment())
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield run
    interpreter.close()
