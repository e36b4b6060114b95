"""The process of the `gristmill` command, started as a script or by `python -m gristmill`."""

import atexit
import gc
import os
import signal
import sys
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
    # Python gives signals their default action back while it exits: a command that is done would seem to be killed.
    atexit.register(_ignore_stops)
    try:
        try:
            run_command()
        except SystemExit as end:
            exit_code = int(end.code or 0)
            _stop_at_once(exit_code)
    except KeyboardInterrupt:  # after the last line of the command
        exit_code = 128 + signal.SIGINT
    gc.freeze()  # else Python would search all objects once more before it exits
    sys.exit(exit_code)


def _stop_at_once(exit_code: int) -> None:
    """Let a signal end this process without a traceback, now that the command is done."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(exit_code))


def _ignore_stops() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _exit_quietly(*_: object) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
