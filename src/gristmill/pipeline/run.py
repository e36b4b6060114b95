"""Running a plan: legs of tasks, receipts, and at the end the dataset.

What is done has a receipt and is not done again, whether it was this run that did it, one that was killed, or the one
that made the dataset which is being updated. The manifest is written last.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from gristmill.core.books import Account
from gristmill.core.errors import NotUpToDateError, UsageError
from gristmill.core.splits import TRAIN
from gristmill.engine.progress import Activity
from gristmill.pipeline import work_folder as output
from gristmill.pipeline.barriers import base as barriers
from gristmill.pipeline.barriers.deduplicate.barrier import deduplicate_units
from gristmill.pipeline.barriers.deduplicate.barrier_units import collect_barrier_units
from gristmill.pipeline.barriers.mix import mix_units
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.notebook import render_result
from gristmill.pipeline.planning.outline import format_count
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.planning.python_records import has_python_records, spool_python_records
from gristmill.pipeline.planning.units import Span
from gristmill.pipeline.publishing import journal as moves
from gristmill.pipeline.publishing import publish
from gristmill.pipeline.publishing.empty_datasets import list_empty_warnings
from gristmill.pipeline.publishing.locked_output import lock_output
from gristmill.pipeline.publishing.mixed_lane import write_mixed_lane
from gristmill.pipeline.publishing.publish import FinishedSource
from gristmill.pipeline.stages.compile_ahead import compile_ahead
from gristmill.pipeline.stages.input_units import InputUnits
from gristmill.pipeline.stages.join import add_books
from gristmill.pipeline.stages.options import RunOptions
from gristmill.pipeline.stages.pack_leftovers import pack_leftovers
from gristmill.pipeline.stages.packing import check_utilisation, make_empty_account
from gristmill.pipeline.stages.receipts import Receipts
from gristmill.pipeline.stages.runner import StageResults, StageRunner, StageUnit
from gristmill.pipeline.stages.slice_task import SliceResult, SourceStage, StageContext
from gristmill.shards.dataset import open_dataset
from gristmill.steps.deduplicate.deduplicate import Deduplicate
from gristmill.steps.limit import Limit
from gristmill.steps.mix import Mix
from gristmill.steps.shuffle import Shuffle
from gristmill.steps.split import AssignSplit, Split
from gristmill.storage.commit import remove_temporaries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gristmill.core.recipe import Recipe
    from gristmill.core.step import LocalStep, Step
    from gristmill.pipeline.planning.plan import Plan, SourcePlan
    from gristmill.pipeline.planning.split_stages import Stage
    from gristmill.pipeline.publishing.mixed_lane import MixedLane
    from gristmill.shards.dataset import Dataset
    from gristmill.shards.manifest import Deduplicated, Manifest, StoredFile
    from gristmill.steps.pack.pack import Pack

_log = logging.getLogger("gristmill")


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """What a run made. A notebook shows it with its books."""

    manifest: Manifest
    output: Path
    was_up_to_date: bool
    warnings: tuple[str, ...] = ()
    """What the user should know: sources and splits that are empty."""
    work_seconds: float = 0.0
    """From each stage's first ready worker to the stage's end: without planning, start-up and compilation."""

    @property
    def books(self) -> dict[str, list[dict[str, object]]]:
        """By source, the account of each step."""
        return self.manifest.books

    @property
    def tokens(self) -> int:
        """Tokens in all shards, padding apart; 0 for a dataset of documents."""
        return sum(shard.tokens or 0 for _, _, shard in self.manifest.shards())

    def dataset(self) -> Dataset:
        """The dataset, for reading."""
        return open_dataset(self.output)

    def __repr__(self) -> str:
        shards = [shard for _, _, shard in self.manifest.shards()]
        counts = f"{format_count(sum(shard.rows for shard in shards), 'row')} in {format_count(len(shards), 'shard')}"
        tokens = f", {format_count(self.tokens, 'token')}" if self.tokens else ""
        return f"RunResult({str(self.output)!r}, {counts}{tokens}, was_up_to_date={self.was_up_to_date})"

    def _repr_html_(self) -> str:
        return render_result(repr(self), self.books)


def run_recipe(recipe: Recipe, options: RunOptions | None = None, *, limit: int | None = None) -> RunResult:
    """Plan and run a recipe. The same call goes on where a stopped one ended."""
    options = options or RunOptions()
    plan_by = partial(
        make_plan,
        recipe,
        limit=limit,
        backend=options.backend,
        timeout=options.timeout,
        debug=options.watch is not None,
    )
    with Activity(shows=options.progress is not False) as activity:
        plan = plan_by(tell=activity.show)
    if not has_python_records(recipe):
        return run_plan(plan, options)
    # Planned by the first records, so that what is wrong shows before a generator is spent; then by all.
    with (
        lock_output(plan.output) as run_id,
        spool_python_records(recipe, plan.output, run_id, keep=options.keep_work) as spooled,
    ):
        plan = plan_by(spooled=spooled)
        return _run_locked(plan, options, run_id)


def run_plan(plan: Plan, options: RunOptions) -> RunResult:
    """Run what was just planned."""
    if output.is_read_only(plan.output) and plan.output.exists():
        return RunResult(_find_read_only(plan, options), plan.output, was_up_to_date=True)
    with lock_output(plan.output) as run_id:
        return _run_locked(plan, options, run_id)


def _run_locked(plan: Plan, options: RunOptions, run_id: str) -> RunResult:
    finished = _find_finished(plan, options)
    if finished is not None:
        return RunResult(finished, plan.output, was_up_to_date=True, warnings=list_empty_warnings(plan, finished))
    with Activity(shows=options.progress is not False) as activity:
        compile_ahead(plan, activity.show)
    execution = _Execution(plan, options, run_id)
    manifest = execution.run()
    return RunResult(
        manifest,
        plan.output,
        was_up_to_date=False,
        warnings=list_empty_warnings(plan, manifest),
        work_seconds=execution.work_seconds,
    )


def _find_finished(plan: Plan, options: RunOptions) -> Manifest | None:
    """The dataset that is there already, if it is what the plan would make; refuses to touch another one."""
    manifest = moves.find_manifest(plan.output)
    if manifest is None or options.overwrite:
        return None
    changed = _describe_change(plan, manifest)
    if changed is None:
        return manifest
    if not options.update:
        raise NotUpToDateError(
            f"{plan.output} holds a finished dataset, and {changed}",
            help="--update makes it anew from what still fits, --overwrite from nothing",
        )
    return None


def _find_read_only(plan: Plan, options: RunOptions) -> Manifest:
    """The dataset in a folder that cannot be written: nobody works there, so no lock is needed to look at it."""
    manifest = moves.find_manifest(plan.output)
    changed = "it holds no finished dataset" if manifest is None else _describe_change(plan, manifest)
    if manifest is not None and changed is None and not options.overwrite:
        return manifest
    reason = changed or "overwrite would make it anew"
    raise UsageError(f"{plan.output} cannot be written, and {reason}", help="choose another output")


def _describe_change(plan: Plan, manifest: Manifest) -> str | None:
    """Why the dataset is not what the plan would make, in words."""
    if plan.fingerprint is None:
        return "the code of a function cannot be known"
    if manifest.fingerprint != plan.fingerprint:
        return "the recipe or its inputs have changed"
    damaged = moves.find_damaged_file(plan.output, manifest)
    return None if damaged is None else f"its file {damaged} is missing or has another size"


@dataclass(slots=True)
class _SourceProgress:
    """One source on its way: its units in the leg that comes next, and what the legs so far have said."""

    plan: SourcePlan
    units: list[StageUnit]
    number: int = 0
    """Of the leg that comes next."""
    opening: str | None = "read"
    assigned: tuple[LocalStep, ...] = ()
    """Steps that a barrier has put before the leg's own."""
    books: list[dict[str, Any]] = field(default_factory=list)
    quarantine: list[StoredFile] = field(default_factory=list)
    dropped: list[StoredFile] = field(default_factory=list)
    results: Iterable[SliceResult] = ()

    @property
    def leg(self) -> Stage:
        return self.plan.stages[self.number]


class _Execution:
    def __init__(self, plan: Plan, options: RunOptions, run_id: str) -> None:
        self._plan = plan
        self._options = options
        self._run_id = run_id
        # Where a function's code cannot be known, no fingerprint may ever match another run's.
        self._salt = secrets.token_hex(8) if plan.fingerprint is None else ""
        if options.overwrite:
            output.remove_work_folder(plan.output, kept=_list_spooled_files(plan))
        remove_temporaries(plan.output, None)
        self._receipts = Receipts(plan.output / output.RECEIPTS)
        self._finished = Receipts(plan.output / output.UNIT_RECEIPTS)
        self._runner = StageRunner(plan, options, self._receipts, self._finished)
        self._deduplicated: list[Deduplicated] = []

    @property
    def work_seconds(self) -> float:
        return self._runner.stopwatch.seconds

    def run(self) -> Manifest:
        if self._salt:
            _log.warning("the code of a function cannot be known: nothing of an earlier run is used again")
        try:
            flows = self._run_stages()
            finished = {flow.plan.name: self._finish(flow) for flow in flows}
            lane = self._write_mixed_lane(flows)
            manifest = publish.publish(self._plan, finished, self._run_id, self._deduplicated, lane)
        except BaseException:
            remove_temporaries(self._plan.output, self._run_id)  # of workers that had to end in the middle of a file
            raise
        finally:
            self._receipts.close()
            self._finished.close()
        if self._options.keep_work:
            moves.clear_journal(self._plan.output)
        else:
            moves.prune_work_folder(self._plan.output)
        return manifest

    def _run_stages(self) -> list[_SourceProgress]:
        stage = self._make_context([_SourceProgress(source, []) for source in self._plan.sources])
        inputs = InputUnits(self._plan, self._runner, stage, self._salt)
        inputs.unpack_files()
        flows = [
            _SourceProgress(source, self._take_needed_units(inputs.prepare_units(source), stage, source))
            for source in self._plan.sources
        ]
        # Sources with fewer barriers start later, so that all come to a common one together.
        num_rounds = max(len(source.stages) for source in self._plan.sources)
        for number in range(num_rounds):
            going = [flow for flow in flows if num_rounds - number <= len(flow.plan.stages)]
            stage = self._make_context(going)
            desc = f"stage {number + 1} of {num_rounds}" if num_rounds > 1 else "running"
            self._runner.run(stage, [unit for flow in going for unit in flow.units], desc)
            for flow in going:
                self._collect_results(flow)
                publish.check_quarantine(self._plan, flow.plan.name, flow.books)
                if flow.leg.barrier is None and self._plan.pack is not None:
                    self._pack_leftovers(flow, self._plan.pack, stage)
            self._pass_barriers(going, stage)
            for flow in going:
                flow.number += 1
        return flows

    def _take_needed_units(
        self, units: Iterator[StageUnit], stage: StageContext, source: SourcePlan
    ) -> list[StageUnit]:
        """All units; where the records come to a `limit` first, those that it needs. They are run to know that."""
        leg = source.stages[0]
        # Where records are dealt to splits on the way, any unit may hold some that no limit counts.
        if not isinstance(leg.barrier, Limit) or any(isinstance(step, Split) for step in leg.steps):
            return list(units)
        num_left = {
            split: leg.barrier.max_records if leg.barrier.applies_to_split(split) else float("inf")
            for split in {file.split or TRAIN for file in source.files}
        }
        taken: list[StageUnit] = []
        wave_size = 1
        while any(left > 0 for left in num_left.values()):
            wave = list(islice((unit for unit in units if _is_needed(unit, num_left)), wave_size))
            if not wave:
                break
            self._runner.run(stage, wave, "first records")
            for unit, result in zip(wave, StageResults(self._runner, wave), strict=True):
                if _is_needed(unit, num_left):
                    taken.append(unit)
                    for part in result.split_files:
                        num_left[part.split] -= part.rows
            wave_size *= 2
        return taken

    def _make_context(self, flows: Sequence[_SourceProgress]) -> StageContext:
        legs = {}
        for flow in flows:
            leg = flow.leg
            write = self._plan.write if leg.barrier is None else None
            schema = flow.plan.stage_schemas[flow.number]
            steps = (*flow.assigned, *leg.steps)
            legs[flow.plan.name] = SourceStage(
                flow.plan.read,
                flow.plan.schema,
                steps,
                schema,
                write,
                self._plan.pack if write is not None else None,
                self._plan.pad_id,
                flow.opening,
                holds_train=write is not None and self._plan.joins_sources,
            )
        recipe = self._plan.recipe
        return StageContext(
            self._plan.output,
            self._run_id,
            recipe.seed,
            recipe.max_quarantine,
            legs,
            recipe.keep_dropped,
            self._options.watch,
        )

    def _collect_results(self, flow: _SourceProgress) -> None:
        """Take down what a leg's units have said."""
        flow.results = StageResults(self._runner, flow.units)
        flow.books += add_books(result.books for result in flow.results) or self._make_empty_books(flow)
        for result in flow.results:
            flow.quarantine += result.quarantine
            flow.dropped += result.dropped

    def _pass_barriers(self, flows: Sequence[_SourceProgress], stage: StageContext) -> None:
        at_split = [flow for flow in flows if isinstance(flow.leg.barrier, Split)]
        for split in {flow.leg.barrier for flow in at_split}:
            if isinstance(split, Split):
                self._pass_split(split, [flow for flow in at_split if flow.leg.barrier == split], stage)
        at_mix = [flow for flow in flows if isinstance(flow.leg.barrier, Mix)]
        if at_mix:  # a common step: all sources come to it together
            self._pass_mix(at_mix, stage)
        self._pass_deduplicate([flow for flow in flows if isinstance(flow.leg.barrier, Deduplicate)], stage)
        for flow in flows:
            barrier = flow.leg.barrier
            if isinstance(barrier, Limit):
                flow.units = barriers.apply_limit(barrier, flow.units, flow.results)
            elif isinstance(barrier, Shuffle):
                flow.units = barriers.shuffle_units(barrier, self._runner, stage, flow.units, flow.results)
            else:
                continue
            flow.opening, flow.assigned = barrier.name, ()
            self._rename(flow, barrier)

    def _pass_split(self, split: Split, flows: Sequence[_SourceProgress], stage: StageContext) -> None:
        """By numbers of records over all sources that come to it."""
        units = [unit for flow in flows for unit in flow.units]
        results = chain.from_iterable(flow.results for flow in flows)
        bounds = barriers.find_split_bounds(split, self._runner, stage, units, results)
        for flow in flows:
            flow.units = barriers.pass_split(flow.units, flow.results)
            flow.opening, flow.assigned = None, (AssignSplit(split=split, bounds=bounds),)
            self._rename(flow, flow.assigned[0])

    def _pass_mix(self, flows: Sequence[_SourceProgress], stage: StageContext) -> None:
        mix = flows[0].leg.barrier
        if not isinstance(mix, Mix):
            return
        units = mix_units(mix, self._runner, stage, {flow.plan.name: (flow.units, flow.results) for flow in flows})
        for flow in flows:
            flow.units = units[flow.plan.name]
            flow.opening, flow.assigned = mix.name, ()
            self._rename(flow, mix)

    def _pass_deduplicate(self, flows: Sequence[_SourceProgress], stage: StageContext) -> None:
        """Over all sources that come to the same step."""
        while flows:
            step = flows[0].leg.barrier
            assert isinstance(step, Deduplicate)
            together = [flow for flow in flows if flow.leg.barrier == step]
            flows = [flow for flow in flows if flow.leg.barrier != step]
            units = [unit for flow in together for unit in collect_barrier_units(flow.units, flow.results)]
            left, entry = deduplicate_units(step, self._plan, self._runner, stage, units)
            self._deduplicated.append(entry)
            for flow in together:
                flow.units = left.get(flow.plan.name, [])
                flow.opening, flow.assigned = step.name, ()
                self._rename(flow, step)

    def _rename(self, flow: _SourceProgress, barrier: Step) -> None:
        """Units of the next leg are known by where they come from and what is done to them there."""
        leg = flow.plan.stages[flow.number + 1]
        described = fingerprint.of(
            fingerprint.describe_steps([barrier, *leg.steps]),
            fingerprint.describe_steps(self._plan.output_steps) if leg.barrier is None else None,
        )
        flow.units = [replace(unit, fingerprint=fingerprint.of(unit.fingerprint, described)) for unit in flow.units]

    def _pack_leftovers(self, flow: _SourceProgress, pack: Pack, stage: StageContext) -> None:
        """The rows that units have left unfinished, as more units of the source."""
        tails, measures = pack_leftovers(self._runner, stage, flow.units, flow.results)
        account = Account.from_dict(flow.books[-1])
        account.counters.update(measures)
        flow.books[-1] = account.to_dict()
        flow.units = sorted([*flow.units, *tails], key=lambda unit: unit.epoch)
        flow.results = StageResults(self._runner, flow.units)
        check_utilisation(pack, flow.plan.name, account)

    def _write_mixed_lane(self, flows: Sequence[_SourceProgress]) -> MixedLane | None:
        """What all sources hold for training, interleaved."""
        if not self._plan.joins_sources:
            return None
        sources = {flow.plan.name: (flow.units, flow.results) for flow in flows}
        return write_mixed_lane(self._plan, self._runner, self._make_context([]), sources)

    def _finish(self, flow: _SourceProgress) -> FinishedSource:
        return FinishedSource(flow.books, flow.units, flow.results, flow.quarantine, flow.dropped)

    def _make_empty_books(self, flow: _SourceProgress) -> list[dict[str, Any]]:
        """Of a leg to which no record came."""
        names = [*([flow.opening] if flow.opening else []), *(step.name for step in (*flow.assigned, *flow.leg.steps))]
        accounts = [Account(step=name) for name in names]
        if self._plan.pack is not None and flow.leg.barrier is None:
            accounts.append(make_empty_account(self._plan.pack))
        return [account.to_dict() for account in accounts]


def _is_needed(unit: StageUnit, num_left: Mapping[str, float]) -> bool:
    """Whether a unit of the first leg has records of a split of which there are not enough yet."""
    spans = (span for span in unit.inputs if isinstance(span, Span))
    return any(num_left[span.file.split or TRAIN] > 0 for span in spans)


def _list_spooled_files(plan: Plan) -> set[str]:
    """No source may read its recipe's output, so what lies there was put there for this run."""
    root = f"{plan.output}/"
    return {file.path.removeprefix(root) for source in plan.sources for file in source.files}
