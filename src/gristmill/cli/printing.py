"""How the command line says that something went wrong: what, where, what to do."""

import click

from gristmill.core.errors import GristmillError


def error_text(error: Exception) -> str:
    """An error as the user sees it; notes added on its way up say where it happened.

    >>> print(error_text(GristmillError("no records in 'corpus'", help="check the path")))
    error: no records in 'corpus'
      help: check the path
    """
    message, advice = _parts(error)
    lines = [f"error: {message}"]
    for note in getattr(error, "__notes__", ()):
        first, *rest = note.splitlines() or [""]
        lines += [f"  note: {first}", *(f"        {line}" for line in rest)]
    if advice:
        lines.append(f"  help: {advice}")
    return "\n".join(lines)


def _parts(error: Exception) -> tuple[str, str | None]:
    if isinstance(error, GristmillError):
        return error.message, error.help
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "gristmill"
        return error.format_message(), f"run '{command} --help' to see how it is used"
    return error.format_message() if isinstance(error, click.ClickException) else str(error), None
