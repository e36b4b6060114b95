"""Datasets in other forms: `gristmill export` writes one in another format, `gristmill mix` several as one."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from gristmill.cli.options import (
    Choice,
    MixtureParam,
    backend_option,
    dataset_argument,
    json_option,
    ray_option,
    workers_option,
)
from gristmill.cli.plots import plot_mix, plot_option
from gristmill.cli.printing import echo, print_json, quote_path
from gristmill.cli.tables import print_lines, print_table
from gristmill.core.checks import parse_count
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count
from gristmill.exports.formats import find_export_format, list_format_names
from gristmill.exports.training import COLUMNS
from gristmill.pipeline.jobs.export import export
from gristmill.pipeline.jobs.mix_datasets import mix
from gristmill.steps.mix import UNITS


@click.command(epilog="Example: gristmill export out --to megatron --path bin/corpus")
@dataset_argument
@click.option("--to", type=Choice(list_format_names()), required=True, help="Format to write.")
@click.option(
    "--path",
    help="Beginning of the files' names, such as bin/corpus; for llamafactory, nanogpt, mds and litdata a folder. On "
    "this machine, on a store (s3://bucket/corpus), or hf://datasets/OWNER/NAME. Default: OUT-FORMAT/OUT.",
)
@click.option("--split", help="Export only this split. Default: all, each in its own files.")
@click.option("--source", help="Export only this source. Default: all, one after the other.")
@click.option(
    "--vocab-size",
    type=click.IntRange(min=1),
    help="Vocabulary size with added tokens: it decides how wide ids are in token files.",
)
@click.option(
    "--columns",
    type=Choice(COLUMNS),
    help="Columns of tokens in parquet, jsonl and webdataset. Default: training for chats in parquet and jsonl, else "
    "stored.",
)
@click.option(
    "--licence",
    "licences",
    multiple=True,
    metavar="SOURCE=LICENCE",
    help="Licence of a source, for the card on the Hub; may be repeated.",
)
@click.option(
    "--row-group-rows",
    type=click.IntRange(min=1),
    help="Rows in a row group. Default: for parquet as many as 32 MiB hold, for megatron-bridge 500.",
)
@click.option(
    "--weights", type=Choice(("drop",)), help="Leave out the weights of tokens where there is no place for them."
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@workers_option
@backend_option("processes", "Where tasks run.")
@ray_option
@json_option
def export_command(
    out: str,
    to: str,
    path: str | None,
    split: str | None,
    source: str | None,
    vocab_size: int | None,
    columns: str | None,
    licences: tuple[str, ...],
    row_group_rows: int | None,
    weights: Literal["drop"] | None,
    workers: int | None,
    backend: str,
    ray_address: str | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the dataset in OUT in another format.

    megatron, olmo-core, nanogpt and llmc take tokens that are not packed, in the order of the documents; numpy, mds and
    megatron-bridge take packed rows; litdata and llamafactory take both; webdataset, parquet and jsonl take any
    dataset; verl, trl-prompts and nemo-rl take prompts (render: {until: prompt}). The files appear together, when all
    are complete.
    """
    exported = export(
        out,
        to=to,
        path=path or _choose_default_path(out, to),
        split=split,
        source=source,
        vocab_size=vocab_size,
        columns=columns,
        licences=_parse_licences(licences),
        row_group_rows=row_group_rows,
        weights=weights,
        overwrite=overwrite,
        workers=workers or "auto",
        backend=backend,
        ray_address=ray_address,
    )
    sizes = exported.uploaded or {str(file): file.stat().st_size for file in exported.files}
    if as_json:
        facts = {
            "files": sizes,
            "rows": exported.rows,
            "usage": exported.usage,
            "notes": exported.notes,
            "nan_as_null": exported.nan_as_null,
            "commit": exported.commit,
        }
        print_json(json.dumps(facts, indent=2))
        return
    for name, num_bytes in sizes.items():
        echo(f"{name}  {format_bytes(num_bytes)}")
    rows = ", ".join(f"{split} {count:,}" for split, count in exported.rows.items())
    echo(f"done: rows {rows}; {format_count(len(sizes), 'file')}, {format_bytes(sum(sizes.values()))}")
    if exported.commit:
        echo(f"commit: {exported.commit}")
    if exported.nan_as_null:
        echo(f"nan_as_null: {exported.nan_as_null:,} numbers (NaN, infinity) became null: JSON has none")
    for usage in exported.usage:
        echo(f"usage: {usage}")
    for note in exported.notes:
        print_lines(f"note: {note}")


def _parse_licences(words: tuple[str, ...]) -> dict[str, str]:
    """Parse words such as `web=odc-by`: the licence of each source."""
    for word in words:
        if not all(word.partition("=")):
            raise click.UsageError(f"--licence {word}: write SOURCE=LICENCE, such as web=odc-by")
    return {source: licence for source, _, licence in (word.partition("=") for word in words)}


def _choose_default_path(out: str, to: str) -> Path:
    """Choose a folder next to the dataset and, unless the format takes a folder, the beginning of the files' names.

    The files of a dataset on a store go to the current folder.
    """
    place = Path(out.rstrip("/").rpartition("/")[2]) if "://" in out else Path(out)
    folder = place.absolute()
    exported = place.parent / f"{folder.name}-{to}"
    return exported if find_export_format(to).folder_suffixes else exported / folder.name


class Count(click.ParamType[int]):
    """A large number with an optional suffix: 300M, 1.5B."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number of rows or tokens: `1.5B` is 1,500,000,000."""
        if isinstance(value, int):
            return value
        try:
            return parse_count("the size", str(value))
        except UsageError:
            self.fail(f"{value!r} is not a size: write 5000, 300M or 1.5B", param, ctx)


class Input(click.ParamType[tuple[str, str, float | None]]):
    """A dataset with its name, and its weight if it has one."""

    name = "name=folder[:weight]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str, float | None]:
        """Parse an input such as `web=out/web:0.7`."""
        match = re.fullmatch(r"([\w.-]+)=(.+?)(?::(\d+(?:\.\d*)?|\.\d+))?", str(value))
        if not match:
            self.fail(f"{value!r} is not an input: write web=out/web:0.7", param, ctx)
        return match[1], match[2], None if match[3] is None else float(match[3])


@click.command(epilog="Example: gristmill mix out/mixed web=out/web:0.7 code=out/code:0.3 --size 1.5B --max-epochs 2")
@click.argument("out", type=click.Path())
@click.argument("inputs", nargs=-1, required=True, type=Input())
@click.option("--size", type=Count(), help="Size of the result: 5000, 300M, 1.5B.")
@click.option(
    "--epochs",
    type=MixtureParam(),
    metavar="NAME=N,…",
    help="How often each dataset is taken, instead of --size and weights: web=1,code=2.5.",
)
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
@workers_option
@backend_option("auto", "Where tasks run. auto: small mixes in this process, all others in worker processes.")
@ray_option
@plot_option
@json_option
def mix_command(
    out: str,
    inputs: tuple[tuple[str, str, float | None], ...],
    size: int | None,
    epochs: dict[str, float] | None,
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
    """Write the datasets INPUTS to OUT, in the proportions of their weights, or each one its number of --epochs.

    They are interleaved in one lane, train/mixed, so that every prefix of it holds each source in its share. Whole
    epochs of a source are taken first, and the rest is a random choice. A size that the inputs cannot fill is refused,
    and the largest possible size is named. Training with Stream needs no such copy: it mixes while it reads.
    """
    datasets: dict[str, str | tuple[str, float]] = {
        name: folder if weight is None else (folder, weight) for name, folder, weight in inputs
    }
    if len(datasets) < len(inputs):
        raise UsageError("two inputs have the same name", help="each input becomes a source: give them different names")
    shares = mix(
        datasets,
        out,
        size=size,
        epochs=epochs,
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
        print_json(json.dumps([{**asdict(share), "epochs": share.epochs} for share in shares], indent=2))
        return
    total = sum(share.taken for share in shares)
    rows = [
        (share.source, f"{share.wanted:,}", f"{share.taken:,}", f"{share.taken / total:.2%}", f"{share.epochs:.3f}")
        for share in shares
    ]
    print_table(("source", "wanted", by, "share", "epochs"), rows)
    echo(f"done: {total:,} {by} in {out}; next: gristmill verify {quote_path(out)}")
