"""`gristmill mix`: write several datasets in given proportions as one."""

import json
import re
from dataclasses import asdict
from typing import Any

import click

from gristmill.cli.options import Choice, backend_option, json_option, ray_option
from gristmill.cli.plots import plot_mix, plot_option
from gristmill.cli.printing import quote_path
from gristmill.cli.tables import print_table
from gristmill.core.errors import UsageError
from gristmill.pipeline.jobs.mix import mix
from gristmill.steps.mix import UNITS

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


class Count(click.ParamType[int]):
    """A large number with an optional suffix: 300M, 1.5B."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number of rows or tokens: `1.5B` is 1,500,000,000."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBGT]?)", str(value).replace("_", "").replace(",", "").upper())
        if not match:
            self.fail(f"{value!r} is not a size: write 5000, 300M or 1.5B", param, ctx)
        return round(float(match[1]) * _UNITS[match[2]])


class Input(click.ParamType[tuple[str, str, float]]):
    """A dataset with its name and weight."""

    name = "name=folder:weight"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str, float]:
        """Parse an input such as `web=out/web:0.7`."""
        match = re.fullmatch(r"([\w.-]+)=(.+):(\d+(?:\.\d*)?|\.\d+)", str(value))
        if not match:
            self.fail(f"{value!r} is not an input: write web=out/web:0.7", param, ctx)
        return match[1], match[2], float(match[3])


@click.command(epilog="Example: gristmill mix out/mixed web=out/web:0.7 code=out/code:0.3 --size 1.5B --max-epochs 2")
@click.argument("out", type=click.Path())
@click.argument("inputs", nargs=-1, required=True, type=Input())
@click.option("--size", type=Count(), required=True, help="Size of the result: 5000, 300M, 1.5B.")
@click.option("--by", type=Choice(UNITS), default="tokens", show_default=True, help="Unit of weights and size.")
@click.option("--max-epochs", type=float, default=1.0, show_default=True, help="How often a source may be repeated.")
@click.option("--split", default="train", show_default=True, help="Split of the inputs.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the random choice in an incomplete epoch."
)
@click.option(
    "--no-interleave",
    "interleave",
    flag_value=False,
    default=True,
    help="Write a folder for each source instead of one lane.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), help="Number of workers. Default: as many as this machine allows."
)
@backend_option("auto", "Where tasks run. auto: small mixes in this process, all others in worker processes.")
@ray_option
@plot_option
@json_option
def command(
    out: str,
    inputs: tuple[tuple[str, str, float], ...],
    size: int,
    by: str,
    max_epochs: float,
    split: str,
    seed: int,
    workers: int | None,
    backend: str,
    ray_address: str | None,
    plot: str | None,
    *,
    interleave: bool,
    as_json: bool,
) -> None:
    """Write the datasets INPUTS to OUT, in the proportions of their weights.

    They are interleaved in one lane, train/mixed, so that every prefix of it holds each source in its share. Whole
    epochs of a source are taken first, and the rest is a random choice. A size that the inputs cannot fill is refused,
    and the largest possible size is named. Training with Stream needs no such copy: it mixes while it reads.
    """
    datasets = {name: (folder, weight) for name, folder, weight in inputs}
    if len(datasets) < len(inputs):
        raise UsageError("two inputs have the same name", help="each input becomes a source: give them different names")
    shares = mix(
        datasets,
        out,
        size=size,
        by=by,
        max_epochs=max_epochs,
        split=split,
        seed=seed,
        interleave=interleave,
        workers=workers or "auto",
        backend=backend,
        ray_address=ray_address,
    )
    if plot is not None:
        plot_mix(plot, shares, by)
    if as_json:
        click.echo(json.dumps([{**asdict(share), "epochs": share.epochs} for share in shares], indent=2))
        return
    total = sum(share.taken for share in shares)
    rows = [
        (share.source, f"{share.wanted:,}", f"{share.taken:,}", f"{share.taken / total:.2%}", f"{share.epochs:.3f}")
        for share in shares
    ]
    print_table(("source", "wanted", by, "share", "epochs"), rows)
    click.echo(f"done: {total:,} {by} in {out}; next: gristmill verify {quote_path(out)}")
