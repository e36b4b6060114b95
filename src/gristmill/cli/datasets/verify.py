"""`gristmill verify`: check that every file of a dataset is there and is what was written."""

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
    """Check the whole dataset in OUT: every checksum, row count, origin and account.

    Exits with 1 and names each damaged file if something is not as it was written.
    """
    block_pandas_import()
    verification = verify(out)
    if as_json:
        click.echo(json.dumps({"ok": bool(verification), **asdict(verification)}, indent=2))
    else:
        for problem in verification.problems:
            print_lines(f"damaged: {problem}")
        checked = ", ".join(
            (
                format_count(verification.num_shards, "shard"),
                format_count(verification.num_rows, "record"),
                format_bytes(verification.num_bytes),
            )
        )
        outcome = format_count(len(verification.problems), "problem") if verification.problems else "all as written"
        print_lines(f"{outcome}: {checked} in {out}")
        if not verification:
            print_lines("help: restore the files from a copy, or rebuild the dataset with --overwrite")
    if not verification:
        click.get_current_context().exit(1)
