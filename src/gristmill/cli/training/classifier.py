"""`gristmill classifier`: train a classifier of documents from two files of examples."""

import math

import click
import msgspec

from gristmill.cli.options import json_option
from gristmill.pipeline.jobs.classifier_job import train_classifier
from gristmill.steps.read import Read, to_path

_MIN_ACCURACY = 0.6
"""Half of all documents are told apart by chance, if both files are of one size."""


@click.group(epilog="Example: gristmill classifier train good.jsonl bad.jsonl --out edu.model")
def command() -> None:
    """Train a classifier of documents."""


@command.command(
    "train",
    short_help="Train a model for quality_model from good and bad examples.",
    epilog="Example: gristmill classifier train good.jsonl bad.jsonl --out edu.model",
)
@click.argument("good")
@click.argument("bad")
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="The file of the model.")
@click.option("--text", default="text", show_default=True, help="Field that holds the text.")
@click.option("--epochs", type=click.IntRange(min=1), default=10, show_default=True, help="Passes over the examples.")
@click.option(
    "--max-documents", type=click.IntRange(min=1), default=100_000, show_default=True, help="First ones of each file."
)
@json_option
def train(good: str, bad: str, out: str, text: str, epochs: int, max_documents: int, as_json: bool) -> None:  # noqa: FBT001
    """Train on the documents of GOOD and BAD, and write a model for the step quality_model.

    A tenth of the documents is held out, and tells how good the model is.
    """
    good_read, bad_read = Read(read=to_path(good), text=text), Read(read=to_path(bad), text=text)
    summary = train_classifier(good_read, bad_read, out, max_documents=max_documents, epochs=epochs)
    if as_json:
        click.echo(msgspec.json.encode(summary).decode())
        return
    click.echo(f"trained on {summary.num_good:,} good and {summary.num_bad:,} bad documents")
    if summary.num_unreadable:
        click.echo(f"warning: {summary.num_unreadable:,} records are damaged or have no text, and were left out")
    if math.isnan(summary.accuracy):
        click.echo(
            "warning: too few documents to hold some of both classes out, so nothing tells how good the model is"
        )
    else:
        click.echo(f"of {summary.num_held_out:,} documents that were held out, {summary.accuracy:.1%} are told apart")
        if summary.accuracy < _MIN_ACCURACY:
            click.echo("warning: that is little better than chance: look whether GOOD and BAD differ as you expect")
    click.echo(f"wrote {summary.path}; next, in a recipe: quality_model: {{model: {summary.path}, min_score: 0.5}}")
