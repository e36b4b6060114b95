"""`gristmill verify`: is everything there, and is it what was written?"""

import json
from dataclasses import asdict

import click

from gristmill.cli.options import dataset_argument, json_option
from gristmill.cli.tables import print_lines
from gristmill.core.pandas_free import keep_pandas_out
from gristmill.pipeline.outline import amount, counted
from gristmill.shards.verify import verify


@click.command(epilog="Example: gristmill verify out")
@dataset_argument
@json_option
def command(out: str, *, as_json: bool) -> None:
    """Read all of the dataset in OUT: every checksum, row count, origin and account.

    Exits with 1 and names each damaged file if anything is not as it was written.
    """
    keep_pandas_out()
    found = verify(out)
    if as_json:
        click.echo(json.dumps({"ok": bool(found), **asdict(found)}, indent=2))
    else:
        for problem in found.problems:
            print_lines(f"damaged: {problem}")
        checked = ", ".join(
            (counted(found.num_shards, "shard"), counted(found.num_rows, "record"), amount(found.num_bytes))
        )
        verdict = counted(len(found.problems), "problem") if found.problems else "all as written"
        print_lines(f"{verdict}: {checked} in {out}")
        if not found:
            print_lines("help: put the files back from a copy, or make the dataset again with --overwrite")
    if not found:
        click.get_current_context().exit(1)
