"""The process of the `gristmill` command, started as a script or by `python -m gristmill`."""

import gc
import os
import signal
from typing import NoReturn

_OBJECTS_A_COLLECTION = 150_000
"""After how many new objects Python looks for garbage. With its 700 a small run spends a tenth of its CPU time on it,
and finds none: what imports and plans make stays."""


def main() -> NoReturn:
    """Import the command, run it, and exit with its code."""
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    is_ignored = signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # in the background of a script
    if not is_ignored:  # an interrupt would be a traceback from the middle of an import
        signal.signal(signal.SIGINT, _exit_quietly)
    from gristmill.cli.main import main as run_command  # noqa: PLC0415

    if not is_ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_command()
    finally:
        gc.freeze()  # else Python would search all objects once more before it exits


def _exit_quietly(*_: object) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
