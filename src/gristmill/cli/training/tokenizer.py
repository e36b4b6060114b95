"""Models that text is prepared with: `gristmill tokenizer` trains or checks a tokenizer, `classifier` trains a
classifier.
"""

import math

import click
import msgspec

from gristmill.cli.options import Choice, Size, json_option
from gristmill.cli.plots import plot_option, plot_tokenizer
from gristmill.cli.printing import echo, print_json, to_one_line
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count
from gristmill.pipeline.jobs.training_jobs import TrainingSummary, train_classifier, train_tokenizer, try_tokenizer
from gristmill.readers.formats import FORMATS
from gristmill.readers.read import Read, to_path
from gristmill.text.tokenizers.check_tokenizer import TokenizerReport

_SHOWN_SPECIALS = 6
_MIN_ACCURACY = 0.6
"""By chance half of all documents are classified correctly, if both files are of one size."""


@click.group(epilog="Example: gristmill tokenizer check tokenizers/gpt2")
def tokenizer_command() -> None:
    """Train a tokenizer, or check one."""


@tokenizer_command.command(
    "train",
    short_help="Train a byte-level BPE tokenizer.",
    epilog='Example: gristmill tokenizer train tokenizers/mine "data/*.jsonl.zst" --vocab-size 32768',
)
@click.argument("out", type=click.Path())
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--vocab-size", type=click.IntRange(min=257), default=16384, show_default=True, help="Size of the vocabulary."
)
@click.option("--text", default="text", show_default=True, help="Field that holds the text.")
@click.option(
    "--format", "format_name", type=Choice(FORMATS), help="Format of the files, if their names do not show it."
)
@click.option(
    "--special",
    "specials",
    multiple=True,
    default=("<|endoftext|>",),
    show_default=True,
    help="Special token. May be repeated; the first one whose name says so, else the first, ends documents.",
)
@click.option(
    "--max-bytes",
    type=Size(),
    default="1GB",
    show_default=True,
    help="Train on this much of a larger input, chosen by hash.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing tokenizer.")
@json_option
def train_command(
    out: str,
    files: tuple[str, ...],
    vocab_size: int,
    text: str,
    format_name: str | None,
    specials: tuple[str, ...],
    max_bytes: int,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train a byte-level BPE tokenizer on the texts in FILES and write it to the folder OUT.

    FILES are paths, folders, patterns or URLs, in any format that recipes read. The same files and options give the
    same tokenizer.
    """
    read = Read(read=[to_path(file) for file in files], text=text, format=format_name)
    trained = train_tokenizer(
        read, out, vocab_size=vocab_size, special_tokens=specials, max_bytes=max_bytes, overwrite=overwrite
    )
    if as_json:
        print_json(msgspec.json.format(msgspec.json.encode(trained)).decode())
    else:
        _print_trained(trained)


@tokenizer_command.command(
    "check",
    short_help="Check a tokenizer: round trip, bytes per token, engines.",
    epilog="Example: gristmill tokenizer check tokenizers/gpt2 data/web.jsonl",
)
@click.argument("tokenizer")
@click.argument("files", nargs=-1)
@click.option("--text", default="text", show_default=True, help="Field that holds the text.")
@click.option(
    "--format", "format_name", type=Choice(FORMATS), help="Format of the files, if their names do not show it."
)
@plot_option
@json_option
def check_command(
    tokenizer: str, files: tuple[str, ...], text: str, format_name: str | None, plot: str | None, *, as_json: bool
) -> None:
    """Check TOKENIZER on the texts in FILES (default: Python's standard library).

    TOKENIZER is a folder with tokenizer.json, such a file, or a name on the Hugging Face Hub.
    """
    if format_name is not None and not files:
        raise UsageError("--format needs FILES")
    read = Read(read=[to_path(file) for file in files], text=text, format=format_name) if files else None
    report = try_tokenizer(tokenizer, read)
    if plot is not None:
        plot_tokenizer(plot, report)
    if as_json:
        print_json(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print_report(report)


def _print_trained(trained: TrainingSummary) -> None:
    echo(f"wrote {trained.folder}/tokenizer.json and tokenizer_config.json")
    echo(f"trained on {format_count(trained.num_documents, 'document')}, {format_bytes(trained.num_bytes)}")
    if trained.num_left_out:
        echo(
            f"left out {format_count(trained.num_left_out, 'document')}, chosen by hash: the input is over --max-bytes"
        )
    if trained.num_unusable:
        echo(f"{format_count(trained.num_unusable, 'record')} without usable text")
    echo(f"next: gristmill tokenizer check {trained.folder}")


def _print_report(report: TokenizerReport) -> None:
    specials = list(report.special_tokens)
    specials_text = to_one_line(" ".join(specials[:_SHOWN_SPECIALS])) + (
        " …" if len(specials) > _SHOWN_SPECIALS else ""
    )
    roles = {"end": report.eos_id, "begin": report.bos_id, "padding": report.pad_id}
    rows = [
        ("tokenizer", report.path),
        ("content", report.content),
        ("vocabulary", f"{report.vocab_size:,} tokens, ids as {report.id_type}"),
        ("special tokens", f"{report.num_special_tokens:,}: {specials_text}" if specials else "none"),
        ("roles", ", ".join(f"{role} {'none' if token is None else token}" for role, token in roles.items())),
        (
            "round trip",
            f"{report.num_round_trips} of {report.num_adversarial} difficult texts are decoded to the same text",
        ),
        (
            "bytes per token",
            (
                f"{report.bytes_per_token:.2f} on {format_count(report.num_texts, 'text')}, "
                f"{format_bytes(report.num_bytes)}"
            ),
        ),
        ("engine: auto", f"{report.engine}: {to_one_line(report.why, max_chars=1000)}"),
    ]
    for name, engine in report.engines.items():
        rows.append((f"{name} {engine.version}", f"{engine.megabytes_per_second:,.1f} MB/s on one core"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        echo(f"{name:<{width}}  {value}")


@click.group(epilog="Example: gristmill classifier train good.jsonl bad.jsonl --out edu.model")
def classifier_command() -> None:
    """Train a classifier of documents."""


@classifier_command.command(
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
        print_json(msgspec.json.encode(summary).decode())
        return
    echo(f"trained on {summary.num_good:,} good and {summary.num_bad:,} bad documents")
    if summary.num_unreadable:
        echo(f"warning: {summary.num_unreadable:,} records are damaged or have no text, and were left out")
    if math.isnan(summary.accuracy):
        echo("warning: too few documents to hold some of both classes out, so nothing tells how good the model is")
    else:
        echo(
            f"of {summary.num_held_out:,} documents that were held out, {summary.accuracy:.1%} are classified correctly"
        )
        if summary.accuracy < _MIN_ACCURACY:
            echo("warning: that is little better than chance: look whether GOOD and BAD differ as you expect")
    echo(f"wrote {summary.path}; next, in a recipe: quality_model: {{model: {summary.path}, min_score: 0.5}}")
