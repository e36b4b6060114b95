"""The execution of a plan: stages of tasks, the barriers between them, and at the end the dataset.

Finished work has a receipt and is not done again, whether this run did it, one that was killed, or the one that made
the dataset which is being updated. The manifest is written last.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING, cast

from gristmill.core.books import Account, add_books
from gristmill.core.errors import DamagedWorkError, LeaseLostError, QuarantineError, RemoteStoreError, TooManyBadError
from gristmill.core.splits import TRAIN
from gristmill.pipeline import work_folder
from gristmill.pipeline.barriers.base import BarrierRun, BarrierSource, find_annotator, make_barrier
from gristmill.pipeline.monitoring.progress_watch import ProgressWatch
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.trials import name_unlike_files
from gristmill.pipeline.planning.units import Span
from gristmill.pipeline.publishing import journal, publish
from gristmill.pipeline.publishing.failed_run import RefusedRecords, leave_failed_run, remove_failed_run
from gristmill.pipeline.publishing.publish import FinishedSource
from gristmill.pipeline.publishing.side_files import describe_times, publish_report
from gristmill.pipeline.stages.outputs.unit_output import StoredStreams, choose_final_output
from gristmill.pipeline.stages.receipts import open_receipts
from gristmill.pipeline.stages.runner import StageResults, StageRunner, UnitReuse
from gristmill.pipeline.stages.slice_run import STORE_COUNT
from gristmill.pipeline.stages.stage_context import SourceStage, StageContext
from gristmill.pipeline.stages.unpack import InputUnits
from gristmill.storage.commit import remove_temporaries
from gristmill.storage.stores.retries import StoreUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gristmill.core.step import GlobalStep, LocalStep
    from gristmill.engine.worker_pool import WorkerPool
    from gristmill.pipeline.barriers.base import BarrierOutcome
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.pipeline.planning.source_plan import SourcePlan, Stage
    from gristmill.pipeline.publishing.final_shards import MixedLane
    from gristmill.pipeline.stages.outputs.score_writer import StageScores
    from gristmill.pipeline.stages.outputs.unit_output import UnitOutput
    from gristmill.pipeline.stages.preparation import NodeCheck
    from gristmill.pipeline.stages.stage_context import RunOptions, SliceResult
    from gristmill.pipeline.stages.unit_tasks import StageUnit
    from gristmill.report.thresholds import TextReader
    from gristmill.shards.manifest import Decontaminated, Deduplicated, KeptBest, Manifest
    from gristmill.shards.score_file import ScoreLayout
    from gristmill.shards.stored_files import StoredFile
    from gristmill.storage.leases import HeldOutput

_FIRST_EPOCH = "00000001"
"""The run id of the first run on a store: no other one can have left anything there."""
_MAX_REBUILDS = 3
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
"""The fingerprint of a task in the names of its files."""

_log = logging.getLogger("gristmill")


@dataclass(slots=True)
class _SourceProgress:
    """The progress of one source: its units in the next stage, and what the stages before it have recorded."""

    plan: SourcePlan
    units: list[StageUnit]
    stage_number: int = 0
    """Number of the next stage."""
    entry_account: str | None = "read"
    """Name of the account that counts the records coming into the stage."""
    entry_counters: Mapping[str, int] = field(default_factory=dict)
    """Counters of that account which a barrier knows."""
    prepended_steps: tuple[LocalStep, ...] = ()
    """Local steps that a barrier has put before the stage's own."""
    books: list[Account] = field(default_factory=list)
    quarantine: list[StoredFile] = field(default_factory=list)
    dropped: list[StoredFile] = field(default_factory=list)
    scores: list[StageScores] = field(default_factory=list)
    num_collected: int = 0
    """The number of stages whose results are in the fields above."""
    results: Iterable[SliceResult] = ()
    """Results of the units, in order."""

    @property
    def stage(self) -> Stage:
        return self.plan.stages[self.stage_number]


class Execution:
    """One execution of a plan in a locked output folder."""

    def __init__(self, plan: Plan, options: RunOptions, held: HeldOutput, pool: WorkerPool | None = None) -> None:
        self._started = monotonic()
        self._plan = plan
        self._options = options
        self._held = held
        self._pool = pool
        self._run_id = run_id = held.run_id
        # A global step without a barrier is an error before any work is done.
        for source in plan.sources:
            for stage in source.stages:
                if stage.global_step is not None:
                    make_barrier(stage.global_step)
        # Where a function's code cannot be known, no fingerprint may ever match another run's.
        self._salt = secrets.token_hex(8) if plan.fingerprint is None else ""
        if options.overwrite:
            work_folder.remove_work_folder(plan.output, paths_to_keep=_list_spooled_files(plan))
        remove_failed_run(plan.output)
        remove_temporaries(plan.output, None)
        self._work = work_folder.open_intermediate_folder(plan.output, plan.work, run_id)
        if self._work != plan.output:
            remove_temporaries(self._work, None)
        if plan.plugins:
            fingerprint.record_plugins(plan.output, plan.plugins, run_id)
        self._receipts = open_receipts(plan.output / work_folder.RECEIPTS, run_id, held.check)
        self._finished_receipts = open_receipts(plan.output / work_folder.UNIT_RECEIPTS, run_id, held.check)
        self._watch = ProgressWatch(
            plan.output,
            run_id,
            options.backend,
            stall_timeout=options.stall_timeout,
            stops=options.stop_on_stall,
            events=options.events,
            monitors=bool(options.monitor or options.view),
        )
        self._watch.view = options.view
        self._runner = StageRunner(
            plan, options, self._receipts, self._finished_receipts, self._work, pool, self._watch
        )
        self._node_check: NodeCheck | None = None
        if options.backend == "ray":
            from gristmill.pipeline.stages.preparation import write_node_check  # noqa: PLC0415  (only on clusters)

            self._node_check = write_node_check([plan.output, self._work], plan.sources, run_id)
        self._deduplicated: list[Deduplicated] = []
        self._decontaminated: list[Decontaminated] = []
        self._best: list[KeptBest] = []
        self._sources: list[_SourceProgress] = []
        self._num_rebuilds: Counter[str] = Counter()
        """How often a task was run again because its files were damaged, by its fingerprint."""

    @property
    def work_seconds(self) -> float:
        """Seconds from each stage's first ready worker to the stage's end."""
        return self._runner.stopwatch.seconds

    @property
    def reuse(self) -> UnitReuse:
        """How many units were there from an earlier run."""
        return self._runner.reuse

    @property
    def store_use(self) -> StoreUse | None:
        """What tasks had of stores; None if they used none."""
        counts = self._runner.stopwatch.counts
        use = StoreUse(*(counts[f"{STORE_COUNT}{name}"] for name in StoreUse._fields))
        return use if any(use) else None

    def run(self) -> Manifest:
        """Run all stages and barriers, and publish the dataset."""
        if self._salt:
            _log.warning("the code of a function cannot be known: nothing of an earlier run is reused")
        if self._options.monitor:
            from gristmill.pipeline.monitoring.views import open_view  # noqa: PLC0415  (few runs are watched)

            self._watch.view = open_view(str(self._options.monitor), self._options.monitor_port, str(self._plan.output))
        manifest: Manifest | None = None
        try:
            while manifest is None:
                try:
                    manifest = self._make_dataset()
                except DamagedWorkError as error:
                    self._discard_damaged(error)
        except BaseException as error:
            if self._pool is not None:  # a worker that was killed may be in the middle of its last system call
                self._pool.close(at_once=True)
            for folder in {self._plan.output, self._work}:
                remove_temporaries(folder, self._run_id)  # of workers that ended in the middle of a file
            if isinstance(error, Exception) and not isinstance(error, RemoteStoreError):
                self._check_lease()
            if isinstance(error, TooManyBadError | QuarantineError):
                source = next(source for source in self._plan.sources if source.name == error.context["source"])
                name_unlike_files(error, source.read, source.files, source.schema)
            if not isinstance(error, RemoteStoreError):
                times = describe_times(
                    self._runner.stopwatch, self._options.backend, monotonic() - self._started, self._plan.recipe
                )
                leave_failed_run(self._plan, error, self._list_refused_records(), self._held, times)
            raise
        finally:
            self._watch.close()
            self._receipts.close()
            self._finished_receipts.close()
        if self._options.keep_work:
            journal.clear_journal(self._plan.output)
        else:
            journal.prune_work_folder(self._plan.output, self._runner.kept_files)
        was_killed = self._run_id != _FIRST_EPOCH or any(job.deaths for job in self._runner.stopwatch.jobs)
        journal.remove_orphans(self._plan.output, manifest, self._held, may_have_uploads=was_killed)
        self._held.release_old_epochs()
        times = describe_times(
            self._runner.stopwatch, self._options.backend, monotonic() - self._started, self._plan.recipe
        )
        publish_report(
            self._plan.output,
            manifest,
            self._held,
            self._plan.recipe.num_samples,
            times,
            open_text_reader(manifest),
        )
        return manifest

    def _make_dataset(self) -> Manifest:
        self._deduplicated.clear()
        self._decontaminated.clear()
        self._best.clear()
        sources = self._run_stages()
        finished = {
            source.plan.name: FinishedSource(
                source.books, source.units, source.results, source.quarantine, source.dropped, source.scores
            )
            for source in sources
        }
        lane = self._write_mixed_lane(sources)
        return publish.publish(
            self._plan, finished, self._held, self._deduplicated, lane, self._decontaminated, self._best
        )

    def _discard_damaged(self, error: DamagedWorkError) -> None:
        """Let the task that wrote a damaged file have no receipt: then all stages can be run again, as if resumed.

        Raises `error` if the same task was run again before, or if the file is one of a finished dataset.
        """
        file = cast("StoredFile | None", error.context.get("file"))
        self._check_lease()
        path = error.message if file is None else file.path
        task = _FINGERPRINT.search(path)
        name = path if task is None else task[0]  # each attempt on a store has separate names
        self._num_rebuilds[name] += 1
        is_published = file is not None and file.path in journal.manifest_paths(
            journal.find_manifest(self._plan.output)
        )
        if self._num_rebuilds[name] > _MAX_REBUILDS or is_published:
            raise error
        _log.warning("%s; the task that wrote it is run again", error.message)
        if self._options.events is not None:
            self._options.events.write("work_damaged", problem=error.message)
        self._runner.forget_damaged(file)

    def _check_lease(self) -> None:
        """Raise `LeaseLostError` if another run has taken over, which empties the work folder: its name tells more."""
        try:
            self._held.check()
        except LeaseLostError:  # tasks that were running have ended after that
            journal.remove_replaced(self._plan.output, self._work, self._run_id)
            raise

    def _run_stages(self) -> list[_SourceProgress]:
        context = self._make_context([_SourceProgress(source, []) for source in self._plan.sources])
        inputs = InputUnits(self._plan, self._runner, context, self._salt)
        inputs.unpack_files()
        sources = self._sources = [
            _SourceProgress(source, self._take_needed_units(inputs.prepare_units(source), context, source))
            for source in self._plan.sources
        ]
        # Sources with fewer barriers start later, so that all of them come to a common barrier together.
        num_rounds = max(len(source.stages) for source in self._plan.sources)
        for number in range(num_rounds):
            active = [source for source in sources if num_rounds - number <= len(source.plan.stages)]
            context = self._make_context(active)
            desc = f"stage {number + 1} of {num_rounds}" if num_rounds > 1 else "running"
            self._runner.run(context, chain.from_iterable(source.units for source in active), desc)
            for source in active:
                self._collect_results(source)
                publish.check_quarantine(self._plan, source.plan, source.books, source.quarantine)
                self._pack_leftovers(source, context)
            self._pass_barriers(active, context)
        return sources

    def _take_needed_units(
        self, units: Iterator[StageUnit], context: StageContext, source: SourcePlan
    ) -> list[StageUnit]:
        """Take all units, or only those with the first records where the first barrier needs no others.

        Units have to be run to know how many records they leave. They run in waves of 1, 2, 4, … units, so that few
        more than needed run.
        """
        limit, stage = source.limiting_step, source.stages[0]
        # Where records are assigned to splits on the way, any unit may hold some that the barrier does not count.
        if limit is None or any(step.splits_added() for step in stage.steps):
            return list(units)
        num_left: dict[str, float] = {}
        for split in {file.split or TRAIN for file in source.files}:
            max_records = limit.max_first(split)
            num_left[split] = float("inf") if max_records is None else max_records
        needed: list[StageUnit] = []
        wave_size = 1
        while any(count > 0 for count in num_left.values()):
            wave = list(islice((unit for unit in units if _is_needed(unit, num_left)), wave_size))
            if not wave:
                break
            self._runner.run(context, wave, "first records")
            for unit, result in zip(wave, StageResults(self._runner, wave), strict=True):
                if _is_needed(unit, num_left):
                    needed.append(unit)
                    for file in result.split_files:
                        num_left[file.split] -= file.rows
            wave_size *= 2
        return needed

    def _make_context(self, sources: Sequence[_SourceProgress]) -> StageContext:
        stages = {
            source.plan.name: SourceStage(
                source.plan.read,
                source.plan.schema,
                (*source.prepended_steps, *source.stage.steps),
                self._choose_output(source),
                source.entry_account,
                self._describe_scores(source),
                self._plan.layout.fit_steps(source.stage.steps),
            )
            for source in sources
        }
        recipe = self._plan.recipe
        return StageContext(
            self._plan.output,
            self._work,
            self._run_id,
            recipe.seed,
            recipe.max_quarantine,
            stages,
            recipe.keep_dropped,
            self._options.watch,
            needed_content=self._find_needed_content(sources),
            node_check=self._node_check,
            layout=self._plan.layout,
        )

    def _open_scores(self, source: _SourceProgress) -> StageScores | None:
        """Open the collection of what the filters of the next stage measure; None if it has none."""
        layout = self._describe_scores(source)
        if layout is None:
            return None
        from gristmill.pipeline.stages.outputs.score_writer import StageScores  # noqa: PLC0415  (few recipes need it)

        source.scores.append(StageScores(layout))
        return source.scores[-1]

    def _describe_scores(self, source: _SourceProgress) -> ScoreLayout | None:
        if self._plan.recipe.keep_scores is None or not _filters_by_scores(source.plan):
            return None
        from gristmill.pipeline.stages.outputs.score_writer import describe_stage  # noqa: PLC0415  (few recipes need it)

        return describe_stage(source.plan.name, source.stage_number, [stage.steps for stage in source.plan.stages])

    def _find_needed_content(self, sources: Sequence[_SourceProgress]) -> frozenset[str]:
        """Find the tokenizers and models that the next stage of these sources or a later one loads."""
        first_stages = {source.plan.name: source.stage_number for source in sources}
        return frozenset(
            content
            for source in self._plan.sources
            for stage in source.stages[first_stages.get(source.name, 0) :]
            for step in stage.all_steps
            for content in step.loaded_content
        )

    def _choose_output(self, source: _SourceProgress) -> UnitOutput:
        """Choose how the source's next stage writes its units: for the stage after it, or for the dataset."""
        schema = source.plan.stage_schemas[source.stage_number]
        step = source.stage.global_step
        if step is None:
            return choose_final_output(self._plan, schema)
        return StoredStreams(schema, find_annotator(step))

    def _collect_results(self, source: _SourceProgress) -> None:
        """Collect the books and files that a stage's units have left."""
        source.results = StageResults(self._runner, source.units)
        books = add_books(result.books for result in source.results) or self._make_empty_books(source)
        for name, count in source.entry_counters.items():
            books[0].counters[name] = count
        source.books += books
        source.num_collected += 1
        scores = self._open_scores(source)
        for result in source.results:
            source.quarantine += result.quarantine
            source.dropped += result.dropped
            if scores is not None:
                scores.add(result.scores, result.score_histograms)

    def _list_refused_records(self) -> dict[str, RefusedRecords]:
        """List what the finished tasks of all sources have left, when the run has failed anywhere."""
        tasks = self._runner.tasks
        unjoined = list(tasks.list_unjoined()) if tasks is not None else []
        refused = {}
        for source in self._sources:
            results: list[SliceResult] = []
            if source.num_collected <= source.stage_number:
                results = [result for unit in source.units if (result := self._runner.find_result(unit)) is not None]
                results += [result for name, result in unjoined if name == source.plan.name]
            names = [account.step for account in results[0].books] if results else []
            alike = [result.books for result in results if [account.step for account in result.books] == names]
            refused[source.plan.name] = RefusedRecords(
                books=[*source.books, *add_books(alike)],
                quarantine=[*source.quarantine, *(file for result in results for file in result.quarantine)],
                dropped=[*source.dropped, *(file for result in results for file in result.dropped)],
            )
        return refused

    def _pass_barriers(self, sources: Sequence[_SourceProgress], context: StageContext) -> None:
        """Pass each global step's barrier once, with all sources that come to an equal step."""
        waiting = [(source, source.stage.global_step) for source in sources if source.stage.global_step is not None]
        run = BarrierRun(self._plan, self._runner, context)
        while waiting:
            step = waiting[0][1]
            together = [source for source, other in waiting if other == step]
            waiting = [(source, other) for source, other in waiting if other != step]
            outcome = make_barrier(step).pass_sources(
                [BarrierSource(source.plan.name, source.units, source.results) for source in together], run
            )
            if outcome.deduplicated is not None:
                self._deduplicated.append(outcome.deduplicated)
            if outcome.decontaminated is not None:
                self._decontaminated.append(outcome.decontaminated)
            if outcome.best is not None:
                self._best.append(outcome.best)
            for source in together:
                source.dropped += outcome.evidence.get(source.plan.name, [])
                self._enter_next_stage(source, step, outcome)

    def _enter_next_stage(self, source: _SourceProgress, step: GlobalStep, outcome: BarrierOutcome) -> None:
        """Start a source's next stage from the units that its barrier has made.

        Their fingerprints also tell what the next stage does to the records.
        """
        source.stage_number += 1
        source.entry_account, source.prepended_steps = outcome.entry_account, outcome.prepended_steps
        source.entry_counters = outcome.entry_counters.get(source.plan.name, {})
        stage = source.stage
        described = fingerprint.of(
            fingerprint.describe_steps([*(outcome.prepended_steps or [step]), *stage.steps]),
            fingerprint.describe_steps(self._plan.output_steps) if stage.global_step is None else None,
        )
        source.units = [
            replace(unit, fingerprint=fingerprint.of(unit.fingerprint, described))
            for unit in outcome.units.get(source.plan.name, [])
        ]

    def _pack_leftovers(self, source: _SourceProgress, context: StageContext) -> None:
        """Pack the documents that units have left over, if there can be any, into more units of the source."""
        output = context.sources[source.plan.name].output.leftover_output
        if output is None:
            return
        from gristmill.pipeline.publishing.final_shards import pack_leftovers  # noqa: PLC0415
        from gristmill.pipeline.stages.outputs.sinks import check_utilisation  # noqa: PLC0415  (only for rows of tokens)

        leftover_units, counters = pack_leftovers(self._runner, context, output, source.units, source.results)
        account = source.books[-1]
        account.counters.update(counters)
        epochs = sorted({unit.epoch for unit in source.units})
        source.units = [unit for epoch in epochs for unit in chain(source.units, leftover_units) if unit.epoch == epoch]
        source.results = StageResults(self._runner, source.units)
        check_utilisation(output.pack, source.plan.name, account)

    def _write_mixed_lane(self, sources: Sequence[_SourceProgress]) -> MixedLane | None:
        """Interleave the training records of all sources, where the recipe asks for it."""
        if not self._plan.joins_sources:
            return None
        unit_results = {source.plan.name: (source.units, source.results) for source in sources}
        from gristmill.pipeline.publishing.final_shards import write_mixed_lane  # noqa: PLC0415  (few recipes need it)

        # What was held back for the lane is in the output, next to the shards.
        context = replace(self._make_context([]), work=self._plan.output)
        return write_mixed_lane(self._plan, self._runner, context, unit_results)

    def _make_empty_books(self, source: _SourceProgress) -> list[Account]:
        """Make the books of a stage that no record came to."""
        steps = (*source.prepended_steps, *source.stage.steps)
        names = [*([source.entry_account] if source.entry_account else []), *(step.name for step in steps)]
        return [*(Account(step=name) for name in names), *self._choose_output(source).make_empty_accounts()]


def open_text_reader(manifest: Manifest) -> TextReader | None:
    """Open the reader of input texts that the report shows next to thresholds; None if it has no thresholds."""
    if not manifest.scores:
        return None
    from gristmill.pipeline.inspecting.trace import make_text_reader  # noqa: PLC0415  (only with filters by scores)

    return make_text_reader(manifest)


def _filters_by_scores(source: SourcePlan) -> bool:
    described = (step.describe_scores() for stage in source.stages for step in stage.steps)
    return any(scores is not None and scores.is_score_filter for scores in described)


def _is_needed(unit: StageUnit, num_left: Mapping[str, float]) -> bool:
    """Tell whether a unit of the first stage has records of a split of which there are not enough yet."""
    spans = (span for span in unit.inputs if isinstance(span, Span))
    return any(num_left[span.file.split or TRAIN] > 0 for span in spans)


def _list_spooled_files(plan: Plan) -> set[str]:
    """List the input files in the output folder: no source may read its own output, so this run has put them there."""
    root = f"{plan.output}/"
    return {file.path.removeprefix(root) for source in plan.sources for file in source.files}
