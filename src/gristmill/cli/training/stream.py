"""`gristmill stream`: measure the speed of a stream, prove exact resume, find the documents of a step, plan reads.

`prove --model` tries whether a model keeps the documents of packed rows separate.
"""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.options import json_option
from gristmill.cli.plots import plot_option, plot_step
from gristmill.cli.printing import echo, print_json
from gristmill.cli.tables import print_table
from gristmill.cli.training.stream_data import stream_arguments
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count
from gristmill.stream import Collate, Stream
from gristmill.stream.examine import Proof, RankReader, prove
from gristmill.stream.rows.row_details import RowOrigins

if TYPE_CHECKING:
    from gristmill.stream.torch.model_borders import BorderReport


class Numbers(click.ParamType[list[int]]):
    """A list of whole numbers, as `8,3,5`."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Parse numbers such as `8,3,5`."""
        if isinstance(value, list):
            return value
        try:
            return [int(number) for number in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers: write 8,3,5", param, ctx)


@click.group(epilog="Example: gristmill stream bench out")
def stream_command() -> None:
    """Measure, prove and trace how a dataset streams into training."""


@stream_command.command(
    "bench",
    short_help="Measure how fast batches are made here.",
    epilog="Example: gristmill stream bench out --batch-size 32",
)
@stream_arguments
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Rows per batch.")
@click.option(
    "--seconds", type=click.FloatRange(min=0.05), default=3.0, show_default=True, help="Time for each measurement."
)
@click.option(
    "--workers", type=Numbers(), default="0,2", show_default=True, help="Loader workers to try; 0: a TorchLoader."
)
@json_option
def bench_command(
    open_stream: Callable[..., Stream], batch_size: int, seconds: float, workers: list[int], *, as_json: bool
) -> None:
    """Measure how fast batches of the dataset in OUT are made here, and say what to use.

    Fields, loaders and workers are compared; a dataset on a store is also read through an empty cache. Name several
    datasets like this: web=out/web:0.7 code=out/code:0.3.
    """
    from gristmill.stream.examine import measure_stream  # noqa: PLC0415  (only this command needs it)

    checks = _import_torch_checks()
    result = measure_stream(open_stream, batch_size, seconds, workers, checks and checks.make_loader)
    if as_json:
        print_json(json.dumps(result.as_dict(), indent=2))
        return
    rows = [
        (
            entry.loader,
            ", ".join(entry.fields),
            f"{entry.first_batch_seconds:.3f} s",
            f"{entry.rows_per_second:,.0f}",
            f"{entry.tokens_per_second:,.0f}",
            "" if entry.bytes_per_row is None else format_bytes(int(entry.bytes_per_row)),
        )
        for entry in result.measurements
    ]
    print_table(("loader", "fields", "first batch", "rows/s", "tokens/s", "fetched/row"), rows, num_words=2)
    echo(f"batches of {batch_size} rows; the first one includes compilation, if it was needed")
    for line in result.advice:
        echo(line)


def _import_torch_checks() -> Any:
    """Import what makes and runs loaders of torch; None if it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    from gristmill.stream.torch import loader as checks  # noqa: PLC0415  (loads torch)

    return checks


@stream_command.command(
    "prove",
    short_help="Prove that training resumes exactly.",
    epilog="Example: gristmill stream prove out --world 8,3,5 --workers 0,1,3 --batch 2,6,24",
)
@stream_arguments
@click.option("--world", type=Numbers(), default="8,3,5", show_default=True, help="World sizes to alternate.")
@click.option("--workers", type=Numbers(), default="0,1,3", show_default=True, help="Loader workers per rank.")
@click.option("--batch", type=Numbers(), default="2,6", show_default=True, help="Rows per rank.")
@click.option("--steps", type=click.IntRange(min=1), default=2, show_default=True, help="Steps before each change.")
@click.option("--simulate", is_flag=True, help="Do not start worker processes, even if torch is installed.")
@click.option("--model", help="Instead, try on this model of transformers whether it keeps packed documents apart.")
@json_option
def prove_command(
    open_stream: Callable[..., Stream],
    world: list[int],
    workers: list[int],
    batch: list[int],
    steps: int,
    model: str | None,
    *,
    simulate: bool,
    as_json: bool,
) -> None:
    """Prove on the dataset in OUT that training resumes exactly when everything changes.

    One training run passes through all combinations of world size, workers and batch size, each resumed from the state
    of the one before it. Its rows are compared in order with those of a slow reader: ids, labels and the number of
    tokens. Workers are processes of a DataLoader if torch is installed, else they are simulated in this process. Name
    several datasets like this: web=out/web:0.7 code=out/code:0.3. Exits with 1 if a row differs.

    With --model, packed rows are compared with their documents alone on that model: does it respect the borders of
    documents, with the position ids of the stream, for each attention implementation? Exits with 1 if it does not.
    """
    if model is not None:
        prove_borders(open_stream(collate=Collate(fields=("input_ids", "position_ids"))), model, as_json=as_json)
        return
    checks = None if simulate else _import_torch_checks()
    read_ranks: RankReader | None = checks and checks.run_loader_workers
    proof = prove(open_stream(), world, workers, batch, steps, read_ranks)
    how = "simulated" if read_ranks is None else "processes"
    if as_json:
        print_json(json.dumps({"ok": bool(proof), "workers": how, **asdict(proof)}, indent=2))
    else:
        _print_proof(proof, how)
    if not proof:
        click.get_current_context().exit(1)


def _print_proof(proof: Proof, how: str) -> None:
    if proof.different_row is not None:
        changes = format_count(len(proof.runs), "change")
        echo(f"row {proof.different_row:,} differs in {proof.different_in} after {changes}")
        echo("help: run gristmill verify; if it finds no damage, this is a bug: please report it")
        return
    visible_runs = [run for number, run in enumerate(proof.runs) if number < 6 or number == len(proof.runs) - 1]
    rows = [
        (f"{run.world_size}", f"{run.num_workers}", f"{run.batch_size}", f"{run.first_row:,}", f"{run.num_rows:,}")
        for run in visible_runs
    ]
    print_table(("ranks", "workers", "batch", "from row", "rows"), rows, num_words=0)
    workers = "worker processes of a DataLoader" if how == "processes" else "workers simulated, without torch"
    echo(
        f"proved: {proof.num_rows:,} rows in one order through {format_count(len(proof.runs), 'combination')}, "
        f"{proof.num_tokens:,} tokens and their labels are equal ({workers}); no row lost, repeated or moved"
    )


@stream_command.command(
    "where",
    short_help="Show the documents that a training step reads.",
    epilog="Example: gristmill stream where out 48213 --batch-size 8 --world 64",
)
@stream_arguments
@click.argument("step", type=click.IntRange(min=0))
@click.option("--batch-size", type=click.IntRange(min=1), required=True, help="Rows per rank, as in training.")
@click.option(
    "--world", type=click.IntRange(min=1), default=1, show_default=True, help="Number of ranks, as in training."
)
@click.option("--rank", type=click.IntRange(min=0), help="Show only the rows of this rank.")
@click.option("--state", type=click.Path(), help="Saved state (JSON) from which steps are counted.")
@plot_option
@json_option
def where_command(
    open_stream: Callable[..., Stream],
    step: int,
    batch_size: int,
    world: int,
    rank: int | None,
    state: str | None,
    plot: str | None,
    *,
    as_json: bool,
) -> None:
    """Show the documents that a training step reads from the dataset in OUT.

    Name several datasets like this: web=out/web:0.7 code=out/code:0.3.
    """
    stream = open_stream(None if state is None else _read_state(state))
    rows = stream.where(step, batch_size, world, rank)
    if plot is not None:
        plot_step(plot, rows, step)
    if as_json:
        print_json(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
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
    echo(f"row {row.row:,}, rank {row.rank}: {row.source}, epoch {row.epoch}, {row.shard} row {row.shard_row:,}")
    for document in row.documents:
        origin = document.origin
        part = f", part {origin.part}" if origin.part else ""
        echo(f"  {document.tokens:,} tokens of {origin.path}, position {origin.position:,}{part}")


@stream_command.command(
    "plan",
    short_help="Compute what training will fetch from a store.",
    epilog="Example: gristmill stream plan s3://bucket/out --batch-size 8 --world 64 --steps 1000",
)
@stream_arguments
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Rows per rank.")
@click.option("--world", type=click.IntRange(min=1), default=1, show_default=True, help="Number of ranks.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Machines with a cache each.")
@click.option("--steps", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of steps.")
@json_option
def plan_command(
    open_stream: Callable[..., Stream],
    batch_size: int,
    world: int,
    nodes: int,
    steps: int,
    *,
    as_json: bool,
) -> None:
    """Compute what training will fetch from the dataset in OUT, which is on a store.

    Bytes, requests and the size of the cache follow from the order; nothing is read but the index. They are exact if
    the cache holds all blocks of these steps; if not, the command says so, and what is fetched at least. Training
    fetches ahead: at the last step, blocks of later steps have been fetched, too.
    """
    from gristmill.stream.read_plan import plan_reads  # noqa: PLC0415  (only this command needs it)

    plan = plan_reads(open_stream(), batch_size, world, steps, nodes)
    if as_json:
        print_json(json.dumps({**asdict(plan), "bytes_per_row": plan.bytes_per_row}, indent=2))
        return
    where = "" if nodes == 1 else " on each node"
    echo(f"{format_count(plan.steps, 'step')}, {plan.rows:,} rows{where}")
    fetched = f"{format_bytes(plan.bytes_read)} in {format_count(plan.requests, 'request')}"
    echo(f"fetched: {'about ' if plan.uncertainty else ''}{fetched}, ", nl=False)
    echo(f"{format_bytes(int(plan.bytes_per_row))} a row")
    if plan.uncertainty:
        least = f"{format_bytes(plan.distinct_bytes)} in {format_count(plan.distinct_requests, 'request')}"
        echo(f"at least: {least}, each block once; it may be more than that: {plan.uncertainty}")
    if plan.ahead_requests:
        ahead = f"{format_bytes(plan.ahead_bytes)} in {format_count(plan.ahead_requests, 'request')}"
        echo(f"ahead, for later steps: up to {ahead} more")
    is_enough = plan.cache_bytes >= plan.needed_cache_bytes
    enough = "is enough" if is_enough else "is too small to fetch each block once"
    echo(f"cache: {format_bytes(plan.cache_bytes)} {enough}; {format_bytes(plan.needed_cache_bytes)} would do")
    if plan.bytes_read > 2 * plan.distinct_bytes:
        echo("help: --shuffle-blocks 64 shuffles blocks, and fetches each once an epoch")


def prove_borders(stream: Stream, model: str, *, as_json: bool) -> None:
    """Try the model, print what it does, and exit with 1 if it does not respect borders."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"--model needs {name}, which is not installed", help=f"pip install {name}")
    from transformers.utils import logging  # noqa: PLC0415  (only this option needs it)

    from gristmill.stream.torch.model_borders import check_borders  # noqa: PLC0415  (loads torch)

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    report = check_borders(stream, model)
    if as_json:
        print_json(json.dumps({"ok": bool(report), **asdict(report)}, indent=2))
    else:
        _print_report(report)
    if not report:
        click.get_current_context().exit(1)


def _print_report(report: "BorderReport") -> None:
    rows = [
        (
            check.attention,
            check.call,
            "respected" if check.respects_borders else "NOT respected",
            f"{check.difference:.1e}",
            f"{check.rounding:.1e}",
        )
        for check in report.checks
    ]
    print_table(("attention", "called with", "borders", "later documents", "first document"), rows)
    for attention, reason in report.unavailable.items():
        echo(f"{attention} was not tried: {reason}")
    documents = f"{format_count(report.num_documents, 'document')} in {format_count(report.num_rows, 'row')}"
    if report:
        echo(f"proved: {report.model} gives {documents} the logits that each document has alone")
        if not all(check.respects_borders for check in report.checks):
            echo("help: call it with use_cache=False, as Trainer does; with a cache, documents see each other")
        return
    if not report.can_show_leaks:
        echo(f"nothing is proved: a changed token does not change the logits after it in {report.model}")
        echo("help: try trained weights, or random ones without projections that are zero")
        return
    why = "" if report.takes_positions else ": it does not take position_ids"
    echo(f"{report.model} does not respect the borders of documents ({documents}){why}")
    echo("help: choose an attention implementation that does, or train rows of one document: no `pack`")
