"""The `gristmill` command: a table of commands, each imported only when it is run.

`--help` prints the summaries of the table, so it imports click and nothing else, however heavy the commands are.
Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted, 143 terminated. For `diff`, 1 is an answer, and 2 any error.
"""

import _thread
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from threading import Timer
from time import sleep
from types import FrameType
from typing import NoReturn, TextIO

import click

from gristmill import __version__
from gristmill.cli.printing import describe_error, echo, format_error
from gristmill.core.checks import find_nearest
from gristmill.core.errors import GristmillError, UsageError

GROUPS = {
    "Make": {
        "init": ("gristmill.cli.running.first_steps", "Write a starter recipe, with sample data to run it on."),
        "plan": ("gristmill.cli.running.plan", "Check a recipe and show what a run would do."),
        "run": ("gristmill.cli.running.run", "Run a recipe, or resume an interrupted run."),
        "bench": ("gristmill.cli.running.try_settings", "Measure a recipe with several settings, and recommend one."),
        "dedup": ("gristmill.cli.running.dedup", "Remove duplicates from documents."),
        "mix": ("gristmill.cli.datasets.export", "Mix datasets in given proportions into one."),
        "export": ("gristmill.cli.datasets.export", "Export a dataset to Megatron, nanoGPT, NumPy and other formats."),
        "demo": ("gristmill.cli.running.first_steps", "Turn Python's standard library into packed rows of tokens."),
    },
    "Look": {
        "inspect": ("gristmill.cli.datasets.inspect", "Show what a dataset holds."),
        "report": ("gristmill.cli.datasets.inspect", "Write the report of a dataset, as a page and as JSON."),
        "view": ("gristmill.cli.datasets.browse", "Browse datasets and raw files in a local web page."),
        "diff": ("gristmill.cli.datasets.browse", "Compare two datasets: shards, records, tokens, recipes."),
        "trace": ("gristmill.cli.datasets.explain", "Follow a record back to its input file."),
        "explain": ("gristmill.cli.datasets.explain", "Show what a recipe does with one record, and why."),
        "tune": ("gristmill.cli.datasets.tune", "Show what other thresholds of a dataset's filters would keep."),
        "status": ("gristmill.cli.running.status", "Show what a run is doing, from any machine that sees its output."),
    },
    "Train": {
        "stream": ("gristmill.cli.training.stream", "Measure, prove and trace how a dataset streams into training."),
        "template": ("gristmill.cli.training.template", "Check a chat template on your chats."),
        "tokenizer": ("gristmill.cli.training.tokenizer", "Train a tokenizer, or check one."),
        "classifier": (
            "gristmill.cli.training.tokenizer",
            "Train a classifier of documents from two files of examples.",
        ),
    },
    "Maintain": {
        "verify": ("gristmill.cli.datasets.inspect", "Check every file of a dataset against its manifest."),
        "clean": ("gristmill.cli.running.status", "Remove the temporary files of an interrupted run."),
        "doctor": ("gristmill.cli.doctor", "Show versions, cores, limits and caches, for bug reports."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

_QUIET_SECONDS = 0.3
_LOCAL_FILES = ("gristmill.storage.lock", "gristmill.storage.parallel_files")
"""Modules whose `__enter__` and `__exit__` are too short to be waited for, and leave files behind when they are cut."""
_STOP_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
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
            command: click.Command = getattr(import_module(module), f"{cmd_name}_command")
            if setting := os.environ.get(_PLAN_CACHE):
                from gristmill.storage.remembered_proofs import choose_plan_cache  # noqa: PLC0415  (not for --help)

                choose_plan_cache(None if setting == "off" else setting)
        command.short_help = summary
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            nearest = find_nearest(name, COMMANDS)
            hint = f"did you mean {nearest!r}?" if nearest else "run 'gristmill --help' for the list of commands"
            raise UsageError(f"there is no command {name!r}", help=hint, command=name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", summary) for name, (_, summary) in commands.items()])


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
    stops = _Stops()
    usual_hook, sys.unraisablehook = sys.unraisablehook, stops.send_dropped_again
    handlers = {number: signal.getsignal(number) for number in _STOP_WORDS}
    try:
        try:
            for number, handler in handlers.items():
                # The default action would end this process immediately: no `finally` would run, and workers would be
                # left behind. What is ignored stays so: Ctrl-C in the background of a script.
                if handler not in (signal.SIG_IGN, None):
                    signal.signal(number, stops.handle)
            stops.exit_code = _exit_code(arguments, stops)
        except Stopped:  # before or after the command: while its error was printed
            stops.report()
        sys.exit(stops.exit_code)
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # set by other than Python code
                signal.signal(number, handler)
        sys.unraisablehook = usual_hook


def _exit_code(arguments: Sequence[str] | None, stops: "_Stops") -> int:
    words = sys.argv[1:] if arguments is None else arguments
    # Decided before click parses the words: its usage errors are reported as JSON, too.
    stdout = _reserve_stdout() if "--json" in words and arguments is None else sys.stdout
    report = partial(_report_as_json, stdout) if "--json" in words else _report
    failed = 2 if words[:1] == ["diff"] else 1
    try:
        try:
            return command_line.main(arguments, prog_name="gristmill", standalone_mode=False, obj=stdout) or 0
        except BaseException:
            # What the signal's exception may have become: click's Abort, an ImportError of numpy, a failed task.
            if stops.number is None:
                raise
            return stops.report()
    except GristmillError as error:
        return report(error, 2 if isinstance(error, UsageError) else failed)
    except (click.Abort, KeyboardInterrupt):  # the first is click's form of the second
        stops.number = signal.SIGINT
        return stops.report()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return report(error, error.exit_code)
    except BrokenPipeError:  # `gristmill inspect out | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        return failed
    except OSError as error:
        return report(error, failed)
    except MemoryError as error:
        return report(click.ClickException(f"out of memory: {error}"), failed)


def _reserve_stdout() -> TextIO:
    """Return standard output for JSON, and let everything else that writes there write to standard error.

    Workers, functions of the user, native libraries and threads of Ray print, too, until the end of the process.
    """
    if sys.stdout is None or sys.stderr is None:
        return sys.stdout
    copy = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return copy


def _report(error: Exception, exit_code: int) -> int:
    from gristmill.cli.tables import print_lines  # noqa: PLC0415  (not for --help)

    print_lines(format_error(error), err=True)
    return exit_code


def _report_as_json(stdout: TextIO, error: Exception, exit_code: int) -> int:
    """Report an error on standard output, for the script, and also as text on standard error."""
    click.echo(json.dumps(describe_error(error, exit_code), indent=2), file=stdout)
    return _report(error, exit_code)


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived.

    Not KeyboardInterrupt itself: Python notes each of those that passes an `exec`, and would end by the signal.
    """


class _Stops:
    """The signals that stop a command: each raises `Stopped` once, at a moment where Python does not drop it."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that arrived last."""
        self.exit_code: int | None = None
        """How this process ends, once the command is done."""
        self._is_sent_again = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise `Stopped`; inside of an import, or while a local file is locked or removed, after it.

        What is raised in an import is dropped in callbacks, turned into other errors by extension modules, and leaves
        modules behind that are half made; in a lock's `__exit__` it leaves the lock. A second signal does not wait.
        """
        if self.exit_code is not None:
            os._exit(self.exit_code)
        is_first = self.number is None or self._is_sent_again
        self.number, self._is_sent_again = number, False
        if not (is_first and _is_half_done(frame)):
            raise Stopped
        self._send_again()

    def send_dropped_again(self, dropped: "sys.UnraisableHookArgs") -> None:
        """Send a signal again whose exception Python has dropped, as it does in callbacks."""
        if issubclass(dropped.exc_type, Stopped):
            self._send_again()
        else:
            sys.__unraisablehook__(dropped)

    def report(self) -> int:
        """Say which signal has stopped the command, and return its exit code."""
        assert self.number is not None
        self.exit_code = 128 + self.number
        echo(_STOP_WORDS[signal.Signals(self.number)], err=True)
        return self.exit_code

    def _send_again(self) -> None:
        # Not from here: the handler would find the same callback or import. And not by a `Timer`: its locks are not
        # reentrant, and the signal may have arrived inside of them.
        _thread.start_new_thread(self._send_soon, ())

    def _send_soon(self) -> None:
        sleep(_SEND_AGAIN_SECONDS)
        self._is_sent_again = True
        assert self.number is not None
        os.kill(os.getpid(), self.number)


def _is_half_done(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            return True
        if code.co_name in ("__enter__", "__exit__") and frame.f_globals["__name__"] in _LOCAL_FILES:
            return True
        frame = frame.f_back
    return False
