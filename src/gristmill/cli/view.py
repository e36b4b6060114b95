"""`gristmill view`: browse datasets and raw files in a local web page."""

import os
import webbrowser
from pathlib import Path

import click

from gristmill.cli.tables import print_lines
from gristmill.core.errors import UsageError
from gristmill.report.view.rows import DatasetRows, FileRows, LineRows, Rows
from gristmill.report.view.server import Viewer
from gristmill.shards.dataset import Dataset, open_dataset
from gristmill.shards.manifest import MANIFEST
from gristmill.storage.locations import parse_location


@click.command(epilog="Example: gristmill view out --port 8000")
@click.argument("paths", nargs=-1, required=True, metavar="OUT|FILES...")
@click.option("--port", type=click.IntRange(min=0, max=65535), default=0, help="The port. Default: any free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def command(paths: tuple[str, ...], port: int, *, no_browser: bool) -> None:
    """Browse datasets, or raw JSONL, Parquet, Arrow and tar files, in a local web page.

    Shows rows with their documents, tokens and masks, chats as conversations, quarantined and dropped records; finds
    text and regular expressions. The page is served on this machine only, and its address holds a random token.
    Ctrl-C ends it.
    """
    viewer = Viewer(_open_collections(paths), port)
    print_lines(f"showing {', '.join(paths)} at {viewer.url}")
    if "SSH_CONNECTION" in os.environ:
        print_lines(f"on your own machine first: ssh -L {viewer.port}:127.0.0.1:{viewer.port} THIS-MACHINE")
    elif not no_browser:
        webbrowser.open(viewer.url)
    print_lines("Ctrl-C ends the viewer")
    viewer.serve()


def _open_collections(paths: tuple[str, ...]) -> dict[str, Rows]:
    """Open every dataset with its quarantined and dropped records; all other paths are files."""
    collections: dict[str, Rows] = {}
    files: list[Path] = []
    for path in paths:
        location = parse_location(path)
        if (location / MANIFEST).exists() or not isinstance(location, Path) or location.is_dir():
            dataset = open_dataset(location)
            name = location.name if location.name not in collections else path
            collections |= _open_dataset_collections(name, dataset)
        elif location.exists():
            files.append(location)
        else:
            raise UsageError(f"there is no file or dataset {path}", help="name the output of a run, or raw files")
    if files:
        collections["files"] = FileRows(files)
    return collections


def _open_dataset_collections(name: str, dataset: Dataset) -> dict[str, Rows]:
    collections: dict[str, Rows] = {name: DatasetRows(dataset)}
    manifest = dataset.manifest
    for title, stored in (("quarantined", manifest.quarantine.files), ("dropped", manifest.dropped)):
        if stored:
            files = {Path(file.path).stem: file.copy_below(dataset.folder) for file in stored}
            collections[f"{name} · {title}"] = LineRows(f"{name} · {title}", files)
    return collections
