"""`gristmill view`: browse datasets and raw files in a local web page or in the terminal."""

import getpass
import os
import webbrowser
from pathlib import Path

import click

from gristmill.cli.printing import to_one_line
from gristmill.cli.tables import print_lines
from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.core.quantities import format_count
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.view.rows import Rows
from gristmill.runtime.pandas_free import block_pandas_import


@click.command(epilog="Example: gristmill view out --port 8000")
@click.argument("paths", nargs=-1, required=True, metavar="OUT|FILES...")
@click.option("--port", type=click.IntRange(min=0, max=65535), default=0, help="The port. Default: any free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--tty", is_flag=True, help="Browse in the terminal instead.")
@click.option("--save", type=click.Path(dir_okay=False), help="Write chosen rows to a page of its own, and end.")
@click.option("--rows", "chosen", default="0-9", show_default=True, help="The rows for --save, such as 0-9,15.")
@click.option(
    "--show",
    metavar="NAME",
    help="What --save takes rows of: quarantined, dropped, or another name in the page's list. Default: its first.",
)
def command(
    paths: tuple[str, ...], port: int, save: str | None, chosen: str, show: str | None, *, no_browser: bool, tty: bool
) -> None:
    """Browse datasets, or raw JSONL, Parquet, Arrow and tar files, in a local web page.

    Shows rows with their documents, tokens and masks, chats as conversations, pictures, quarantined and dropped
    records; finds text, regular expressions and token ids. Two datasets are shown side by side with what differs. The
    page is served on this machine only, and its address holds a random token. Ctrl-C ends it.
    """
    if show is not None and save is None:
        raise UsageError("--show names what --save takes rows of", help="add --save page.html, or choose in the page")
    block_pandas_import()  # half a second
    collections = open_collections(paths)
    if save is not None and Path(save).resolve() in (Path(path).resolve() for path in paths):
        raise UsageError(f"--save would overwrite {save}, which is shown", help="name another file, such as page.html")
    if save is not None:
        from gristmill.report.view.requests import parse_numbers  # noqa: PLC0415  (a terminal needs none of it)
        from gristmill.report.view.rows import count_rows  # noqa: PLC0415
        from gristmill.report.view.saved_page import make_saved_page  # noqa: PLC0415
        from gristmill.storage.commit import write_file  # noqa: PLC0415

        rows = next(iter(collections.values())) if show is None else _find_collection(collections, show)
        num_rows = count_rows(rows)
        default = click.get_current_context().get_parameter_source("chosen") is click.core.ParameterSource.DEFAULT
        numbers = list(range(min(10, num_rows))) if default else parse_numbers(chosen, num_rows)
        write_file(Path(save), make_saved_page(rows, numbers).encode(errors="backslashreplace"), "view")
        print_lines(f"{save} holds {format_count(len(numbers), 'row')}")
        if rows.note:
            print_lines(f"note: {to_one_line(rows.note)}")
        return
    if tty:
        if os.environ.get("TERM") == "dumb":
            raise UsageError("--tty needs a terminal that can move its cursor, and TERM is dumb", help="set TERM=xterm")
        from gristmill.report.view.terminal.show import show_in_terminal  # noqa: PLC0415

        show_in_terminal(collections)
        return
    from gristmill.report.view.server import Viewer  # noqa: PLC0415

    viewer = Viewer(collections, port)
    print_lines(f"showing {', '.join(paths)} at {viewer.url}")
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if connection:
        # The address that the other side has reached is the third word.
        host = connection[2] if len(connection) == 4 else "THIS-MACHINE"
        print_lines(
            f"on your own machine first: ssh -L {viewer.port}:127.0.0.1:{viewer.port} {getpass.getuser()}@{host}"
        )
    elif not no_browser:
        webbrowser.open(viewer.url)
    print_lines("Ctrl-C ends the viewer")
    viewer.serve()


def _find_collection(collections: dict[str, Rows], name: str) -> Rows:
    """Find a collection by its name, or by the last part of it where only one has it: `dropped` for `out · dropped`."""
    named = [full for full in collections if full.endswith(f" · {name}")]
    if name not in collections and len(named) == 1:
        name = named[0]
    check_choice("--show", name, collections)
    return collections[name]
