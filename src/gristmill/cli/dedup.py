"""`gristmill dedup`: documents without their copies, in one command: a recipe of read, deduplicate and write."""

import json
from time import monotonic
from typing import Any

import click

from gristmill.cli.options import Choice, json_option
from gristmill.cli.run import print_accounts, print_outcome, result_facts
from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.options import RunOptions
from gristmill.shards.formats.shard_format import FORMATS
from gristmill.steps.deduplicate.deduplicate import KINDS, VERIFY, Deduplicate
from gristmill.steps.read import Read
from gristmill.steps.write import Write


@click.command(
    epilog="Examples: gristmill dedup 'data/*.jsonl.zst' out | gristmill dedup data out --threshold 0.9 --against "
    "out/older | gristmill dedup out/web out/unique --kind exact"
)
@click.argument("documents")
@click.argument("out", type=click.Path())
@click.option("--kind", type=Choice(KINDS), default="near", show_default=True, help="Alike texts, or equal ones.")
@click.option("--threshold", type=float, default=0.8, show_default=True, help="How alike, as Jaccard similarity.")
@click.option("--ngram", type=int, default=5, show_default=True, help="Words in a shingle.")
@click.option("--bands", type=int, default=18, show_default=True, help="Of MinHash values: more find more pairs.")
@click.option("--rows", type=int, default=6, show_default=True, help="Values in a band: more find fewer pairs.")
@click.option("--verify", type=Choice(VERIFY), default="text", show_default=True, help="How pairs are verified.")
@click.option(
    "--against",
    help="Also remove copies of the documents in this dataset or file, which stays as it is. Whole documents are "
    "compared: this is no decontamination, a test question inside a page is not found.",
)
@click.option("--against-text", metavar="FIELD", help="The field that holds the text there. Default: text.")
@click.option("--text", default="text", show_default=True, help="The field that holds the text.")
@click.option("--format", type=Choice(FORMATS), default="jsonl", show_default=True, help="Of the output.")
@click.option("--columns", help="Fields to keep in parquet and arrow, with commas between them, instead of all.")
@click.option("--count", is_flag=True, help="Say in duplicate_count how many documents each stands for.")
@click.option("--max-source-loss", type=float, default=0.5, show_default=True, help="Stop where more would go.")
@click.option("--max-cluster", type=int, default=100_000, show_default=True, help="Stop where more would be one.")
@click.option("--workers", type=click.IntRange(min=1), help="How many. Default: as many as this machine allows.")
@click.option("--update", is_flag=True, help="Make a changed dataset anew from what still fits.")
@click.option("--overwrite", is_flag=True, help="Make it anew from nothing.")
@json_option
def command(
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
    """Write the DOCUMENTS (a file, a folder, a pattern, a dataset) into OUT without their copies.

    Of each set of alike documents the longest stays. Which went for which is in OUT/dropped/duplicates.parquet; the
    same command goes on where a stopped one has ended. For several sources with a preference among them, write a
    recipe with the step deduplicate.
    """
    started = monotonic()
    if against_text is not None and against is None:
        raise UsageError("--against-text names a field of the files of --against, and there are none")
    others = against if against_text is None else {"read": against, "text": against_text}
    read = Read(read=documents, text=text, columns=columns.split(",") if columns else [])
    step = Deduplicate(against=others, **settings)
    recipe = Recipe(sources={"documents": read}, steps=[step, Write(format=format)], output=out)
    options = RunOptions(workers=workers or "auto", update=update, overwrite=overwrite)
    result = run_recipe(recipe, options)
    if as_json:
        click.echo(json.dumps(result_facts(result, monotonic() - started), indent=2))
    else:
        print_accounts(result)
        print_outcome(result, monotonic() - started)
