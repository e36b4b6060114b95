"""`gristmill bench`: which settings suit a recipe and this machine, measured in about a minute.

With `--profile` py-spy then starts a run with the best setting, looks at all its processes, and draws a flame graph.
"""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from gristmill.cli.options import Size, json_option, recipe_argument
from gristmill.cli.printing import echo, format_command, print_json
from gristmill.cli.tables import print_table, print_wrapped
from gristmill.cli.training.stream import Numbers
from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.quantities import format_bytes
from gristmill.pipeline.tune_settings import SLICE_SIZES, Bench, Setting, run_bench
from gristmill.recipe.load import load_recipe
from gristmill.report.charts import Bar, Chart, check_picture, draw_bars, draw_lines, write_picture

BACKENDS = ("processes", "threads", "serial", "ray")
_LEAVE_SECONDS = 20.0


class Backends(click.ParamType[list[str]]):
    """A list of backends, as `processes,threads`."""

    name = "backends"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Parse names such as `processes,ray`."""
        names = list(dict.fromkeys(str(value).split(","))) if not isinstance(value, list) else value
        for name in names:
            if name not in BACKENDS:
                self.fail(f"{name!r} is not a backend: choose from {', '.join(BACKENDS)}", param, ctx)
        return names


class Sizes(click.ParamType[list[int]]):
    """A list of sizes, as `4MiB,64MiB`."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Parse sizes such as `4MiB,64MiB`; an empty word gives none."""
        if isinstance(value, (list, tuple)):
            return list(value)
        return [Size().convert(word, param, ctx) for word in str(value).split(",") if word]


@click.command(epilog="Example: gristmill bench recipe.yaml --seconds 60 --plot bench.svg")
@recipe_argument
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, help="About how long to measure."
)
@click.option("--workers", type=Numbers(), help="Numbers of workers, as 1,2,8. Default: 1, 2, 4, … up to all cores.")
@click.option(
    "--backends",
    type=Backends(),
    default="processes,threads",
    show_default=True,
    help="Where to run: processes, threads, serial, ray.",
)
@click.option(
    "--slice-bytes", type=Sizes(), default=list(SLICE_SIZES), help="Sizes of tasks. Default: 4MiB,16MiB,64MiB."
)
@click.option("--plot", metavar="FILE", type=click.Path(dir_okay=False), help="Write speed-up and memory as a picture.")
@click.option(
    "--profile",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a flame graph of the recommended setting (SVG), with py-spy.",
)
@json_option
def bench_command(
    recipe: str,
    overrides: tuple[str, ...],
    seconds: float,
    workers: list[int] | None,
    backends: list[str],
    slice_bytes: list[int],
    plot: str | None,
    profile: str | None,
    *,
    as_json: bool,
) -> None:
    """Run the first seconds of RECIPE with several settings, and recommend one.

    Varies the number of workers, the backend and the size of tasks, and shows speed-up, memory and what limits the
    run. If the recipe makes rows of tokens, training batches are measured, too. Nothing is written to its output: all
    runs use a temporary folder, which is removed. Ctrl-C ends the measuring, and shows what was measured.
    """
    for path in (plot, profile):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"there is no folder for {path}", help="create it first, or choose another path")
    if plot is not None:  # before a minute of work
        check_picture(plot)
    if profile is not None:
        find_profiler()
    if any(number < 1 for number in workers or ()):
        raise UsageError("--workers must be numbers from 1", help="write --workers 1,2,4")
    loaded = load_recipe(recipe, overrides)
    is_shown = not as_json and sys.stderr is not None and sys.stderr.isatty()

    def show_line(text: str) -> None:
        if is_shown:
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    bench = run_bench(
        loaded,
        seconds=seconds,
        workers=sorted(set(workers or ())),
        backends=backends,
        slice_sizes=slice_bytes,
        show=lambda setting: show_line(f"measuring: {_describe_setting(setting)}"),
    )
    show_line("")
    if plot is not None and bench.measurements:
        _write_plot(bench, plot)
    if as_json:
        print_json(json.dumps(_describe_bench(bench, recipe, overrides), indent=2))
    else:
        _print_bench(bench, recipe, overrides)
    if profile is not None and bench.best is not None and not bench.was_interrupted:
        write_flame_graph(recipe, overrides, bench.flags, profile, seconds=min(15.0, seconds))
        echo(f"flame graph: {profile}", err=as_json)
    if bench.was_interrupted:
        raise KeyboardInterrupt


def _describe_setting(setting: Setting) -> str:
    return f"{setting.backend}: {setting.workers}, slices {_format_slices(setting)}"


def _format_slices(setting: Setting) -> str:
    return "auto" if setting.slice_bytes == "auto" else f"{setting.slice_bytes >> 20} MiB"


def _describe_bench(bench: Bench, recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    described: dict[str, Any] = msgspec.to_builtins(bench)
    for entry, measurement in zip(described["measurements"], bench.measurements, strict=True):
        entry["bytes_per_second"] = round(measurement.bytes_per_second)
        entry["records_per_second"] = round(measurement.records_per_second, 1)
    best = bench.best
    return {
        **described,
        "best": None if best is None else msgspec.to_builtins(best.setting),
        "flags": bench.flags,
        "is_noise": bench.is_noise,
        "command": f"{format_command('run', recipe, overrides)} {shlex.join(bench.flags)}".rstrip(),
        "bottleneck": bench.bottleneck,
        "is_rough": bench.is_rough,
    }


def _print_bench(bench: Bench, recipe: str, overrides: Sequence[str]) -> None:
    if not bench.measurements:
        echo("nothing was measured")
        return
    rows = [
        (
            measurement.setting.backend,
            f"{measurement.setting.workers}",
            _format_slices(measurement.setting),
            f"{format_bytes(int(measurement.bytes_per_second))}/s" if measurement.bytes_per_second else "",
            f"{measurement.records_per_second:,.0f}",
            "" if measurement.speed_up is None else f"{measurement.speed_up:.2f}",
            format_bytes(measurement.memory_bytes),
            f"{measurement.cpu_share:.0%}",
            measurement.cause,
        )
        for measurement in bench.measurements
    ]
    print_table(("backend", "workers", "slices", "speed", "records/s", "speed-up", "memory", "cpu", "limit"), rows)
    if bench.batches:
        speeds = [
            (f"{b.batch_size}", f"{b.rows_per_second:,.0f}", f"{b.tokens_per_second:,.0f}") for b in bench.batches
        ]
        print_table(("rows in a training batch", "rows/s", "tokens/s"), speeds, num_words=0)
    jobs = ", ".join(dict.fromkeys(measurement.job for measurement in bench.measurements))
    whole = all(measurement.is_whole for measurement in bench.measurements)
    print_wrapped(f"measured: {jobs}{'' if whole else ', its first seconds'}; {bench.seconds:.0f} s in all")
    if bench.left_out:
        why = "interrupted" if bench.was_interrupted else "out of time"
        print_wrapped(
            f"{why}: {len(bench.measurements)} of {bench.num_settings} settings were measured, and not "
            + "; ".join(map(_describe_setting, bench.left_out))
        )
    if bench.lacks_batches and not bench.was_interrupted:
        print_wrapped("out of time: no training batches were measured")
    if bench.is_rough:
        print_wrapped("note: a setting took under half a second: the input is too small for exact figures")
    print_wrapped(f"limit: {bench.bottleneck}")
    if len(bench.measurements) == 1 < bench.num_settings and not bench.was_interrupted:
        print_wrapped("recommended: nothing yet, with one setting measured; give it more time: --seconds")
        return
    if bench.is_noise:
        print_wrapped("recommended: nothing, other programs used the CPUs meanwhile; measure again when they rest")
        return
    echo(f"recommended: {format_command('run', recipe, overrides)} {shlex.join(bench.flags)}".rstrip())


def _write_plot(bench: Bench, path: str) -> None:
    """Draw speed-up and memory by the number of workers, and the speed of every setting."""
    charts = []
    scaling = [m for m in bench.measurements if m.setting == Setting(m.setting.workers)]
    if len(scaling) > 1 and all(m.speed_up is not None for m in scaling):
        points = [(float(m.setting.workers), m.speed_up or 0.0) for m in scaling]
        series = [("measured", points), ("ideal", [(x, x) for x, _ in points])]
        drawing = draw_lines("speed-up", series, x_label="workers", y_label="speed-up")
        charts.append(Chart("Speed-up by worker processes", drawing, [(0, "measured"), (1, "ideal")]))
    speeds = [
        Bar(_describe_setting(m.setting), (m.bytes_per_second,), f"{format_bytes(int(m.bytes_per_second))}/s")
        for m in bench.measurements
    ]
    sizes = [
        Bar(_describe_setting(m.setting), (m.memory_bytes,), format_bytes(m.memory_bytes)) for m in bench.measurements
    ]
    charts += [Chart("Speed", draw_bars("speed", speeds)), Chart("Memory of all workers", draw_bars("memory", sizes))]
    write_picture(path, "gristmill bench", charts, note=f"limit: {bench.bottleneck}")


def find_profiler() -> str:
    """Find py-spy, next to this Python or on the path."""
    own = Path(sysconfig.get_path("scripts"), "py-spy")
    program = str(own) if own.exists() else shutil.which("py-spy")
    if program is None:
        raise UsageError("--profile needs py-spy, which is not installed", help="pip install py-spy")
    return program


def write_flame_graph(
    recipe: str, overrides: Sequence[str], flags: Sequence[str], path: str, *, seconds: float
) -> None:
    """Run a recipe for some seconds into a temporary folder, and write the flame graph of all its processes."""
    with tempfile.TemporaryDirectory(prefix="gristmill-profile-", ignore_cleanup_errors=True) as folder:
        changes = [*overrides, f"output={Path(folder, 'out')}"]
        words = [word for change in changes for word in ("--set", change)]
        run = [sys.executable, "-m", "gristmill", "run", os.fspath(recipe), *words, *flags, "--quiet"]
        picture = Path(folder, "flame.svg")
        record = [
            find_profiler(),
            "record",
            "--subprocesses",
            "--nonblocking",
            "--rate",
            "100",
            "--output",
            str(picture),
        ]
        with Path(folder, "log").open("w+") as log:
            process = subprocess.Popen(
                [*record, "--duration", f"{max(1, round(seconds))}", "--", *run],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(seconds + _LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end_group(process)
            log.seek(0)
            said = log.read().strip().splitlines()
        if not picture.exists():
            raise GristmillError(
                f"py-spy wrote no flame graph: {said[-1] if said else 'it said nothing'}",
                help="py-spy needs the right to look at processes: SYS_PTRACE in a container, sudo on macOS",
            )
        shutil.move(picture, path)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the run that py-spy has left, with its workers."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_SECONDS if number == signal.SIGTERM else None)
