"""`gristmill view`: browse datasets and raw files in a local web page or in the terminal.

`gristmill diff`: compare two datasets.
"""

import getpass
import os
import shlex
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import click
import msgspec

from gristmill.cli.options import json_option
from gristmill.cli.printing import print_json, to_one_line
from gristmill.cli.tables import print_lines
from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_count
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.differences import (
    Change,
    ChangedRecord,
    Differences,
    LaneDifference,
    find_differences,
    show_glyphs,
)
from gristmill.report.view.rows import Rows
from gristmill.runtime.process import block_pandas_import
from gristmill.shards.dataset import open_dataset


@click.command(epilog="Example: gristmill view out --port 8000")
@click.argument("paths", nargs=-1, required=True, metavar="OUT|FILES...")
@click.option("--port", type=click.IntRange(min=0, max=65535), default=0, help="The port. Default: any free one.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--tty", is_flag=True, help="Browse in the terminal instead.")
@click.option("--save", type=click.Path(dir_okay=False), help="Write chosen rows to a single page, and end.")
@click.option("--rows", "chosen", default="0-9", show_default=True, help="The rows for --save, such as 0-9,15.")
@click.option(
    "--show",
    metavar="NAME",
    help="What --save takes rows of: quarantined, dropped, or another name in the page's list. Default: its first.",
)
def view_command(
    paths: tuple[str, ...], port: int, save: str | None, chosen: str, show: str | None, *, no_browser: bool, tty: bool
) -> None:
    """Browse datasets, or raw JSONL, Parquet, Arrow and tar files, in a local web page.

    What a report copies, OUT#show=dropped&reason=..., opens these rows.

    Shows rows with their documents, tokens and masks, chats as conversations, pictures, quarantined and dropped
    records; finds text, regular expressions and token ids. Two datasets are shown side by side with what differs. The
    page is served on this machine only, and its address holds a random token. Ctrl-C ends it.
    """
    if show is not None and save is None:
        raise UsageError("--show names what --save takes rows of", help="add --save page.html, or choose in the page")
    block_pandas_import()  # half a second
    paths, place = _split_place(paths)
    collections = open_collections(paths)
    if save is not None and Path(save).resolve() in (Path(path).resolve() for path in paths):
        raise UsageError(f"--save would overwrite {save}, which is shown", help="name another file, such as page.html")
    if save is not None:
        from gristmill.report.view.page_requests import parse_numbers  # noqa: PLC0415  (a terminal needs none of it)
        from gristmill.report.view.rows import count_rows  # noqa: PLC0415
        from gristmill.report.view.server import make_saved_page  # noqa: PLC0415
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
        from gristmill.report.view.terminal import show_in_terminal  # noqa: PLC0415

        show_in_terminal(collections)
        return
    from gristmill.report.view.server import Viewer  # noqa: PLC0415

    viewer = Viewer(collections, port, shlex.join(["gristmill", "view", *paths]))
    if "show" in place:
        place["show"] = _find_name(collections, place["show"])
    url = f"{viewer.url}#{urlencode(place)}" if place else viewer.url
    print_lines(f"showing {', '.join(paths)} at {url}")
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if connection:
        # The address that the other side has reached is the third word.
        host = connection[2] if len(connection) == 4 else "THIS-MACHINE"
        print_lines(
            f"on your own machine first: ssh -L {viewer.port}:127.0.0.1:{viewer.port} {getpass.getuser()}@{host}"
        )
    elif not no_browser:
        webbrowser.open(url)
    print_lines("Ctrl-C ends the viewer")
    viewer.serve()


def _split_place(paths: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Split `out#show=dropped&reason=…`, which a report copies, into the path and the place in its viewer."""
    path, _, place = paths[0].partition("#")
    if len(paths) > 1 or not place or Path(paths[0]).exists():
        return paths, {}
    return (path,), dict(parse_qsl(place))


def _find_collection(collections: dict[str, Rows], name: str) -> Rows:
    return collections[_find_name(collections, name)]


def _find_name(collections: dict[str, Rows], name: str) -> str:
    """Find the name of a collection by the last part of it where only one has it: `dropped` for `out · dropped`."""
    named = [full for full in collections if full.endswith(f" · {name}")]
    if name not in collections and len(named) == 1:
        name = named[0]
    check_choice("--show", name, collections)
    return name


_MAX_LINES = 10


@click.command(epilog="Example: gristmill diff out-old out-new")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "-n", "num_records", type=click.IntRange(min=0), default=5, show_default=True,
    help="Number of changed records to show for each source.",
)  # fmt: skip
@json_option
def diff_command(a: str, b: str, num_records: int, *, as_json: bool) -> None:
    """Compare the datasets in A and B: shards, then records, then tokens, then recipes, versions and inputs.

    Exits with 0 if they hold the same bytes in the same order, with 1 if not, and with 2 for an error, such as a
    damaged dataset. Only shards that differ are read.
    """
    differences = find_differences(open_dataset(a), open_dataset(b), max_records=num_records)
    if as_json:
        print_json(msgspec.json.format(msgspec.json.encode(differences, enc_hook=str), indent=2).decode())
    else:
        _print(differences)
    if not differences.equal:
        click.get_current_context().exit(1)


def _print(differences: Differences) -> None:
    if differences.equal:
        print_lines(f"equal: both are {differences.hash_a}")
    else:
        print_lines(f"different: {_summarize(differences)}")
    made_by = (
        ("recipe", differences.recipe),
        ("versions", differences.versions),
        ("input files", differences.inputs),
        ("layout", differences.layout),
    )
    for title, changes in made_by:
        _print_changes(title, changes)
    if not (differences.equal or differences.recipe or differences.versions or differences.inputs):
        print_lines(
            "recipe, versions and input files are the same: a run depended on its environment, or one was edited"
        )
    for lane in differences.lanes:
        _print_lane(lane)
    if not differences.equal:
        print_lines(f"hashes: {differences.hash_a} and {differences.hash_b}")


def _summarize(differences: Differences) -> str:
    """Summarize in a sentence what has become more or less, and how many documents differ."""
    a, b = differences.size_a, differences.size_b
    parts = [_format_growth("record" if a.tokens is None else "row", a.records, b.records)]
    if a.tokens is not None and b.tokens is not None:
        parts.append(_format_growth("token", a.tokens, b.tokens))
    compared = [lane for lane in differences.lanes if lane.is_compared]
    counts = {
        "changed": sum(lane.changed for lane in compared),
        "added": sum(lane.only_in_b for lane in compared),
        "removed": sum(lane.only_in_a for lane in compared),
    }
    documents = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
    if documents:
        parts.append(f"documents: {documents}")
    return "; ".join(parts)


def _format_growth(word: str, a: int, b: int) -> str:
    return format_count(a, word) if a == b else f"{a:,} → {format_count(b, word)} ({b - a:+,})"


def _print_lane(lane: LaneDifference) -> None:
    counts = (
        f"{len(lane.differing_a)} of {lane.shards_a} shards of A and {len(lane.differing_b)} of {lane.shards_b} of B"
    )
    print_lines(f"{lane.split}/{lane.source}: {counts} differ")
    if not lane.is_compared:
        print_lines("  their documents are not compared: the datasets are of unlike kinds")
        return
    if lane.is_reordered:
        print_lines("  the same documents, in another order or in other rows")
        return
    if lane.changed:
        print_lines(f"  {format_count(lane.changed, 'document')} changed")
    for record in lane.records:
        _print_record(record)
    for count, word, side, places in (
        (lane.only_in_b, "added", "B", lane.examples_b),
        (lane.only_in_a, "removed", "A", lane.examples_a),
    ):
        if count:
            print_lines(f"  {format_count(count, 'document')} {word} (only in {side})")
        for place in places:
            print_lines(f"    {to_one_line(place)}")


def _print_record(record: ChangedRecord) -> None:
    rows = f"row {record.row_a:,} of A, {record.row_b:,} of B"
    print_lines(f"    {', '.join(map(to_one_line, record.parts))}: {to_one_line(record.place)} ({rows})")
    unit = "token" if record.part in ("tokens", "loss_mask") else "character"
    print_lines(f"      {to_one_line(record.part)} from {unit} {record.position:,} on")
    texts = show_glyphs(record.a, record.b)
    for side, text, token in zip("AB", texts, (record.id_a, record.id_b), strict=True):
        print_lines(f"      {side}: {to_one_line(text)}" + ("" if token is None else f"  (id {token})"))


def _print_changes(title: str, changes: list[Change]) -> None:
    if not changes:
        return
    print_lines(f"{title}:")
    for change in changes[:_MAX_LINES]:
        print_lines(f"  {to_one_line(change.key)}: {_show(change.a)} in A, {_show(change.b)} in B")
    if len(changes) > _MAX_LINES:
        print_lines(f"  {len(changes) - _MAX_LINES:,} more; --json has all")


def _show(value: Any) -> str:
    return "nothing" if value is None else to_one_line(value, 80)
