"""Users' programs, run as users run them: a fresh interpreter, a file, a command line, a terminal."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from gristmill_testing.watching import HANG_SECONDS, wait_until


def write(path, source):
    path.write_text(textwrap.dedent(source).lstrip())
    return path


def run(*arguments, seconds=HANG_SECONDS, **options):
    """Run the interpreter with these arguments to its end."""
    return subprocess.run(
        [sys.executable, *map(os.fspath, arguments)], capture_output=True, text=True, timeout=seconds, **options
    )


def _restore_signals():
    """Tests may run in the background or under nohup, where the shell ignores these signals for all that it starts."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def running(*arguments, folder, **options):
    """A program under way. Its output goes to files in `folder`, so that nobody has to read it meanwhile."""
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, *map(os.fspath, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=options.pop("stdout", out),
            stderr=err,
            start_new_session=True,
            preexec_fn=_restore_signals,  # noqa: PLW1509
            **options,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(HANG_SECONDS)
        if process.stdout is not None:
            process.stdout.close()


def interrupt(process):
    """As Ctrl-C in a terminal does: to the whole foreground process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)


class Terminal:
    """A program that believes it talks to a person."""

    def __init__(self, *arguments, **options):
        self._fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, *map(os.fspath, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_restore_signals,  # noqa: PLW1509
            **options,
        )
        os.close(theirs)
        self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(HANG_SECONDS)
        os.close(self._fd)

    def type(self, text):
        os.write(self._fd, text.encode())

    def read_until(self, text, seconds=HANG_SECONDS):
        """Read what is shown until `text` is; give what came since the last call."""
        start, deadline = len(self.shown), time.monotonic() + seconds
        while text not in self.shown[start:]:
            assert time.monotonic() < deadline, f"never saw {text!r} in {self.shown!r}"
            if not self._read():
                assert text in self.shown[start:], f"ended without {text!r}: {self.shown!r}"
        return self.shown[start:]

    def read_to_end(self):
        deadline = time.monotonic() + HANG_SECONDS
        while self._read():
            assert time.monotonic() < deadline, f"no end: {self.shown!r}"
        wait_until(lambda: self.process.poll() is not None, "the program's end")
        return self.shown

    def _read(self):
        if not select.select([self._fd], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux says EIO when the other side is gone
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


def count_tracebacks(text):
    """Those of a chain count as one: an interrupt may fall into an `except` block, even one of Python's own."""
    linked = text.count("During handling of the above exception") + text.count("The above exception was the direct")
    return text.count("Traceback (most recent call last)") - linked


def lines_of(path):
    return Path(path).read_text().splitlines() if Path(path).exists() else []
