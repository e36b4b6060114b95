"""`gristmill init`: write a starter recipe, with sample data to run it on."""

from pathlib import Path

import click

from gristmill.core.errors import UsageError
from gristmill.recipe.starter import STARTER_DATA, STARTER_RECIPE

FILES = {"recipe.yaml": STARTER_RECIPE, "sample.jsonl": STARTER_DATA}


@click.command(epilog="Example: gristmill init corpus")
@click.argument("folder", type=click.Path(file_okay=False), default=".")
def command(folder: str) -> None:
    """Write a commented recipe and sample data into FOLDER (default: the current folder).

    Existing files are never overwritten.
    """
    root = Path(folder)
    for name in FILES:
        if (root / name).exists():
            raise UsageError(f"{root / name} already exists", help="choose another folder: gristmill init FOLDER")
    root.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        with (root / name).open("x", encoding="utf-8") as file:
            file.write(content)
        click.echo(f"wrote {root / name}")
    click.echo(f"next: gristmill plan {root / 'recipe.yaml'}")
