"""Pictures of what commands print: `gristmill mix --plot`, `stream where --plot` and `tokenizer check --plot`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from gristmill.core.quantities import format_count
from gristmill.report.charts import NUM_COLORS, Bar, Chart, check_picture, draw_bars, draw_pie, write_picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.pipeline.jobs.mix_datasets import Share
    from gristmill.stream.rows.row_details import RowOrigins
    from gristmill.text.tokenizers.check_tokenizer import TokenizerReport

F = TypeVar("F", bound=Callable[..., None])


def plot_option(function: F) -> F:
    """Add the option --plot, whose file is checked before the command works."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
        if value is not None:
            check_picture(value)
        return value

    help_text = "Write a picture: FILE.svg, or FILE.png with the extra pictures."
    option = click.option("--plot", metavar="FILE", type=click.Path(dir_okay=False), callback=check, help=help_text)
    return option(function)


def plot_mix(path: str, shares: Sequence[Share], unit: str) -> None:
    """Draw what each source was to have and what it has, and the parts of the whole."""
    bars = [
        Bar(
            share.source,
            (share.taken, share.wanted),
            f"{share.taken:,} of {share.wanted:,}, {share.epochs:.2f} epochs",
            (0, 1),
        )
        for share in shares
    ]
    total = sum(share.taken for share in shares)
    drawing = draw_bars("mix", bars, is_grouped=True)
    charts = [
        Chart(f"{unit.capitalize()} of each source", drawing, [(0, "written"), (1, "wanted")]),
        _make_pie("Shares", [(share.source, float(share.taken)) for share in shares]),
    ]
    write_picture(path, f"{total:,} {unit}", charts)


def plot_step(path: str, rows: Sequence[RowOrigins], step: int) -> None:
    """Draw the tokens of a training step by source, and the documents of its rows."""
    sources: Counter[str] = Counter()
    for row in rows:
        sources[row.source] += sum(document.tokens for document in row.documents) or 1  # a sample without tokens: one
    colors = {source: number % NUM_COLORS for number, (source, _) in enumerate(sources.most_common())}
    bars = []
    for row in rows:
        lengths = tuple(float(document.tokens) for document in row.documents)
        label = f"row {row.row:,}: {row.source}, epoch {row.epoch}"
        text = f"{format_count(len(lengths), 'document')}, {sum(lengths):,.0f} tokens"
        bars.append(Bar(label, lengths, text, (colors[row.source],) * len(lengths)))
    charts = [
        _make_pie("Tokens by source", [(source, float(amount)) for source, amount in sources.most_common()]),
        Chart("Rows and their documents, the first ones", draw_bars("rows", bars)),
    ]
    write_picture(path, f"Training step {step:,}: {format_count(len(rows), 'row')}", charts)


def plot_tokenizer(path: str, report: TokenizerReport) -> None:
    """Draw how far a tokenizer compresses, and how fast its engines are."""
    compression = [
        Bar("bytes per token", (report.bytes_per_token,), f"{report.bytes_per_token:.2f}"),
        Bar("one byte is one token", (1.0,), "1.00", (7,)),
    ]
    speeds = [
        Bar(f"{name} {engine.version}", (engine.megabytes_per_second,), f"{engine.megabytes_per_second:,.1f} MB/s")
        for name, engine in report.engines.items()
    ]
    trips = Bar(
        "decoded to the same text",
        (float(report.num_round_trips), float(report.num_adversarial - report.num_round_trips)),
        f"{report.num_round_trips} of {report.num_adversarial}",
        (2, 4),
    )
    charts = [
        Chart("Compression", draw_bars("compression", compression)),
        Chart("Speed of its engines on one core", draw_bars("speed", speeds)),
        Chart("Difficult texts", draw_bars("round trips", [trips])),
    ]
    note = f"{report.vocab_size:,} tokens; {format_count(report.num_texts, 'text')}, {report.num_bytes:,} bytes"
    write_picture(path, f"Tokenizer {report.path}", charts, note=note)


def _make_pie(title: str, slices: Sequence[tuple[str, float]]) -> Chart:
    total = sum(value for _, value in slices) or 1.0
    legend = [(number % NUM_COLORS, f"{name} {value / total:.1%}") for number, (name, value) in enumerate(slices)]
    return Chart(title, draw_pie(title, slices), legend[:NUM_COLORS])
