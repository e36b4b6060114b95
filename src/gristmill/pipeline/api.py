"""`gristmill.plan` and `gristmill.run`: the pipeline as two functions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from gristmill.core.errors import UsageError
from gristmill.core.recipe import Recipe
from gristmill.engine.observer import EventLog
from gristmill.pipeline.debug import FunctionFailedError, run_in_debug_mode
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.run import run_recipe
from gristmill.pipeline.stages.stage_context import Monitor, RunOptions
from gristmill.text.tokenizers.engine import clear_engine_cache

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from gristmill.engine.machine import Pin
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.run import RunResult


def plan(recipe: Recipe, *, limit: int | None = None, allow_endpoints: Sequence[str] = ()) -> Plan:
    """Check a recipe against the files it names, and send a few real records through its steps. Nothing is written.

    The plan prints as a tree: sources, files, bytes, stages, tasks, and the disk space that the run may need.

    Args:
        recipe: The result of `load_recipe`, or a `Recipe` made in Python.
        limit: As for `run`.
        allow_endpoints: As for `run`.

    Raises:
        UsageError: Anything that would fail later: files or columns that are missing, an output that cannot be written.
    """
    new_plan = make_plan(_check_recipe(recipe), limit=limit, allowed_endpoints=allow_endpoints)
    clear_engine_cache()  # `run` makes another plan
    return new_plan


def run(
    recipe: Recipe,
    *,
    workers: int | Literal["auto"] = "auto",
    backend: str = "auto",
    timeout: float | None = None,
    pin: bool | Pin = "none",
    update: bool = False,
    overwrite: bool = False,
    keep_work: bool = False,
    limit: int | None = None,
    progress: bool | None = None,
    monitor: Monitor | bool = False,
    events: EventLog | str | os.PathLike[str] | None = None,
    take_over: bool = False,
    allow_endpoints: Sequence[str] = (),
    ray_address: str | None = None,
    wait_for_nodes: float | None = None,
    stall_timeout: float = 900.0,
    stop_on_stall: bool = False,
    debug: bool = False,
) -> RunResult:
    """Run a recipe: plan, run the stages, check the books, publish the dataset. The same call resumes a stopped run.

    The output does not depend on `workers`, `backend` or how often the run was stopped.

    Args:
        recipe: The result of `load_recipe`, or a `Recipe` made in Python.
        workers: Number of workers; "auto": as many as this machine allows.
        backend: "processes", "threads", "serial" (in this process, for debugging), or "auto": in this process if the
            input is at most 8 MiB of local JSONL or text and all steps are built in, else processes. "ray": on the
            nodes of a Ray cluster, which must see the inputs and the output under the same paths.
        timeout: Seconds for one cell, about 4 MiB of input. A record that takes longer is quarantined.
        pin: "cores" (or True): each worker has a CPU of its own; "numa": each has the CPUs and, if the system lets a
            process choose, the memory of one NUMA node. Needs Linux.
        update: Rebuild a dataset whose recipe or inputs have changed, reusing the shards that are still valid.
        overwrite: Rebuild the dataset from nothing.
        keep_work: Keep the work folder in the output.
        limit: Read only this many records of each source, for a quick look.
        progress: None: bars on a terminal, lines otherwise; True: always bars; False: nothing.
        monitor: True or "terminal": show stages, rate, workers and what slows the run, live on the terminal, or as
            lines otherwise. "web": the same in a browser, at an address that is printed.
        events: A file for events as JSON lines, or an `EventLog`.
        take_over: Write to a shared output at once, though a run on another machine may still be using it.
        allow_endpoints: Hosts that the recipe's `storage_options` may name though the connection is not encrypted.
        ray_address: With the backend "ray": the address of the cluster. Without one it is that of `RAY_ADDRESS`, the
            cluster that runs on this machine, or a new one.
        wait_for_nodes: With the backend "ray": seconds to wait for nodes that have room for a worker. By default
            600 for a cluster that has no node with a CPU yet, which is asked to grow, and 60 for others.
        stall_timeout: Seconds without progress after which the run says which tasks it waits for, and where they are.
        stop_on_stall: Stop then. The same call resumes.
        debug: Run in this process on the first 100 records of each source (or `limit`), print up to three records
            after each step, and raise the first exception of a function as it is. Writes to a temporary folder that
            is removed when Python exits, never to the output. Other settings are ignored.

    Returns:
        The result: its `manifest`, `books` (where every record went) and `dataset()`.
    """
    if debug:
        try:
            return run_in_debug_mode(_check_recipe(recipe), _print_line, limit=limit)
        except FunctionFailedError as failed:
            raise failed.error from None  # as the user's own code raised it: debuggers start from its frames
    options = RunOptions(
        workers=workers,
        backend=backend,
        timeout=timeout,
        pin=pin,
        update=update,
        overwrite=overwrite,
        keep_work=keep_work,
        progress=progress,
        monitor=monitor,
        events=events if events is None or isinstance(events, EventLog) else EventLog(events),
        take_over=take_over,
        allow_endpoints=allow_endpoints,
        ray_address=ray_address,
        wait_for_nodes=wait_for_nodes,
        stall_timeout=stall_timeout,
        stop_on_stall=stop_on_stall,
    )
    return run_recipe(_check_recipe(recipe), options, limit=limit)


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _check_recipe(recipe: object) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    raise UsageError(
        f"a Recipe is needed, not {recipe!r:.100}", help='gm.load_recipe("recipe.yaml") loads one from a file'
    )
