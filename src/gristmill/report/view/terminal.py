"""The viewer in a terminal (`gristmill view --tty`), on its alternate screen, which is left as it was.

A `Screen` is a state that keys change: which rows are shown, from which line on, and the prompt. Only rows that are
visible are read. It knows nothing of the terminal, so tests can press keys and read lines.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from gristmill.core.checks import find_nearest
from gristmill.core.errors import GristmillError, UsageError
from gristmill.report.view.describe import encode_line, make_lines, make_printable, measure, wrap
from gristmill.report.view.page_requests import describe_safely, get_number, read_filters
from gristmill.report.view.rows import Filters, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gristmill.report.view.describe import Line
    from gristmill.report.view.rows import Rows, StepRow


HELP = "q quit  ↑↓ scroll  ←→ row  / search  f filter  tab other rows  ? all keys"
_ALL_KEYS = """\
q          leave
↑ ↓ j k    scroll by a line; space and b, or page keys: by a screen
← →        the row before, the next row; home and end: the first, the last
g          go to a row by its number, or to a document by its origin
/          search for text (re:… an expression, id:… a token); n: the next hit
f          filter: split=train source=web reason=… score=name:low:high; empty: all rows
s          the rows of a step of training: its number, rows a rank, ranks
tab        show other rows of this dataset: kept, dropped, quarantined
?          these keys; any key leads back
"""
_FILTERS = ("split", "source", "reason", "score")
_PROMPTS = {
    "/": "search (re:… for an expression, id:… for a token): ",
    "g": "row: ",
    "f": "filter (split=train source=web reason=… score=name:low:high): ",
    "s": "step, rows a rank, ranks: ",
}
_KEYS = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[H": "home", "\x1b[F": "end", "\x1b[5~": "page-up", "\x1b[6~": "page-down",
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\t": "tab",
    "\x03": "ctrl-c",
}  # fmt: skip


class Screen:
    """The content of a terminal of some size. `press` takes the name of a key; the screen is over when `is_closed`."""

    def __init__(
        self,
        collections: Mapping[str, Rows],
        width: int = 80,
        height: int = 24,
        report: Callable[[], bool] | None = None,
    ) -> None:
        """Show the first collection. `report` is called during a search, to draw its progress; True stops it."""
        self._collections = list(collections.items())
        self._report = report or (lambda: False)
        self.width, self.height = width, height
        self.is_closed = False
        self.message = ""
        self._prompt: tuple[str, str] | None = None
        self._query = ""
        self._shows_keys = False
        self._show(0)

    def _show(self, number: int) -> None:
        self._number = number
        self._filters = Filters()
        self._step: list[StepRow] | None = None
        self._position = self._offset = 0
        self._lines: dict[int, list[Line]] = {}
        self._choose()
        self.message = self.rows.note

    def _choose(self) -> None:
        """Find the rows that the filters choose, and go to the first."""
        self._selection = Selection(self.rows, self._filters)
        self._lines.clear()
        self._position = self._offset = 0

    @property
    def rows(self) -> Rows:
        """The collection that is shown."""
        return self._collections[self._number][1]

    @property
    def total(self) -> int:
        """The number of rows that can be shown."""
        return len(self._selection) if self._step is None else len(self._step)

    def draw(self) -> list[Line]:
        """Make all lines of the screen."""
        body: list[Line] = wrap([(_ALL_KEYS, "plain")], self.width) if self._shows_keys else []
        room = max(0, self.height - 2)
        position, offset = self._position, self._offset
        while not self._shows_keys and len(body) < room and position < self.total:
            body += self._read_lines(position)[offset:]
            position, offset = position + 1, 0
        if not (self.total or self._shows_keys):
            body = wrap([(self.rows.note or "there are no rows", "quiet")], self.width)
        body = body[:room] + [[] for _ in range(room - len(body))]
        title = wrap([(self._make_title(), "bar")], self.width)[0]
        return [title, *body, self._make_status()][-self.height :]

    def _make_title(self) -> str:
        name = make_printable(self._collections[self._number][0])
        where = f"{self._position + 1:,} of {self.total:,}" if self.total else "no rows"
        chosen = " ".join(
            f"{facet}={value}" for facet in ("split", "source", "reason") if (value := getattr(self._filters, facet))
        )
        chosen += "".join(f" {score.name} {score.low:g} to {score.high:g}" for score in self._filters.scores)
        return make_printable(f" {name} · {where}{' · ' if chosen else ''}{chosen}")

    def _make_status(self) -> Line:
        if self._prompt is not None:
            text = _PROMPTS[self._prompt[0]] + make_printable(self._prompt[1])
            while sum(map(measure, text)) >= self.width:
                text = text[1:]
            return [(text, "title"), (" ", "mark")]
        return wrap([(self.message or HELP, "quiet")], self.width)[0]

    def _read_lines(self, position: int) -> list[Line]:
        if position not in self._lines:
            if len(self._lines) > 200:
                self._lines.clear()
            self._lines[position] = make_lines(self._describe(position), self.width, self._pattern)
        return self._lines[position]

    def _describe(self, position: int) -> dict[str, Any]:
        if self._step is None:
            return describe_safely(self.rows, self._selection.row(position))
        place = self._step[position]
        step = {"stream_row": place.stream_row, "rank": place.rank, "epoch": place.epoch}
        return {**describe_safely(self.rows, place.number), "step": step}

    @property
    def _pattern(self) -> re.Pattern[str] | None:
        """What is marked: plain text only, since expressions of RE2 are not those of Python."""
        is_plain = self._query and not self._query.startswith(("re:", "id:"))
        return re.compile(re.escape(self._query), re.IGNORECASE) if is_plain else None

    def resize(self, width: int, height: int) -> None:
        """Take the new size of the terminal."""
        self.width, self.height = max(2, width), max(1, height)  # a character may take two columns
        self._lines.clear()
        self._offset = 0

    def press(self, key: str) -> None:
        """Do what a key stands for: a character, or `up`, `enter`, `escape` and the like."""
        if self._prompt is not None:
            self._edit(key)
            return
        self.message = ""
        if self._shows_keys:
            self._shows_keys = False
            return
        page = max(1, self.height - 3)
        actions: dict[str, Callable[[], None]] = {
            "q": self._close, "ctrl-c": self._close,
            "down": lambda: self._scroll(1), "j": lambda: self._scroll(1),
            "up": lambda: self._scroll(-1), "k": lambda: self._scroll(-1),
            " ": lambda: self._scroll(page), "page-down": lambda: self._scroll(page),
            "b": lambda: self._scroll(-page), "page-up": lambda: self._scroll(-page),
            "right": lambda: self._go_to(self._position + 1), "left": lambda: self._go_to(self._position - 1),
            "home": lambda: self._go_to(0), "end": lambda: self._go_to(self.total - 1),
            "G": lambda: self._go_to(self.total - 1),
            "n": lambda: self._search(1), "tab": lambda: self._show((self._number + 1) % len(self._collections)),
        }  # fmt: skip
        if key == "?":
            self._shows_keys = True
        elif key in _PROMPTS:
            self._prompt = (key, "")
        elif key in actions:
            self._try(actions[key])

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except GristmillError as error:
            self.message = error.message

    def _close(self) -> None:
        self.is_closed = True

    def _scroll(self, lines: int) -> None:
        self._offset += lines
        while self._offset < 0 and self._position > 0:
            self._position -= 1
            self._offset += len(self._read_lines(self._position))
        while self._position < self.total - 1 and self._offset >= len(self._read_lines(self._position)):
            self._offset -= len(self._read_lines(self._position))
            self._position += 1
        last = len(self._read_lines(self._position)) - 1 if self.total else 0
        self._offset = min(max(0, self._offset), last)

    def _go_to(self, position: int) -> None:
        self._position, self._offset = min(max(0, position), max(0, self.total - 1)), 0

    def _edit(self, key: str) -> None:
        assert self._prompt is not None
        kind, text = self._prompt
        if key == "enter":
            self._prompt = None
            action = {"/": self._start_search, "g": self._jump, "f": self._filter, "s": self._show_step}[kind]
            self._try(lambda: action(text))
        elif key in ("escape", "ctrl-c"):
            self._prompt = None
        elif key == "backspace":
            self._prompt = (kind, text[:-1])
        elif len(key) == 1:
            self._prompt = (kind, text + key)

    def _jump(self, text: str) -> None:
        if "@" in text:
            number = self.rows.find_document(text)
        else:
            number = get_number({"row": [text]}, "row", 0)
        self._step = None
        self._lines.clear()
        self._go_to(self._selection.find(number))

    def _filter(self, text: str) -> None:
        words = parse_qs(text.replace(" ", "&"), keep_blank_values=True)
        for name in words:
            if name not in _FILTERS:
                nearest = find_nearest(name, _FILTERS)
                advice = f'did you mean "{nearest}"?' if nearest else f"there are {', '.join(_FILTERS)}"
                raise UsageError(f'no filter "{name}": {advice}')
        self._filters = read_filters(words)
        self._step = None
        self._choose()

    def _show_step(self, text: str) -> None:
        if self.rows.steps is None:
            raise UsageError("there is no order of training here")
        numbers = text.replace(",", " ").split()
        words = {name: [number] for name, number in zip(("step", "batch", "world"), numbers, strict=False)}
        self._step = self.rows.steps.find_rows(
            get_number(words, "step", 0), get_number(words, "batch", 8, 1), get_number(words, "world", 1, 1)
        )
        self._lines.clear()
        self._go_to(0)

    def _start_search(self, text: str) -> None:
        self._query = text
        self._lines.clear()
        self._step = None
        self._search(0)

    def _search(self, skip: int) -> None:
        """Go to the next row that the query finds, from `skip` rows after this one on."""
        from gristmill.report.view.search import search_rows  # noqa: PLC0415  (the first screen needs none of it)

        if not self._query:
            raise UsageError("search for something first: /")
        kind = {"re:": "regex", "id:": "token"}.get(self._query[:3], "text")
        query = self._query if kind == "text" else self._query[3:]
        start = self._selection.row(self._position) + skip if self.total else 0
        hits = search_rows(self.rows, self._selection, query, kind, start)  # type: ignore[arg-type]
        for hit in hits:
            if isinstance(hit, dict):
                self.message = f"found in row {hit['number']:,}"
                self._go_to(self._selection.find(hit["number"]))
                self._scroll_to_mark()
                return
            self.message = f"searching … row {hit.row:,}; any key stops"
            if self._report():
                self.message = "stopped"
                return
        self.message = f"not found from here on: {query}"

    def _scroll_to_mark(self) -> None:
        """Scroll to the first marked line of a long row, if it is below the screen."""
        lines = self._read_lines(self._position)
        marked = next((number for number, line in enumerate(lines) if any(style == "mark" for _, style in line)), 0)
        if marked >= self.height - 2:
            self._offset = marked - self.height // 2


_ENTER, _LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


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
