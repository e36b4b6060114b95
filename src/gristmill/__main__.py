"""The process of the `gristmill` command, started as a script or by `python -m gristmill`."""

from __future__ import annotations

import atexit
import gc
import os
import signal

TYPE_CHECKING = False  # without the typing module: until `main` runs, Ctrl-C is a traceback of Python's own
if TYPE_CHECKING:
    from typing import NoReturn

_OBJECTS_A_COLLECTION = 150_000
"""After how many new objects Python looks for garbage. With its 700 a small run spends a tenth of its CPU time on it,
and finds none: what imports and plans make stays."""


def main() -> NoReturn:
    """Import the command, run it, and exit with its code."""
    # An interrupt would be a traceback from the middle of an import. (One that is ignored is of a script's background.)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit_quietly)
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    from gristmill.cli.main import main as run_command  # noqa: PLC0415

    # Python gives signals their default action back while it exits: a command that is done would seem to be killed.
    atexit.register(_ignore_stops)
    try:
        run_command()
    finally:
        gc.freeze()  # else Python would search all objects once more before it exits


def _ignore_stops() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _exit_quietly(number: int, _: object) -> NoReturn:
    os.write(2, b"interrupted\n" if number == signal.SIGINT else b"terminated\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
