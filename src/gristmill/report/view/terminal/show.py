"""`gristmill view --tty`: a `Screen` on a real terminal, on its other page, which is left as it was."""

from __future__ import annotations

import codecs
import os
import select
import signal
import sys
import termios
import tty
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.report.view.terminal.row_lines import encode_line
from gristmill.report.view.terminal.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gristmill.report.view.rows import Rows

_ENTER, _LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
_KEYS = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[H": "home", "\x1b[F": "end", "\x1b[5~": "page-up", "\x1b[6~": "page-down",
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\t": "tab",
    "\x03": "ctrl-c",
}  # fmt: skip


def split_keys(text: str) -> Iterator[str]:
    r"""Split what a terminal sends into the names of keys; what is no key is left out.

    >>> list(split_keys("a\x1b[Bé\r"))
    ['a', 'down', 'é', 'enter']
    """
    while text:
        size = next((size for size in (4, 3, 1) if text[:size] in _KEYS and len(text) >= size), 0)
        if size:
            yield _KEYS[text[:size]]
        elif text[0].isprintable():
            yield text[0]
        text = text[size or 1 :]


def show_in_terminal(collections: dict[str, Rows]) -> None:
    """Show rows in the terminal of this process, until a person leaves."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("--tty needs a terminal", help="leave it out for a web page, or use --save for a file")
    keyboard, display = sys.stdin.fileno(), sys.stdout.fileno()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    resized_read, resized_write = os.pipe()
    os.set_blocking(resized_write, False)

    def has_key() -> bool:
        return bool(select.select([keyboard], [], [], 0)[0])

    def report() -> bool:
        draw()
        return has_key()

    def draw() -> None:
        lines = [encode_line(line, screen.width) + "\x1b[K" for line in screen.draw()]
        data = ("\x1b[H" + "\r\n".join(lines)).encode(errors="replace")
        while data:
            data = data[os.write(display, data) :]

    screen = Screen(collections, report=report)
    screen.resize(*os.get_terminal_size(display))
    settings = termios.tcgetattr(keyboard)
    old_wakeup = signal.set_wakeup_fd(resized_write, warn_on_full_buffer=False)
    old_handler = signal.signal(signal.SIGWINCH, lambda *_: None)  # the byte in the pipe says that it came
    try:
        tty.setraw(keyboard)
        os.write(display, _ENTER)
        while not screen.is_closed:
            draw()
            ready, _, _ = select.select([keyboard, resized_read], [], [])
            if resized_read in ready:
                os.read(resized_read, 64)
                screen.resize(*os.get_terminal_size(display))
            if keyboard in ready:
                data = os.read(keyboard, 1024)
                if not data:  # the terminal is gone
                    return
                for key in split_keys(decoder.decode(data)):
                    screen.press(key)
    finally:
        os.write(display, _LEAVE)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, settings)
        signal.signal(signal.SIGWINCH, old_handler)
        signal.set_wakeup_fd(old_wakeup)
        os.close(resized_read)
        os.close(resized_write)
