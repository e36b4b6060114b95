"""Running a recipe: the one path that `gristmill.run` and `gristmill run` share.

Plan, lock the output, look for a dataset that is already there, execute the plan (`execution.py`).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gristmill.core.errors import NotUpToDateError, UsageError
from gristmill.core.quantities import format_count
from gristmill.core.recipe import find_default
from gristmill.engine.machine import parse_pin
from gristmill.engine.parallel_run import choose_num_workers, make_pool
from gristmill.engine.progress import Activity
from gristmill.engine.worker.job import make_import_job
from gristmill.pipeline import work_folder
from gristmill.pipeline.execution import Execution, open_text_reader
from gristmill.pipeline.planning.outline import render_result
from gristmill.pipeline.planning.placement import Placement, find_death_in_process
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.planning.python_records import has_python_records, spool_python_records
from gristmill.pipeline.publishing import journal
from gristmill.pipeline.publishing.clean import lock_output
from gristmill.pipeline.publishing.publish import describe_recipe, list_warnings
from gristmill.pipeline.publishing.side_files import complete_report
from gristmill.pipeline.stages import WORKER_MODULE
from gristmill.pipeline.stages.preparation import compile_ahead
from gristmill.pipeline.stages.runner import UnitReuse
from gristmill.pipeline.stages.stage_context import RunOptions
from gristmill.readers.cells import CELL_BYTES
from gristmill.runtime.process import TOKENIZER, forget_content
from gristmill.shards.dataset import open_dataset
from gristmill.shards.stored_files import MANIFEST
from gristmill.storage.folders import open_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.core.books import Account
    from gristmill.core.recipe import Recipe
    from gristmill.engine.backends.ray import RaySettings
    from gristmill.engine.worker_pool import WorkerPool
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifest import Manifest
    from gristmill.storage.leases import HeldOutput
    from gristmill.storage.locations import Location
    from gristmill.storage.stores.retries import StoreUse


_MAX_CHANGES = 3
"""How many changed keys of a recipe an error names."""


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """The result of a run. A notebook shows it with its books."""

    manifest: Manifest
    output: Location
    was_up_to_date: bool
    """Whether the dataset was already there, so that nothing was done."""
    warnings: tuple[str, ...] = ()
    """Warnings about sources and splits that are empty, and about what steps had to ignore."""
    work_seconds: float = 0.0
    """Seconds from each stage's first ready worker to its end: without planning, start-up and compilation."""
    store_use: StoreUse | None = None
    """How tasks read stores, and how long they waited for them; None if they used none."""
    reuse: UnitReuse = field(default_factory=UnitReuse)
    """How much of the work was there from an earlier run."""
    change: str | None = None
    """Why an update had to rebuild a finished dataset; None if there was none."""

    @property
    def books(self) -> dict[str, list[Account]]:
        """The account of each step, by source."""
        return self.manifest.books

    @property
    def tokens(self) -> int:
        """The number of tokens in all shards, without padding; 0 for a dataset of documents."""
        return sum(shard.tokens or 0 for _, _, shard in self.manifest.shards())

    def dataset(self) -> Dataset:
        """Open the dataset for reading."""
        return open_dataset(self.output)

    def __repr__(self) -> str:
        shards = [shard for _, _, shard in self.manifest.shards()]
        counts = f"{format_count(sum(shard.rows for shard in shards), 'row')} in {format_count(len(shards), 'shard')}"
        tokens = f", {format_count(self.tokens, 'token')}" if self.tokens else ""
        return f"RunResult({str(self.output)!r}, {counts}{tokens}, was_up_to_date={self.was_up_to_date})"

    def _repr_html_(self) -> str:
        return render_result(repr(self), self.books)


def run_recipe(
    recipe: Recipe,
    options: RunOptions | None = None,
    *,
    limit: int | None = None,
    show_plan: Callable[[Plan], object] | None = None,
) -> RunResult:
    """Plan and run a recipe. The same call resumes a run that was stopped.

    `show_plan` is called with the plan, before any work is done.
    """
    options = (options or RunOptions()).fill_from(recipe.run)
    plan_recipe = partial(
        make_plan,
        recipe,
        limit=limit,
        backend=options.backend,
        workers=options.workers,
        timeout=options.timeout,
        pin=parse_pin(options.pin),
        debug=options.watch is not None,
        allowed_endpoints=options.allow_endpoints,
        layout=options.layout,
    )
    settings: RaySettings | None = None
    pool = make_pool("processes", pin=options.pin, keeps_workers=True)
    if options.backend == "ray":
        from gristmill.engine.backends.ray import connect_to_cluster  # noqa: PLC0415  (the door to Ray)

        num_workers = options.workers if isinstance(options.workers, int) else 1
        settings = connect_to_cluster(options.ray_address, options.wait_for_nodes, num_workers)
        pool = make_pool("ray", keeps_workers=True, settings=settings)
    with pool:
        # The workers start in the environment of this moment. A generator of records may change it.
        reads_python = has_python_records(recipe)
        start_workers = partial(_start_workers, pool, options)
        with Activity(shows=options.progress is not False) as activity:
            if reads_python:
                plan = plan_recipe(tell=activity.show)
            else:
                plan = plan_recipe(tell=activity.show, pool=pool, on_placement=start_workers)
        if show_plan is not None:
            show_plan(plan)
        if open_folder(plan.output).find_obstacle() is not None and plan.output.exists():
            return RunResult(_find_read_only(plan, options), plan.output, was_up_to_date=True)
        try:
            with lock_output(plan.output, take_over=options.take_over) as held:
                if settings is not None:
                    settings.worker_bytes = plan.outline().memory.worker_bytes
                    settings.store_jobs_at(plan.output.absolute() / work_folder.work_path("job-"))
                if not reads_python:
                    return _run_locked(plan, options, held, pool)
                # The first plan sees only a sample of the records, so that mistakes show before a generator is used up.
                with spool_python_records(recipe, plan.output, held.run_id, keep=options.keep_work) as spooled:
                    plan = plan_recipe(spooled=spooled, pool=pool, on_placement=start_workers)
                    return _run_locked(plan, options, held, pool)
        finally:
            forget_content([TOKENIZER], needed=())  # a tokenizer that this process has used takes up to 200 MiB


def _start_workers(
    pool: WorkerPool, options: RunOptions, placement: Placement, output: Location, num_bytes: int
) -> None:
    """Start workers while the plan is made, unless the run stays in this process or is probably up to date."""
    if placement.backend != pool.backend or placement.backend == "ray":  # Ray must know how large a worker is
        return
    if not (options.update or options.overwrite) and (output / MANIFEST).is_file():
        return
    num_workers = choose_num_workers(options.workers, placement.backend)
    imports = make_import_job(WORKER_MODULE)
    pool.start_ahead(min(num_workers, max(1, num_bytes // CELL_BYTES)), imports)


def _run_locked(plan: Plan, options: RunOptions, held: HeldOutput, pool: WorkerPool) -> RunResult:
    manifest = _find_finished(plan, options)
    if manifest is not None:
        complete_report(plan, manifest, held, open_text_reader)
        _keep_signatures(plan, manifest, options, held, None)
        held.release_old_epochs()  # on a store each run leaves the files of its lease
        return RunResult(manifest, plan.output, was_up_to_date=True, warnings=list_warnings(plan, manifest))
    finished = journal.find_manifest(plan.output) if options.update else None
    change = None if finished is None else _describe_change(plan, finished)
    with Activity(shows=options.progress is not False, seconds_between=0) as activity:
        compile_ahead(plan, activity.show)
    # Look again for the marker of a run that died, now that the folder is locked and no other run can have left it.
    death = find_death_in_process(plan.output) if plan.placement.is_small_job else None
    placement = plan.placement if death is None else Placement("processes", death)
    if options.events is not None:
        options.events.write("run_placed", backend=placement.backend, where=str(placement))
        options.events.close()
    # What raises in the caller's own process may be a signal handler of the caller: no second try must swallow that.
    retries = 0 if placement.is_small_job else options.retries
    execution = Execution(plan, replace(options, backend=placement.backend, retries=retries), held, pool)
    with work_folder.mark_in_process(plan.output) if placement.is_small_job else nullcontext():
        manifest = execution.run()
    work_folder.remove_in_process_marker(plan.output)
    _keep_signatures(plan, manifest, replace(options, backend=placement.backend), held, pool)
    return RunResult(
        manifest,
        plan.output,
        was_up_to_date=False,
        warnings=list_warnings(plan, manifest),
        work_seconds=execution.work_seconds,
        store_use=execution.store_use,
        reuse=execution.reuse,
        change=change,
    )


def _keep_signatures(
    plan: Plan, manifest: Manifest, options: RunOptions, held: HeldOutput, pool: WorkerPool | None
) -> None:
    """Complete the signatures of the dataset, if a step keeps them."""
    steps = (step for source in plan.sources for stage in source.stages for step in stage.all_steps)
    if any(getattr(step, "keep_signatures", False) for step in steps):
        from gristmill.pipeline.jobs.sign_dataset import keep_signatures  # noqa: PLC0415  (few runs)

        keep_signatures(plan, manifest, options, held, pool)


def _find_finished(plan: Plan, options: RunOptions) -> Manifest | None:
    """Find the dataset that is already there, if it is what the plan would make; refuse to touch any other one."""
    manifest = journal.find_manifest(plan.output)
    if manifest is None or options.overwrite:
        return None
    change = _describe_change(plan, manifest)
    if change is None:
        return manifest
    if not options.update:
        raise NotUpToDateError(
            f"{plan.output} holds a finished dataset, and {change}",
            help="--update rebuilds it and reuses the shards that are still valid; --overwrite starts from nothing",
        )
    return None


def describe_finished(plan: Plan) -> str | None:
    """Describe the dataset in the output: that it is up to date, or why it is not; None if there is none."""
    manifest = journal.find_manifest(plan.output)
    if manifest is None:
        return None
    change = _describe_change(plan, manifest)
    return "up to date" if change is None else change


def _find_read_only(plan: Plan, options: RunOptions) -> Manifest:
    """Find the dataset in a folder that cannot be written. No one can change it, so looking at it needs no lock."""
    manifest = journal.find_manifest(plan.output)
    change = "it holds no finished dataset" if manifest is None else _describe_change(plan, manifest)
    if manifest is not None and change is None and not options.overwrite:
        return manifest
    reason = change or "overwrite would rebuild it"
    raise UsageError(f"{plan.output} cannot be written, and {reason}", help="choose another output")


def _describe_change(plan: Plan, manifest: Manifest) -> str | None:
    """Describe why the dataset is not what the plan would make; None if it is."""
    if plan.fingerprint is None:
        return "the code of a function cannot be known"
    if manifest.fingerprint != plan.fingerprint:
        return f"the recipe or its inputs have changed{_describe_recipe_change(plan, manifest)}"
    damaged = journal.find_damaged_file(plan.output, manifest)
    return None if damaged is None else f"its file {damaged} is missing or has another size"


def _describe_recipe_change(plan: Plan, manifest: Manifest) -> str:
    """Describe the first keys of the recipe that have changed; nothing if it is the same, and the inputs differ."""
    from gristmill.report.differences import compare_recipes  # noqa: PLC0415  (only for this message)

    changes = [change for change in compare_recipes(manifest.recipe, describe_recipe(plan)) if change.key != "output"]
    shown = [
        f"{change.key} was {_show(plan.recipe, change.key, change.a)}, is {_show(plan.recipe, change.key, change.b)}"
        for change in changes[:_MAX_CHANGES]
    ]
    more = [f"and {len(changes) - len(shown)} more keys"] if len(changes) > len(shown) else []
    return f" ({'; '.join([*shown, *more])})" if changes else ""


def _show(recipe: Recipe, key: str, value: object) -> str:
    if value is not None:
        return f"{value!r:.60}"
    default = find_default(recipe, key)
    return "not set" if default is None else f"{default!r:.60} (the default)"
