"""`gristmill bench`: which settings suit a recipe and this machine, measured in about a minute."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from gristmill.cli.options import Size, json_option, recipe_argument
from gristmill.cli.running.flame_graph import find_profiler, write_flame_graph
from gristmill.cli.tables import print_table, print_wrapped
from gristmill.cli.training.stream import Numbers
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes
from gristmill.pipeline.bench import SLICE_SIZES, Bench, Setting, run_bench
from gristmill.recipe.load import load_recipe
from gristmill.report.charts import Bar, draw_bars, draw_lines
from gristmill.report.pictures import Chart, check_picture, write_picture

BACKENDS = ("processes", "threads", "serial", "ray")


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
def command(
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
    bench = run_bench(
        loaded,
        seconds=seconds,
        workers=sorted(set(workers or ())),
        backends=backends,
        slice_sizes=slice_bytes,
        show=lambda setting: _show_setting(setting, shows=not as_json),
    )
    _clear_line(shows=not as_json)
    if plot is not None and bench.measurements:
        _write_plot(bench, plot)
    if as_json:
        click.echo(json.dumps(_describe_bench(bench, recipe, overrides), indent=2))
    else:
        _print_bench(bench, recipe, overrides)
    if profile is not None and bench.best is not None and not bench.was_interrupted:
        write_flame_graph(recipe, overrides, bench.flags, profile, seconds=min(15.0, seconds))
        click.echo(f"flame graph: {profile}", err=as_json)
    if bench.was_interrupted:
        raise KeyboardInterrupt


def _show_setting(setting: Setting, *, shows: bool) -> None:
    if shows and sys.stderr is not None and sys.stderr.isatty():
        click.echo(f"\r\x1b[Kmeasuring: {_describe_setting(setting)}", nl=False, err=True)


def _clear_line(*, shows: bool) -> None:
    if shows and sys.stderr is not None and sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)


def _describe_setting(setting: Setting) -> str:
    return f"{setting.backend}: {setting.workers}, slices {_format_slices(setting)}"


def _format_slices(setting: Setting) -> str:
    return "auto" if setting.slice_bytes == "auto" else f"{setting.slice_bytes >> 20} MiB"


def _format_command(bench: Bench, recipe: str, overrides: Sequence[str]) -> str:
    words = [word for change in overrides for word in ("--set", change)]
    return shlex.join(["gristmill", "run", recipe, *words, *bench.flags])


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
        "command": _format_command(bench, recipe, overrides),
        "bottleneck": bench.bottleneck,
        "is_rough": bench.is_rough,
    }


def _print_bench(bench: Bench, recipe: str, overrides: Sequence[str]) -> None:
    if not bench.measurements:
        click.echo("nothing was measured")
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
    if len(bench.measurements) < bench.num_settings:
        why = "interrupted" if bench.was_interrupted else "out of time"
        print_wrapped(f"{why}: {len(bench.measurements)} of {bench.num_settings} settings were measured")
    if bench.is_rough:
        print_wrapped("note: a setting took under half a second: the input is too small for exact figures")
    print_wrapped(f"limit: {bench.bottleneck}")
    if len(bench.measurements) == 1 < bench.num_settings and not bench.was_interrupted:
        print_wrapped("recommended: nothing yet, with one setting measured; give it more time: --seconds")
        return
    click.echo(f"recommended: {_format_command(bench, recipe, overrides)}")


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
