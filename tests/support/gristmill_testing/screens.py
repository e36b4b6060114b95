"""A real terminal emulator behind a program: what a person sees, not what was written."""

import fcntl
import os
import struct
import termios
import time

import pyte

from gristmill_testing.scripts import Terminal
from gristmill_testing.watching import HANG_SECONDS


class Screen(Terminal):
    """A program on a terminal of a given size. `lines` are those that its screen shows now."""

    def __init__(self, *arguments, columns=120, rows=30, **options):
        super().__init__(*arguments, **options)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)
        self._num_drawn = 0

    @property
    def lines(self):
        self._stream.feed(self.shown[self._num_drawn :])
        self._num_drawn = len(self.shown)
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self):
        return "\n".join(self.lines)

    @property
    def has_cursor(self):
        return bool(self.lines) and not self._screen.cursor.hidden

    def wait_for(self, *words):
        """Wait until the screen shows all words at once, and return its text."""
        deadline = time.monotonic() + HANG_SECONDS
        while not all(word in self.text for word in words):
            assert time.monotonic() < deadline, f"never saw {words} on:\n{self.text}"
            assert self._read() or all(word in self.text for word in words), f"ended without {words}:\n{self.text}"
        return self.text


def run_gristmill(*words, folder, **sizes):
    """Start a command of Gristmill on a screen."""
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    return Screen("-m", "gristmill", *words, cwd=folder, env=environment, **sizes)
