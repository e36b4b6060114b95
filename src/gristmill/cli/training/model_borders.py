"""`gristmill stream prove --model`: whether a model keeps the documents of packed rows apart."""

import importlib.util
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gristmill.cli.tables import print_table
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_count
from gristmill.stream import Stream

if TYPE_CHECKING:
    from gristmill.stream.torch.model_borders import BorderReport


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
        click.echo(json.dumps({"ok": bool(report), **asdict(report)}, indent=2))
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
        click.echo(f"{attention} was not tried: {reason}")
    documents = f"{format_count(report.num_documents, 'document')} in {format_count(report.num_rows, 'row')}"
    if report:
        click.echo(f"proved: {report.model} gives {documents} the logits that each document has alone")
        if not all(check.respects_borders for check in report.checks):
            click.echo("help: call it with use_cache=False, as Trainer does; with a cache, documents see each other")
        return
    why = "" if report.takes_positions else ": it does not take position_ids"
    click.echo(f"{report.model} does not respect the borders of documents ({documents}){why}")
    click.echo("help: choose an attention implementation that does, or train rows of one document: no `pack`")
