"""The `gristmill` command: a table of commands, each imported only when it is run.

`--help` prints the summaries of the table, so it imports click and nothing else, however heavy the commands are.
Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted, 143 terminated. For `diff`, 1 is an answer, and 2 any error.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import Timer
from typing import NoReturn

import click

from gristmill import __version__
from gristmill.cli.printing import describe_error, format_error
from gristmill.core.errors import GristmillError, UsageError

COMMANDS = {
    "init": ("gristmill.cli.running.init", "Write a starter recipe, with sample data to run it on."),
    "plan": ("gristmill.cli.running.plan", "Check a recipe and show what a run would do."),
    "run": ("gristmill.cli.running.run", "Run a recipe, or resume an interrupted run."),
    "bench": ("gristmill.cli.running.bench", "Measure a recipe with several settings, and recommend one."),
    "dedup": ("gristmill.cli.running.dedup", "Remove duplicates from documents."),
    "status": ("gristmill.cli.running.status", "Show what a run is doing, from any machine that sees its output."),
    "inspect": ("gristmill.cli.datasets.inspect", "Show what a dataset holds."),
    "report": ("gristmill.cli.datasets.report", "Write the report of a dataset, as a page and as JSON."),
    "view": ("gristmill.cli.datasets.view", "Browse datasets and raw files in a local web page."),
    "diff": ("gristmill.cli.datasets.diff", "Compare two datasets: shards, records, tokens, recipes."),
    "verify": ("gristmill.cli.datasets.verify", "Check every file of a dataset against its manifest."),
    "trace": ("gristmill.cli.datasets.trace", "Follow a record back to its input file."),
    "tune": ("gristmill.cli.datasets.tune", "Show what other thresholds of a dataset's filters would keep."),
    "explain": ("gristmill.cli.datasets.explain", "Show what a recipe does with one record, and why."),
    "tokenizer": ("gristmill.cli.training.tokenizer", "Train a tokenizer, or check one."),
    "classifier": ("gristmill.cli.training.classifier", "Train a classifier of documents from two files of examples."),
    "template": ("gristmill.cli.training.template", "Check a chat template on your chats."),
    "export": ("gristmill.cli.datasets.export", "Export a dataset to Megatron, nanoGPT, NumPy and other formats."),
    "mix": ("gristmill.cli.datasets.mix", "Mix datasets in given proportions into one."),
    "stream": ("gristmill.cli.training.stream", "Measure, prove and trace how a dataset streams into training."),
    "doctor": ("gristmill.cli.doctor", "Show versions, cores, limits and caches, for bug reports."),
    "clean": ("gristmill.cli.running.clean", "Remove the temporary files of an interrupted run."),
    "demo": ("gristmill.cli.running.demo", "Turn Python's standard library into packed rows of tokens."),
}

_QUIET_SECONDS = 0.3
_SEND_AGAIN_SECONDS = 0.01
_PLAN_CACHE = "GRISTMILL_PLAN_CACHE"
"""An environment variable: another folder for what plans remember, or `off`."""


class CommandTable(click.Group):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, summary = COMMANDS[cmd_name]
        with _show_loading(shows=not ctx.resilient_parsing):  # not while a shell completes a word
            command: click.Command = import_module(module).command
            _apply_plan_cache(os.environ.get(_PLAN_CACHE, ""))
        command.short_help = summary
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise UsageError(f"there is no command {name!r}", help=_make_suggestion(name), command=name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _apply_plan_cache(setting: str) -> None:
    if setting:
        from gristmill.storage.user_cache.plan_cache import choose_plan_cache  # noqa: PLC0415  (not for --help)

        choose_plan_cache(None if setting == "off" else setting)


@click.command(
    cls=CommandTable,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: gristmill init corpus && gristmill run corpus/recipe.yaml",
)
@click.version_option(__version__, message="gristmill %(version)s")
def command_line() -> None:
    """Turn raw corpora into GPU-ready training batches, and prove that nothing was lost on the way."""


@contextmanager
def _show_loading(*, shows: bool) -> Iterator[None]:
    """Show a line on the terminal while a command's module is imported, if that takes long."""
    if not shows or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    timer = Timer(_QUIET_SECONDS, lambda: click.echo("starting …", nl=False, err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be printing
        click.echo("\r\x1b[K", nl=False, err=True)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    # The default action would end this process immediately: no `finally` would run, and workers would be left behind.
    signal.signal(signal.SIGTERM, _terminate)
    usual_hook, sys.unraisablehook = sys.unraisablehook, _send_again
    try:
        sys.exit(_exit_code(arguments))
    finally:
        sys.unraisablehook = usual_hook


def _exit_code(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    # Decided before click parses the words: its usage errors are reported as JSON, too.
    report = _report_as_json if "--json" in words else _report
    failed = 2 if words[:1] == ["diff"] else 1
    try:
        return command_line.main(arguments, prog_name="gristmill", standalone_mode=False) or 0
    except GristmillError as error:
        return report(error, 2 if isinstance(error, UsageError) else failed)
    except (click.Abort, KeyboardInterrupt):  # the first is click's form of the second
        click.echo("interrupted", err=True)
        return 128 + signal.SIGINT
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return report(error, error.exit_code)
    except BrokenPipeError:  # `gristmill inspect out | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failed
    except OSError as error:
        return report(error, failed)
    except MemoryError as error:
        return report(click.ClickException(f"out of memory: {error}"), failed)
    except _Terminated:
        click.echo("terminated", err=True)
        return 128 + signal.SIGTERM
    except RuntimeError as error:  # Python wraps what a signal raises while a class is made in an import
        if not isinstance(error.__cause__, KeyboardInterrupt | _Terminated):
            raise
        click.echo("interrupted", err=True)
        return 128 + signal.SIGINT


def _report(error: Exception, exit_code: int) -> int:
    from gristmill.cli.tables import print_lines  # noqa: PLC0415  (not for --help)

    print_lines(format_error(error), err=True)
    return exit_code


def _report_as_json(error: Exception, exit_code: int) -> int:
    """Report an error on standard output, for the script, and also as text on standard error."""
    click.echo(json.dumps(describe_error(error, exit_code), indent=2))
    return _report(error, exit_code)


class _Terminated(SystemExit):
    """SIGTERM arrived. It is a SystemExit, so that library code does not catch it."""


def _terminate(*_: object) -> NoReturn:
    raise _Terminated(128 + signal.SIGTERM)


def _send_again(lost: "sys.UnraisableHookArgs") -> None:
    """Send a signal again whose exception Python has dropped, as it does in callbacks of an import."""
    for error, number in ((KeyboardInterrupt, signal.SIGINT), (_Terminated, signal.SIGTERM)):
        if issubclass(lost.exc_type, error):
            # Not from here: the handler would run in this function, and Python would drop its exception, too.
            Timer(_SEND_AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()
            return
    sys.__unraisablehook__(lost)


def _make_suggestion(name: str) -> str:
    from gristmill.core.names import find_nearest  # noqa: PLC0415  (only a mistyped name needs it)

    nearest = find_nearest(name, COMMANDS)
    return f"did you mean {nearest!r}?" if nearest else "run 'gristmill --help' for the list of commands"
