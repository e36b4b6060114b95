"""`gristmill run --debug`: show a few records step by step, and the exception of a user's function where it happens."""

import pdb  # noqa: T100
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

import click

import gristmill
from gristmill.cli.printing import quote_path
from gristmill.cli.tables import print_lines
from gristmill.core.quantities import format_count
from gristmill.pipeline.debug import FunctionFailedError, run_in_debug_mode
from gristmill.recipe.load import load_recipe


def run_debug(recipe: str, overrides: Sequence[str], *, limit: int | None, use_pdb: bool) -> None:
    """Run in debug mode. An exception of a user's function ends the command with exit code 1."""
    loaded = load_recipe(recipe, overrides)
    try:
        result = run_in_debug_mode(loaded, partial(print_lines, breaks_words=True), limit=limit)
    except FunctionFailedError as failed:
        frames = _list_user_frames(failed.error.__traceback__)
        if frames is None:
            click.echo(failed.traceback, err=True, nl=False)
        click.echo("".join(traceback.format_exception(type(failed.error), failed.error, frames)), err=True, nl=False)
        if use_pdb and frames is not None:
            pdb.post_mortem(frames)
        elif use_pdb:
            print_lines(
                "--pdb: the function ran in a worker process, because chat templates of models run there; to debug it, "
                "use a recipe without the step render",
                err=True,
            )
        sys.exit(1)
    num_rows = sum(shard.rows for _, _, shard in result.manifest.shards())
    print_lines(f"no exception; {format_count(num_rows, 'row')} in {result.output}")
    click.echo(f"next: gristmill inspect {quote_path(result.output)}")


def _list_user_frames(frames: TracebackType | None) -> TracebackType | None:
    """Cut the traceback so that it starts at the user's function; keep all of it if it ends in this package."""
    own_folder = str(Path(gristmill.__file__).parent)
    user_frames = frames
    while user_frames is not None and user_frames.tb_frame.f_code.co_filename.startswith(own_folder):
        user_frames = user_frames.tb_next
    return user_frames or frames
