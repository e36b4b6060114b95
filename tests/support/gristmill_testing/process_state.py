"""What a test may leave changed in its process: the next one, which is another in each run, would fail in its place."""

import os
import signal
import sys

from gristmill.storage import remembered_proofs

_CONSTANTS = (bool, bytes, float, int, str, tuple, frozenset, type(None))
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
_OURS = ("GRISTMILL_", "AWS_", "HF_", "XDG_")
_COMMON = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "RAY_ADDRESS", "TMPDIR", "TZ")


def read_settings():
    """Read what tests touch: variables of the environment, the current folder, signals, the plan cache."""
    settings = {name: value for name, value in os.environ.items() if name.startswith(_OURS) or name in _COMMON}
    settings |= {number.name: signal.getsignal(number) for number in _SIGNALS}
    umask = os.umask(0)
    os.umask(umask)
    return settings | {"current folder": os.getcwd(), "umask": umask, "plan cache": remembered_proofs._folder}


def read_constants():
    """Read the constants of all modules of the package that are loaded, by their full names."""
    return {
        f"{module_name}.{name}": value
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] == "gristmill"
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, _CONSTANTS)
    }


def describe_changes(before, after):
    """Describe what is not as it was."""
    return [
        f"{name}: {before.get(name)!r} became {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
