"""How the command line says that something went wrong: what, where, what to do."""

import errno
import json
import math
import shlex
from collections.abc import Iterator, Sequence

import click

from gristmill.core.errors import GristmillError, RemoteError, SetupError, WorkerDiedError

_RESUME = "then run the same command again; what a run has finished is kept"
_MAX_LINE = 1000
"""Characters of a line in an error."""
_HELP = {
    errno.ENOSPC: f"make room on the disk, {_RESUME}",
    errno.EDQUOT: f"make room in your quota, {_RESUME}",
    errno.EACCES: "see to the permissions, or choose another path",
    errno.EPERM: "see to the permissions, or choose another path",
    errno.EROFS: "choose an output on a disk that can be written",
    errno.EIO: f"the disk reports a fault: check it, {_RESUME}",
    errno.EMFILE: "allow more open files: ulimit -n 65536",
    errno.ENOENT: "check the path; where it was there, it has been moved or deleted meanwhile",
    errno.ENOTDIR: "a part of the path is a file; name a folder there",
    errno.EISDIR: "name a file, not a folder",
}


def error_text(error: Exception) -> str:
    """An error as the user sees it; notes added on its way up say where it happened.

    >>> print(error_text(GristmillError("no records in 'corpus'", help="check the path")))
    error: no records in 'corpus'
      help: check the path
    """
    message, advice = _parts(error)
    lines = f"error: {message}".splitlines()
    for note in _notes(error):
        first, *rest = note.splitlines() or [""]
        lines += [f"  note: {first}", *(f"        {line}" for line in rest)]
    if advice:
        lines.append(f"  help: {advice}")
    return "\n".join(map(_shortened, lines))


def error_facts(error: Exception, exit_code: int) -> dict[str, object]:
    """The same for scripts: one JSON object, nothing cut."""
    message, advice = _parts(error)
    facts = {"type": type(error).__name__, "message": message, "help": advice, "notes": list(_notes(error))}
    return {"error": facts, "exit_code": exit_code}


def _shortened(line: str) -> str:
    """Without the middle of a line that would fill the screen: a record, a list of thousands of names.

    >>> len(_shortened("x" * 6000))
    1000
    """
    if len(line) <= _MAX_LINE:
        return line
    left_out = f" … ({len(line):,} characters) … "
    end = (_MAX_LINE - len(left_out)) // 3
    return f"{line[: _MAX_LINE - len(left_out) - end]}{left_out}{line[-end:]}"


def one_line(value: object, max_chars: int = 200) -> str:
    r"""A value of the user's data in one line that cannot steer the terminal.

    >>> print(one_line("two\nlines"), one_line({"a": [1, None]}))
    two\nlines {"a": [1, null]}
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    shown = text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text):,} characters)"
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)


def short_number(value: float | str | None) -> str:
    """A number as a person writes it: whole ones in full, others to four digits; words as they are.

    >>> [short_number(value) for value in (100_000, 100_000.0, 0.33333, 4.6, 123456.7, 0.000012345, "en", None)]
    ['100,000', '100,000', '0.3333', '4.6', '123,457', '0.00001234', 'en', '']
    """
    if value is None or isinstance(value, str):
        return value or ""
    if not math.isfinite(value) or float(value).is_integer():
        return f"{value:,.0f}"
    num_decimals = max(1, 3 - math.floor(math.log10(abs(value))))
    shown = f"{value:,.{num_decimals}f}".rstrip("0").rstrip(".")
    return shown if abs(value) < 10_000 else f"{value:,.0f}"


def again(command: str, recipe: str, overrides: Sequence[str] = (), limit: int | None = None) -> str:
    """A command on a recipe, as it can be typed.

    >>> again("run", "my recipe.yaml", ["seed=3"], 10)
    "gristmill run 'my recipe.yaml' --set seed=3 --limit 10"
    """
    words = ["gristmill", command, recipe, *(word for change in overrides for word in ("--set", change))]
    return shlex.join([*words, *(() if limit is None else ("--limit", str(limit)))])


def _notes(error: Exception) -> Iterator[str]:
    """What was noted on the way, without the engine's own numbers and stacks where the message says it all."""
    says_it_all = isinstance(error, (GristmillError, OSError)) and not isinstance(
        error, (RemoteError, SetupError, WorkerDiedError)
    )
    for note in getattr(error, "__notes__", ()):
        if not (says_it_all and note.startswith(("gristmill: ", "in the worker:"))):
            yield note


def _parts(error: Exception) -> tuple[str, str | None]:
    if isinstance(error, GristmillError):
        return error.message, error.help
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename is not None else ""
        return f"{error.strerror or error}{place}", _HELP.get(error.errno or 0)
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "gristmill"
        return error.format_message(), f"run '{command} --help' to see how it is used"
    return error.format_message() if isinstance(error, click.ClickException) else str(error), None
