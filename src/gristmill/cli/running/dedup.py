"""`gristmill dedup`: remove duplicates in one command, as a recipe of read, deduplicate and write."""

import json
from time import monotonic
from typing import Any

import click

from gristmill.cli.options import Choice, field_options, json_option, workers_option
from gristmill.cli.printing import print_json
from gristmill.cli.running.run import describe_result, print_accounts, print_outcome
from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.readers.read import Read
from gristmill.shards.formats.shard_format import FORMATS
from gristmill.steps.deduplicate.deduplicate import Deduplicate
from gristmill.steps.write import Write


@click.command(
    epilog="Examples: gristmill dedup 'data/*.jsonl.zst' out | gristmill dedup data out --threshold 0.9 --against "
    "out/older | gristmill dedup out/web out/unique --kind exact"
)
@click.argument("documents")
@click.argument("out", type=click.Path())
@field_options(Deduplicate, "kind", "threshold", "ngram", "bands", "rows", "verify")
@click.option(
    "--against",
    help="Also remove copies of the documents in this dataset or file, which is not changed. Whole documents are "
    "compared: this is not decontamination, and a test question inside a page is not found.",
)
@click.option("--against-text", metavar="FIELD", help="Field that holds the text in --against. Default: text.")
@click.option("--text", default="text", show_default=True, help="Field that holds the text.")
@click.option("--format", type=Choice(FORMATS), default="jsonl", show_default=True, help="Format of the output.")
@click.option("--columns", help="Comma-separated fields to keep in parquet and arrow. Default: all.")
@field_options(Deduplicate, "count", "max_source_loss", "max_cluster")
@workers_option
@field_options(RunOptions, "update", "overwrite")
@json_option
def dedup_command(
    documents: str,
    out: str,
    against: str | None,
    against_text: str | None,
    text: str,
    format: str,
    columns: str | None,
    workers: int | None,
    *,
    update: bool,
    overwrite: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Write DOCUMENTS (a file, a folder, a pattern or a dataset) to OUT without duplicates.

    The longest document of each set of duplicates is kept. OUT/dropped/duplicates.parquet lists each removed document
    and the one kept in its place. Re-running the command resumes an interrupted run. For several sources with a
    preference among them, write a recipe with the step deduplicate.
    """
    started = monotonic()
    if against_text is not None and against is None:
        raise UsageError("--against-text needs --against")
    reference = against if against_text is None else {"read": against, "text": against_text}
    read = Read(read=documents, text=text, columns=columns.split(",") if columns else [])
    step = Deduplicate(against=reference, **settings)
    recipe = Recipe(sources={"documents": read}, steps=[step, Write(format=format)], output=out)
    options = RunOptions(workers=workers or "auto", update=update, overwrite=overwrite)
    result = run_recipe(recipe, options)
    if as_json:
        print_json(json.dumps(describe_result(result, monotonic() - started), indent=2))
    else:
        print_accounts(result)
        print_outcome(result, monotonic() - started)
