"""`gristmill diff`: compare two datasets."""

from typing import Any

import click
import msgspec

from gristmill.cli.options import json_option
from gristmill.cli.printing import to_one_line
from gristmill.cli.tables import print_lines
from gristmill.core.quantities import format_count
from gristmill.report.comparing.differences import Change, ChangedRecord, Differences, LaneDifference, find_differences
from gristmill.shards.dataset import open_dataset

_MAX_LINES = 10


@click.command(epilog="Example: gristmill diff out-old out-new")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "-n", "num_records", type=click.IntRange(min=0), default=5, show_default=True,
    help="Number of changed records to show for each source.",
)  # fmt: skip
@json_option
def command(a: str, b: str, num_records: int, *, as_json: bool) -> None:
    """Compare the datasets in A and B: shards, then records, then tokens, then recipes, versions and inputs.

    Exits with 0 if they hold the same bytes in the same order, with 1 if not, and with 2 for an error, such as a
    damaged dataset. Only shards that differ are read.
    """
    differences = find_differences(open_dataset(a), open_dataset(b), max_records=num_records)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(differences, enc_hook=str), indent=2).decode())
    else:
        _print(differences)
    if not differences.equal:
        click.get_current_context().exit(1)


def _print(differences: Differences) -> None:
    if differences.equal:
        print_lines(f"equal: both are {differences.hash_a}")
    else:
        print_lines(f"different: {differences.hash_a} and {differences.hash_b}")
    _print_changes("layout", differences.layout)
    for lane in differences.lanes:
        _print_lane(lane)
    for title, changes in (
        ("recipe", differences.recipe),
        ("versions", differences.versions),
        ("input files", differences.inputs),
    ):
        _print_changes(title, changes)
    if not (differences.equal or differences.recipe or differences.versions or differences.inputs):
        print_lines(
            "recipe, versions and input files are the same: a run depended on its environment, or one was edited"
        )


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
    parts = [
        (lane.only_in_a, "only in A"),
        (lane.only_in_b, "only in B"),
        (lane.changed, "changed"),
    ]
    print_lines("  " + ", ".join(f"{format_count(count, 'document')} {words}" for count, words in parts if count))
    for side, places in (("A", lane.examples_a), ("B", lane.examples_b)):
        for place in places:
            print_lines(f"  only in {side}: {to_one_line(place)}")
    for record in lane.records:
        _print_record(record)


def _print_record(record: ChangedRecord) -> None:
    what = "token" if record.part == "tokens" else "character"
    rows = f"row {record.row_a:,} of A, {record.row_b:,} of B"
    print_lines(f"  changed: {to_one_line(record.place)} ({rows}), {record.part} from {what} {record.position:,} on")
    for side, text, token in (("A", record.a, record.id_a), ("B", record.b, record.id_b)):
        print_lines(f"    {side}: {to_one_line(text)}" + ("" if token is None else f"  (id {token})"))


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
