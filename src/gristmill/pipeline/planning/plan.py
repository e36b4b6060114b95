"""The plan: everything that can be known and checked before any work starts.

Costs one listing of the inputs, the metadata of large files, and a few records of each source.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from gristmill.core.checks import join_names
from gristmill.core.errors import UsageError
from gristmill.core.step import GlobalStep
from gristmill.engine.parallel_run import IN_PROCESS_BACKENDS, choose_num_workers
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.compatibility import (
    check_joined_lane,
    check_kept_signatures,
    check_positions,
    check_sources,
    has_joining_step,
    make_order_note,
    unite_sources,
)
from gristmill.pipeline.planning.fingerprint import describe_packages, find_used_plugins
from gristmill.pipeline.planning.outline import Outline, SourceOutline, expect_memory, propose_unit_bytes, render_text
from gristmill.pipeline.planning.placement import (
    Placement,
    PlacementRequest,
    check_output_store,
    check_work_place,
    choose_placement,
    choose_stores,
)
from gristmill.pipeline.planning.python_records import sample_python_records
from gristmill.pipeline.planning.source_draft import StepResolver, draft_source, plan_source
from gristmill.pipeline.planning.units import UnitLayout, choose_cut
from gristmill.pipeline.work_folder import check_writable
from gristmill.runtime.process import TOKENIZER, forget_content
from gristmill.shards.formats.shard_format import open_encoder
from gristmill.shards.token_rows import is_masked, shard_schema
from gristmill.steps.pack import Pack
from gristmill.steps.sampling import KeepStage
from gristmill.steps.write import Write
from gristmill.storage.commit import count_free_bytes
from gristmill.storage.locations import is_remote, parse_location
from gristmill.storage.remembered_proofs import use_plan_cache
from gristmill.text.chats.jinja_environment import are_limits_enforced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import pyarrow as pa

    from gristmill.core.recipe import Recipe
    from gristmill.core.step import Step
    from gristmill.engine.machine import Pin
    from gristmill.engine.worker_pool import WorkerPool
    from gristmill.pipeline.planning.outline import ExpectedMemory
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.pipeline.planning.units import UnitCut
    from gristmill.readers.read import Read
    from gristmill.shards.manifest_file import TokenizerSnapshot
    from gristmill.storage.locations import Location


@runtime_checkable
class MixingStep(Protocol):
    """A step that takes of each source a share of what there is."""

    by: str
    epochs: dict[str, float]
    max_epochs: float

    def expect_epochs(self, available: Mapping[str, int]) -> dict[str, float]:
        """Compute how often each source would have to be taken, whether or not it may be."""

    def plan_shares(self, available: Mapping[str, int]) -> object:
        """Raise `UsageError` if there is too little of a source."""


_TOKENIZING = ("render", "tokenize")


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A recipe that has been checked. `print(plan)` shows all of it, and so does a notebook."""

    recipe: Recipe
    output: Location
    sources: tuple[SourcePlan, ...]
    write: Write
    pack: Pack | None
    versions: dict[str, str]
    placement: Placement
    """Where the run takes place."""
    is_limited: bool = False
    """Whether only the first records of each source are read, for a quick look."""
    plugins: dict[str, str] = field(default_factory=dict)
    """The packages of steps, barriers and readers that are not built in, as in the manifest."""
    layout: UnitLayout = UnitLayout()

    @property
    def work(self) -> Location | None:
        """Where intermediate data goes; None: to the output."""
        return None if self.recipe.work is None else parse_location(self.recipe.path(self.recipe.work))

    @property
    def output_steps(self) -> tuple[Step, ...]:
        """The steps that write the records: `pack`, if there is one, and `write`."""
        return (self.write,) if self.pack is None else (self.pack, self.write)

    @property
    def joins_sources(self) -> bool:
        """Whether the training records of all sources are written as one lane."""
        return has_joining_step(self.recipe.steps)

    @property
    def tokenizer(self) -> TokenizerSnapshot | None:
        """The tokenizer of all sources, if they have tokens."""
        return self.sources[0].tokenizer

    @property
    def pad_id(self) -> int:
        """The token that fills rows up."""
        return self.tokenizer.pad_id if self.tokenizer is not None else 0

    @property
    def shard_schema(self) -> pa.Schema:
        """The schema of the shards."""
        row_length = self.pack.row_length if self.pack is not None else None
        return open_encoder(self.write.shard_format, shard_schema(self.sources[0].output_schema, row_length)).schema

    @property
    def fingerprint(self) -> str | None:
        """A hash of all that decides the output; None where a function's code cannot be known."""
        sources = []
        for source in self.sources:
            if source.described_steps is None:
                return None
            files = [file.identity for file in source.files]
            sources.append([source.name, source.read_parameters, files, source.described_steps])
        write = fingerprint.describe_steps(self.output_steps)
        recipe = self.recipe
        scale = [recipe.unit_scale] if recipe.unit_scale != 1 else []
        side_files = (recipe.keep_dropped, recipe.keep_scores)
        return fingerprint.of(recipe.seed, sources, write, self.versions, recipe.mixture, *side_files, *scale)

    def outline(self) -> Outline:
        """Outline what the run will do, in numbers."""
        output_steps = [step.name for step in self.output_steps]
        if self.joins_sources:
            output_steps.insert(-1, "interleave")
        num_workers = choose_num_workers("auto")
        bytes_after = sum(source.num_bytes for source in self.sources)
        sources = []
        for source in self.sources:
            bytes_after -= source.num_bytes
            choose_unit_cut = self._make_cut_chooser(source, num_workers, bytes_after)
            sources.append(source.outline(choose_unit_cut, output_steps, self.recipe.unit_scale))
        compressed = self.write.codec is not None
        names = [source.name for source in self.sources]
        # To be interleaved, all records are stored once more.
        interleaved_bytes = sum(source.unpacked_bytes for source in sources) if self.joins_sources else 0
        epochs, max_epochs, too_few = self._expect_mix(sources)
        return Outline(
            output=str(self.output),
            format=self.write.suffix.removeprefix("."),
            sources=sources,
            needed_bytes=interleaved_bytes
            + sum(source.needed_bytes(self.write.format, compressed=compressed) for source in sources),
            free_bytes=count_free_bytes(self.output),
            placement=str(self.placement),
            memory=self._expect_memory(sources),
            epochs=epochs,
            max_epochs=max_epochs,
            notes=(
                *too_few,
                *(() if self.joins_sources or len(names) == 1 else (make_order_note(names),)),
                *propose_unit_bytes(sum(source.num_units for source in sources), self.recipe.unit_bytes),
            ),
        )

    def _expect_mix(self, sources: Sequence[SourceOutline]) -> tuple[dict[str, float], float, list[str]]:
        """Estimate how often `mix` takes each source, how often it may, and note which sources are too small."""
        steps: list[object] = [stage.global_step for stage in self.sources[0].stages]
        mix = next((step for step in steps if isinstance(step, MixingStep)), None)
        expected = {source.name: source.expected for source in sources if source.expected is not None}
        if mix is None or len(expected) < len(sources):
            return {}, 0.0, []
        available = {name: part.tokens if mix.by == "tokens" else part.examples for name, part in expected.items()}
        try:
            mix.plan_shares(available)
        except UsageError as error:
            too_few = [f"by these estimates the run would fail: {error.message}; {error.help}"]
        else:
            too_few = []
        return mix.expect_epochs(available), max([mix.max_epochs, *mix.epochs.values()]), too_few

    def _expect_memory(self, sources: Sequence[SourceOutline]) -> ExpectedMemory:
        num_tasks = sum(source.num_tasks for source in sources)
        num_bytes = sum(source.unpacked_bytes for source in sources)
        slice_bytes = self.recipe.slice_bytes
        # With "auto" the first slices are the largest: as large as a unit, if every worker gets one.
        largest_bytes = num_bytes // choose_num_workers("auto") if slice_bytes == "auto" else slice_bytes
        return expect_memory(
            (
                [*stage.all_steps, *(self.output_steps if stage.global_step is None else ())]
                for source in self.sources
                for stage in source.stages
            ),
            slice_bytes=min(self.layout.unit_bytes, largest_bytes),
            num_tasks=num_tasks,
            in_process=self.placement.backend in IN_PROCESS_BACKENDS,
            barrier_bytes=self._expect_barrier_bytes(num_bytes),
        )

    def _expect_barrier_bytes(self, num_bytes: int) -> int:
        """Estimate what a task of the barriers holds, where all sources together have this much text."""
        steps = (stage.global_step for source in self.sources for stage in source.stages)
        on_store = is_remote(self.work or self.output)
        needs = [step.expected_barrier_bytes(num_bytes, on_store=on_store) for step in steps if step is not None]
        return max(needs, default=0)

    def _make_cut_chooser(self, source: SourcePlan, num_workers: int, bytes_after: int) -> Callable[[int], UnitCut]:
        """Make the function that cuts units of a source as a run would do; `bytes_after` are those of later sources."""
        slice_bytes = self.recipe.slice_bytes
        return lambda in_source: choose_cut(slice_bytes, num_workers, bytes_after + in_source, source.layout)

    def __str__(self) -> str:
        return str(self.outline())

    def __repr__(self) -> str:
        return f"Plan(output={str(self.output)!r}, sources=[{join_names(map(repr, self.sources), 5)}])"

    def _repr_html_(self) -> str:
        return render_text(str(self))


@use_plan_cache()
def make_plan(
    recipe: Recipe,
    *,
    limit: int | None = None,
    backend: str = "auto",
    workers: int | Literal["auto"] = "auto",
    timeout: float | None = None,
    pin: Pin = "none",
    spooled: Mapping[str, Read] | None = None,
    tell: Callable[[str], object] = str,
    debug: bool = False,
    allowed_endpoints: Collection[str] = (),
    pool: WorkerPool | None = None,
    on_placement: Callable[[Placement, Location, int], object] | None = None,
    layout: UnitLayout = UnitLayout(),
) -> Plan:
    """Check a recipe against its files, and raise `UsageError` for anything that would fail later.

    Args:
        recipe: The recipe.
        limit: Plan only this many records of each source.
        backend: As for the run; unless it is in this process, the plan calls the user's functions in a worker too.
        workers: As for the run.
        timeout: Seconds for the user's functions in that worker, and for untrusted chat templates, which run in one
            unless the backend is "serial".
        pin: As for the run.
        spooled: How to read the records from Python, by source, where the run has written them to files. Without it
            the plan sees only the first of them.
        tell: Called with what is being done.
        debug: Do not call the user's functions again once they have raised.
        allowed_endpoints: Hosts that `storage_options` may name though the connection is not encrypted.
        pool: The pool from which the plan takes the workers for its trials.
        on_placement: Called with the place of the run, its output and the bytes of its input as soon as the files are
            listed, so that workers can start while the plan is made.
        layout: The sizes of units, slices and what barriers store.
    """
    choose_stores(recipe, allowed_endpoints)
    check_output_store(recipe.output, backend)
    if recipe.work is not None:
        check_work_place(recipe, backend)
    steps, pack, write = _take_output_steps(recipe)
    check_positions(recipe, is_packed=pack is not None)
    check_joined_lane(recipe)
    resolver = StepResolver(recipe.path("."), tell)
    reads = sample_python_records(recipe) if spooled is None else spooled
    in_worker = backend not in IN_PROCESS_BACKENDS
    row_length = pack.row_length if pack is not None else None
    drafts = [
        draft_source(
            recipe,
            name,
            resolver.resolve_all(name, (*source.steps, *steps), row_length),
            write,
            limit=limit,
            spooled=reads.get(name),
            tell=tell,
            layout=layout,
        )
        for name, source in recipe.sources.items()
    ]
    output = parse_location(recipe.path(recipe.output))
    if any(getattr(step, "keep_signatures", False) for draft in drafts for step in draft.branch.steps):
        check_kept_signatures(output, [draft.read for draft in drafts])
    placement = choose_placement(
        PlacementRequest(backend=backend, workers=workers, timeout=timeout, pin=pin, layout=layout),
        [step for draft in drafts for step in (draft.read, *draft.branch.steps)],
        [(draft.read, draft.files) for draft in drafts],
        output,
    )
    if on_placement is not None:
        on_placement(placement, output, sum(file.num_bytes for draft in drafts for file in draft.files))
    if all(draft.writes_documents for draft in drafts):
        branches = unite_sources([draft.branch for draft in drafts], write)
        drafts = [replace(draft, branch=branch) for draft, branch in zip(drafts, branches, strict=True)]
    sources = tuple(
        plan_source(
            recipe,
            draft,
            write,
            # A sample of records from Python is in this process, where no worker finds it.
            in_worker=in_worker and not (spooled is None and draft.branch.name in reads),
            runs_templates_here=backend == "serial" and are_limits_enforced(),
            timeout=timeout,
            pool=pool,
            tell=tell,
            debug=debug,
            layout=layout,
        )
        for draft in drafts
    )
    if spooled is None:
        sources = tuple(replace(source, is_sample=source.name in reads) for source in sources)
    check_sources(sources, pack, write)
    if pack is not None and is_masked(sources[0].output_schema):
        pack = pack.to_chat_form()
    if placement.backend in ("processes", "ray"):
        forget_content([TOKENIZER], needed=())  # the workers load their own
    check_writable(output)
    packages = find_used_plugins(recipe, sources)
    versions = fingerprint.find_versions() | describe_packages(packages.values())
    plugins = {name: str(package) for name, package in packages.items()}
    return Plan(
        recipe,
        output,
        sources,
        write,
        pack,
        versions,
        placement,
        is_limited=limit is not None,
        plugins=plugins,
        layout=layout,
    )


def _take_output_steps(recipe: Recipe) -> tuple[tuple[Step, ...], Pack | None, Write]:
    """Separate the last common steps, which say how to pack and to write, from the others.

    A plan knows these two by their classes, as it knows `Read`: every plan has a way to write, and `Write()` is the
    default. That they come last, they check themselves (`check_positions`).
    """
    steps = tuple(recipe.steps)
    write, pack = Write(), None
    if steps and isinstance(last := steps[-1], Write):
        write, steps = last, steps[:-1]
    if steps and isinstance(last := steps[-1], Pack):
        pack, steps = last, steps[:-1]
    return (_end_kept_stages(steps, pack) if recipe.keep_stages else steps), pack, write


def _end_kept_stages(steps: Sequence[Step], pack: Pack | None) -> tuple[Step, ...]:
    """End a stage before the last filter, which is the last step before `render` and `tokenize`, and before `pack`.

    >>> from gristmill.steps import Length, Sample, Shuffle
    >>> [step.name for step in _end_kept_stages([Length(), Sample(fraction=0.5)], Pack(row_length=8))]
    ['length', 'keep_stage', 'sample', 'keep_stage']
    >>> [step.name for step in _end_kept_stages([Length(), Shuffle()], None)]
    ['length', 'shuffle']
    """
    last = next((number for number, step in enumerate(steps) if step.name in _TOKENIZING), len(steps)) - 1
    all_steps = [*steps]
    if pack is not None and steps and not isinstance(steps[-1], GlobalStep):
        all_steps.append(KeepStage())
    if last > 0 and not any(isinstance(step, GlobalStep) for step in steps[last - 1 : last + 1]):
        all_steps.insert(last, KeepStage())
    return tuple(all_steps)
