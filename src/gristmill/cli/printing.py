"""Errors on the command line: what happened, where, and what to do; JSON; and values of the user's data in one line."""

import errno
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

import click

from gristmill.core.checks import escape_controls
from gristmill.core.errors import GristmillError, RemoteError, SetupError, WorkerDiedError

_RESUME = "then run the same command again; finished work is kept"
_MAX_LINE = 1000
"""The longest line of an error, in characters."""
_HELP = {
    errno.ENOSPC: f"free some disk space, {_RESUME}",
    errno.EDQUOT: f"free some of your disk quota, {_RESUME}",
    errno.EACCES: "check the permissions, or choose another path",
    errno.EPERM: "check the permissions, or choose another path",
    errno.EROFS: "choose a path on a writable disk",
    errno.EIO: f"the disk reports an error: check it, {_RESUME}",
    errno.EMFILE: "allow more open files: ulimit -n 65536",
    errno.ENOENT: "check the path; the file may have been moved or deleted",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "name a file, not a folder",
}


def format_error(error: Exception) -> str:
    """Format an error for the user. Its notes say where it happened.

    >>> print(format_error(GristmillError("no records in 'corpus'", help="check the path")))
    error: no records in 'corpus'
      help: check the path
    """
    message, advice = _split_error(error)
    lines = f"error: {message}".splitlines()
    for note in _list_notes(error):
        first, *rest = note.splitlines() or [""]
        lines += [f"  note: {first}", *(f"        {line}" for line in rest)]
    if advice:
        lines.append(f"  help: {advice}")
    return "\n".join(map(_shorten, lines))


def describe_error(error: Exception, exit_code: int) -> dict[str, object]:
    """Return an error as plain values, for `--json`. Nothing is shortened."""
    message, advice = _split_error(error)
    facts = {"type": type(error).__name__, "message": message, "help": advice, "notes": list(_list_notes(error))}
    return {"error": facts, "exit_code": exit_code}


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text. What controls the terminal is escaped: names of files and data may come from anyone."""
    click.echo(escape_controls(str(text)), err=err, nl=nl)


def print_json(text: str | bytes) -> None:
    """Print the one object of `--json` to the standard output that the command began with."""
    click.echo(text, file=click.get_current_context().find_root().obj)


def _shorten(line: str) -> str:
    """Cut the middle out of a line that would fill the screen: a record, a list of thousands of names.

    >>> len(_shorten("x" * 6000))
    1000
    """
    if len(line) <= _MAX_LINE:
        return line
    left_out = f" … ({len(line):,} characters) … "
    end = (_MAX_LINE - len(left_out)) // 3
    return f"{line[: _MAX_LINE - len(left_out) - end]}{left_out}{line[-end:]}"


def to_one_line(value: object, max_chars: int = 200) -> str:
    r"""Format a value of the user's data in one line, without characters that control the terminal.

    >>> print(to_one_line("two\nlines"), to_one_line({"a": [1, None]}))
    two\nlines {"a": [1, null]}
    >>> to_one_line(bytes(5000))
    '"5,000 bytes"'
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_describe_value)
    visible_text = text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text):,} characters)"
    if visible_text.isprintable():
        return visible_text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in visible_text)


def _describe_value(value: object) -> str:
    return f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)


def format_short_number(value: float | str | None) -> str:
    """Format a number for people: whole numbers in full, others to four digits. Words stay as they are.

    >>> [format_short_number(value) for value in (100_000, 100_000.0, 0.33333, 4.6, 123456.7, 0.000012345, "en", None)]
    ['100,000', '100,000', '0.3333', '4.6', '123,457', '0.00001234', 'en', '']
    """
    if value is None or isinstance(value, str):
        return value or ""
    if not math.isfinite(value) or float(value).is_integer():
        return f"{value:,.0f}"
    num_decimals = max(1, 3 - math.floor(math.log10(abs(value))))
    visible_text = f"{value:,.{num_decimals}f}".rstrip("0").rstrip(".")
    return visible_text if abs(value) < 10_000 else f"{value:,.0f}"


def format_command(
    command: str,
    recipe: str,
    overrides: Sequence[str] = (),
    limit: int | None = None,
    options: Mapping[str, str | None] | None = None,
) -> str:
    """Format a command on a recipe, quoted for the shell; options without a value are left out.

    >>> format_command("run", "my recipe.yaml", ["seed=3"], 10, {"--backend": "ray", "--ray-address": None})
    "gristmill run 'my recipe.yaml' --set seed=3 --limit 10 --backend ray"
    """
    words = ["gristmill", command, recipe, *(word for change in overrides for word in ("--set", change))]
    all_options = {"--limit": None if limit is None else str(limit), **(options or {})}
    return shlex.join([*words, *(word for name, value in all_options.items() if value for word in (name, value))])


def quote_path(path: object) -> str:
    """Quote a path or URL for a command that is to be typed.

    >>> quote_path("my data/out")
    "'my data/out'"
    """
    return shlex.quote(str(path))


def _list_notes(error: Exception) -> Iterator[str]:
    """Yield the notes of an error, without item numbers and worker tracebacks where the message is sufficient."""
    from gristmill.storage.urls import redact  # noqa: PLC0415  (not for --help)

    is_sufficient = isinstance(error, (GristmillError, OSError)) and not isinstance(
        error, (RemoteError, SetupError, WorkerDiedError)
    )
    for note in getattr(error, "__notes__", ()):
        if not (is_sufficient and note.startswith(("gristmill: ", "in the worker:"))):
            yield redact(note)


def _split_error(error: Exception) -> tuple[str, str | None]:
    """Return the message of an error and what to do, without the secrets of URLs, which words of a command may hold."""
    from gristmill.storage.urls import redact  # noqa: PLC0415  (not for --help)

    message, advice = _find_message(error)
    return redact(message), redact(advice) if advice else advice


def _find_message(error: Exception) -> tuple[str, str | None]:
    if isinstance(error, GristmillError):
        return error.message, error.help
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename is not None else ""
        return f"{error.strerror or error}{place}", _HELP.get(error.errno or 0)
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "gristmill"
        return error.format_message(), f"run '{command} --help' to see how it is used"
    return error.format_message() if isinstance(error, click.ClickException) else str(error), None
