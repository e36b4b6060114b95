"""`gristmill init`: write a starter recipe or a template for a common job, with sample data to run it on."""

from pathlib import Path

import click

from gristmill.cli.printing import quote_path
from gristmill.core.errors import UsageError
from gristmill.recipe.starter import STARTER_DATA, STARTER_RECIPE

TEMPLATE_NAMES = ("fineweb", "chats", "code", "images", "dedup")


@click.command(epilog="Example: gristmill init corpus --template fineweb")
@click.argument("folder", type=click.Path(file_okay=False), default=".")
@click.option(
    "--template",
    type=click.Choice(TEMPLATE_NAMES),
    help="A recipe for a common job, with comments that say what each step keeps of the sample data.",
)
def command(folder: str, template: str | None) -> None:
    """Write a commented recipe and sample data into FOLDER (default: the current folder).

    Existing files are never overwritten.
    """
    files: dict[str, bytes] = {"recipe.yaml": STARTER_RECIPE.encode(), "sample.jsonl": STARTER_DATA.encode()}
    if template is not None:
        from gristmill.recipe.templates import make_files  # noqa: PLC0415  (it loads numpy)

        files = dict(make_files(template))
    root = Path(folder)
    for name in files:
        if (root / name).exists():
            raise UsageError(f"{root / name} already exists", help="choose another folder: gristmill init FOLDER")
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
    shown_names = [name for name in files if name.count("/") == 0] or list(files)
    for name in shown_names:
        click.echo(f"wrote {root / name}")
    if len(shown_names) < len(files):
        click.echo(f"wrote {len(files) - len(shown_names)} files in folders of {root}")
    click.echo(f"next: gristmill plan {quote_path(root / 'recipe.yaml')}")
