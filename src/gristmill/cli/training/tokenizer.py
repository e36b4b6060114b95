"""`gristmill tokenizer`: train a tokenizer on any source, or check one before a run depends on it."""

import click
import msgspec

from gristmill.cli.options import Choice, Size, json_option
from gristmill.cli.plots import plot_option, plot_tokenizer
from gristmill.cli.printing import to_one_line
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count
from gristmill.pipeline.jobs.tokenizer_jobs import TrainingSummary, train_tokenizer, try_tokenizer
from gristmill.steps.read import Read, to_path
from gristmill.steps.read.read import FORMATS
from gristmill.text.tokenizers import TokenizerReport

_SHOWN_SPECIALS = 6


@click.group(epilog="Example: gristmill tokenizer check tokenizers/gpt2")
def command() -> None:
    """Train a tokenizer, or check one."""


@command.command(
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
    help="Special token. May be repeated; the first one marks the end of documents.",
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
        click.echo(msgspec.json.format(msgspec.json.encode(trained)).decode())
    else:
        _print_trained(trained)


@command.command(
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
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print_report(report)


def _print_trained(trained: TrainingSummary) -> None:
    click.echo(f"wrote {trained.folder}/tokenizer.json and tokenizer_config.json")
    click.echo(f"trained on {format_count(trained.num_documents, 'document')}, {format_bytes(trained.num_bytes)}")
    if trained.num_left_out:
        click.echo(
            f"left out {format_count(trained.num_left_out, 'document')}, chosen by hash: the input is over --max-bytes"
        )
    if trained.num_unusable:
        click.echo(f"{format_count(trained.num_unusable, 'record')} without usable text")
    click.echo(f"next: gristmill tokenizer check {trained.folder}")


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
        click.echo(f"{name:<{width}}  {value}")
