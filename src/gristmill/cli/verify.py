"""`gristmill verify`: is everything there, and is it what was written?"""

import json
from dataclasses import asdict

import click

from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.tables import print_lines
from gristmill.core.quantities import format_bytes, format_count
from gristmill.runtime.pandas_free import block_pandas_import
from gristmill.shards.verify import verify


@click.command(epilog="Example: gristmill verify out")
@dataset_argument
@json_option
def command(out: str, *, as_json: bool) -> None:
    """Read all of the dataset in OUT: every checksum, row count, origin and account.

    Exits with 1 and names each damaged file if anything is not as it was written.
    """
    block_pandas_import()
    found = verify(out)
    if as_json:
        click.echo(json.dumps({"ok": bool(found), **asdict(found)}, indent=2))
    else:
        for problem in found.problems:
            print_lines(f"damaged: {problem}")
        checked = ", ".join(
            (
                format_count(found.num_shards, "shard"),
                format_count(found.num_rows, "record"),
                format_bytes(found.num_bytes),
            )
        )
        verdict = format_count(len(found.problems), "problem") if found.problems else "all as written"
        print_lines(f"{verdict}: {checked} in {out}")
        if not found:
            print_lines("help: put the files back from a copy, or make the dataset again with --overwrite")
    if not found:
        click.get_current_context().exit(1)
