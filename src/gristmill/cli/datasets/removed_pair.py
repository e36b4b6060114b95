"""A removed document and the one kept in its place, side by side where the terminal is wide enough."""

import shutil
import textwrap
from itertools import islice, zip_longest

import click

from gristmill.cli.printing import to_one_line
from gristmill.pipeline.inspecting.duplicate_lookup import RemovedDocument
from gristmill.shards.dataset import Origin

_MAX_CHARS = 4000
_MAX_LINES = 40
_MIN_WIDTH = 80


def print_pair(document: RemovedDocument) -> None:
    """Print the origins, the similarity and both texts."""
    kind = "similarity estimated from signatures:" if document.is_estimate else "similarity"
    click.echo(f"removed as {document.reason}, {kind} {document.similarity:.4f}")
    click.echo(f"removed: {_place(document.origin)}")
    click.echo(f"survivor: {_place(document.survivor)}")
    width = shutil.get_terminal_size().columns
    if width < _MIN_WIDTH or document.text is None or document.survivor_text is None:
        for text in (document.text, document.survivor_text):
            click.echo(f"  {_format_text(text)}")
        return
    column = (width - 3) // 2
    columns = [textwrap.wrap(_format_text(text), column) for text in (document.text, document.survivor_text)]
    for left, right in islice(zip_longest(*columns, fillvalue=""), _MAX_LINES):
        click.echo(f"{left:<{column}} {'|' if left == right else '≠'} {right}")


def _place(origin: Origin) -> str:
    return f"source {origin.source}, {origin.path}, position {origin.position:,}"


def _format_text(text: str | None) -> str:
    return "the input file has changed or is missing" if text is None else to_one_line(text, max_chars=_MAX_CHARS)
