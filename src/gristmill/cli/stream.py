"""`gristmill stream`: how fast a dataset streams, proof that it resumes exactly, and what a step has read."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.tables import print_table
from gristmill.core.errors import UsageError
from gristmill.pipeline.outline import counted
from gristmill.stream import Collate, Stream
from gristmill.stream.prove import Proof, prove
from gristmill.stream.where import RowOrigins

F = TypeVar("F", bound=Callable[..., Any])


class Numbers(click.ParamType[list[int]]):
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """`8,3,5`."""
        if isinstance(value, list):
            return value
        try:
            return [int(number) for number in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers: write 8,3,5", param, ctx)


class Mixture(click.ParamType[dict[str, float]]):
    """Weights of sources."""

    name = "weights"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        """`web=0.7,code=0.3`."""
        if isinstance(value, dict):
            return value
        try:
            pairs = (part.rsplit("=", 1) for part in str(value).split(","))
            return {name: float(weight) for name, weight in pairs}
        except ValueError:
            self.fail(f"{value!r} is not a mixture: write web=0.7,code=0.3", param, ctx)


def stream_options(function: F) -> F:
    """Which rows, in which order: as in training."""
    for option in (
        click.option("--mixture", type=Mixture(), help="Weights, as web=0.7,code=0.3. Default: the dataset's."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of the order, as in training."),
        click.option("--split", help="Default: train."),
    ):
        function = option(function)
    return function


@click.group(epilog="Example: gristmill stream bench out")
def command() -> None:
    """Measure, prove and explain how a dataset streams into training."""


@command.command("bench", epilog="Example: gristmill stream bench out --batch-size 32")
@dataset_argument
@stream_options
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Rows in a batch.")
@click.option("--seconds", type=click.FloatRange(min=0.05), default=3.0, show_default=True, help="For each line.")
@json_option
def bench_command(
    out: str,
    split: str | None,
    seed: int,
    mixture: dict[str, float] | None,
    batch_size: int,
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """Measure how fast this process makes shuffled batches of the dataset in OUT."""
    results: list[dict[str, Any]] = []
    for fields in (("input_ids",), ("input_ids", "labels"), ("input_ids", "labels", "position_ids", "cu_seqlens")):
        start = time.perf_counter()
        stream = Stream(out, split=split, seed=seed, mixture=mixture, collate=Collate(fields=fields))
        batches = stream.batches(batch_size)
        next(batches)
        first = time.perf_counter() - start
        stream.accounting.restart(0)
        while time.perf_counter() - start - first < seconds:
            next(batches)
        account = stream.accounting.account()
        results.append(
            {
                "fields": list(fields),
                "first_batch_seconds": round(first, 4),
                "rows_per_second": round(account.rows_per_second),
                "tokens_per_second": round(account.tokens_per_second),
            }
        )
    if as_json:
        click.echo(json.dumps(results, indent=2))
        return
    rows = [
        (
            ", ".join(result["fields"]),
            f"{result['first_batch_seconds']:.3f} s",
            f"{result['rows_per_second']:,}",
            f"{result['tokens_per_second']:,}",
        )
        for result in results
    ]
    print_table(("fields", "first batch", "rows/s", "tokens/s"), rows)
    click.echo(f"one thread, batches of {batch_size}, shuffled; compiling, if any was needed, is in the first batch")


@command.command("prove", epilog="Example: gristmill stream prove out --world 8,3,5 --workers 0,1,3 --batch 2,6,24")
@dataset_argument
@stream_options
@click.option("--world", type=Numbers(), default="8,3,5", show_default=True, help="World sizes to change between.")
@click.option("--workers", type=Numbers(), default="0,1,3", show_default=True, help="Loader workers of each rank.")
@click.option("--batch", type=Numbers(), default="2,6", show_default=True, help="Rows for each rank.")
@click.option("--steps", type=click.IntRange(min=1), default=2, show_default=True, help="Before each change.")
@json_option
def prove_command(
    out: str,
    split: str | None,
    seed: int,
    mixture: dict[str, float] | None,
    world: list[int],
    workers: list[int],
    batch: list[int],
    steps: int,
    *,
    as_json: bool,
) -> None:
    """Prove on the dataset in OUT that training resumes exactly when everything changes.

    One run goes through all combinations of world size, workers and batch size, each resumed from the state of the
    one before it. What it reads is compared, row by row and in order, with a slow reader. Ranks and workers are made
    in this process, each with a stream of its own. Exits with 1 if a row differs.
    """
    proof = prove(Stream(out, split=split, seed=seed, mixture=mixture), world, workers, batch, steps)
    if as_json:
        click.echo(json.dumps({"ok": bool(proof), **asdict(proof)}, indent=2))
    else:
        _print_proof(proof, out)
    if not proof:
        click.get_current_context().exit(1)


def _print_proof(proof: Proof, out: str) -> None:
    if proof.different_row is not None:
        click.echo(f"row {proof.different_row:,} differs after {counted(len(proof.legs), 'change')}")
        click.echo(f"help: run: gristmill verify {out}; if all is as written, this is a bug: report it")
        return
    shown = [leg for number, leg in enumerate(proof.legs) if number < 6 or number == len(proof.legs) - 1]
    rows = [
        (f"{leg.world_size}", f"{leg.num_workers}", f"{leg.batch_size}", f"{leg.first_row:,}", f"{leg.num_rows:,}")
        for leg in shown
    ]
    print_table(("ranks", "workers", "batch", "from row", "rows"), rows, num_words=0)
    click.echo(
        f"proved: {proof.num_rows:,} rows in one order through {counted(len(proof.legs), 'combination')}; "
        "none lost, none twice, none in another place"
    )


@command.command("where", epilog="Example: gristmill stream where out 48213 --batch-size 8 --world 64")
@dataset_argument
@click.argument("step", type=click.IntRange(min=0))
@stream_options
@click.option("--batch-size", type=click.IntRange(min=1), required=True, help="Rows for each rank, as in training.")
@click.option("--world", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks, as in training.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank's rows.")
@click.option("--state", type=click.Path(), help="A saved state (JSON) from which steps are counted.")
@json_option
def where_command(
    out: str,
    step: int,
    split: str | None,
    seed: int,
    mixture: dict[str, float] | None,
    batch_size: int,
    world: int,
    rank: int | None,
    state: str | None,
    *,
    as_json: bool,
) -> None:
    """Show the documents that a training step has read from the dataset in OUT."""
    stream = Stream(out, split=split, seed=seed, mixture=mixture)
    if state is not None:
        stream.load_state_dict(_read_state(state))
    found = [row for row in stream.where(step, batch_size, world) if rank in (None, row.rank)]
    if as_json:
        click.echo(json.dumps([asdict(row) for row in found], indent=2))
        return
    for row in found:
        _print_row(row)


def _read_state(path: str) -> dict[str, Any]:
    try:
        state = json.loads(Path(path).read_bytes())
    except ValueError:
        raise UsageError(f"{path} is not JSON", help="save a state with json.dump(stream.state_dict(), file)") from None
    if not isinstance(state, dict):
        raise UsageError(f"{path} is not the state of a stream")
    return state


def _print_row(row: RowOrigins) -> None:
    click.echo(f"row {row.row:,}, rank {row.rank}: {row.source}, epoch {row.epoch}, {row.shard} row {row.shard_row:,}")
    for document in row.documents:
        origin = document.origin
        part = f", part {origin.part}" if origin.part else ""
        click.echo(f"  {document.tokens:,} tokens of {origin.path}, position {origin.position:,}{part}")
