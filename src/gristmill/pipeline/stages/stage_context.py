"""The context of a stage: everything that its tasks have in common, sent to each worker once."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from gristmill.core.recipe import runs_user_code
from gristmill.core.step import link_counting_kernels
from gristmill.engine.worker import nesting
from gristmill.pipeline.stages.outputs.split_files import open_stem
from gristmill.pipeline.work_folder import stored_path
from gristmill.runtime.loaded_content import forget_content
from gristmill.runtime.pandas_free import block_pandas_import
from gristmill.storage.stores.options import choose_options, list_chosen_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from gristmill.core.records import QuarantinedRecord, StepResult
    from gristmill.core.step import LocalStep, StepKernel
    from gristmill.pipeline.stages.node_check import NodeCheck
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.pipeline.stages.outputs.unit_output import UnitOutput
    from gristmill.shards.score_file import ScoreLayout
    from gristmill.steps.read import Read
    from gristmill.storage.locations import Location
    from gristmill.storage.stores.options import StorageOptions


def _list_storage_options() -> dict[str, StorageOptions]:
    """List how the stores of this process are reached, so that workers need not look for it."""
    chosen = list_chosen_options()
    if not chosen:
        return {}
    from gristmill.storage.stores.credentials import look_up_options  # noqa: PLC0415  (most runs use no store)

    return {bucket: look_up_options(bucket, options) for bucket, options in chosen.items()}


@dataclass(frozen=True, slots=True)
class SourceStage:
    """The way of one source's records through one stage."""

    read: Read
    schema: pa.Schema
    """The columns of what is read."""
    steps: tuple[LocalStep, ...]
    output: UnitOutput
    entry_account: str | None = "read"
    """The name of the account that counts the records coming in: `read`, or the barrier that they have passed."""
    score_layout: ScoreLayout | None = None
    """What is kept of that which the steps measure; None: nothing."""


class StepWatch(Protocol):
    """Watches records go through the steps: debug mode."""

    def after_read(self, source: str, batch: pa.RecordBatch, bad: list[QuarantinedRecord]) -> None:
        """Called when a cell has been read."""

    def after_step(self, source: str, step: LocalStep, before: pa.RecordBatch, applied: StepResult) -> None:
        """Called when a step has been applied to a batch."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """The settings that all tasks of a stage have in common."""

    root: Location
    """The output folder."""
    work: Location
    """Where intermediate data is: the output folder, or a folder of its own."""
    run_id: str
    seed: int
    max_quarantine: float
    sources: Mapping[str, SourceStage]
    """By source."""
    keep_dropped: str | None
    watch: StepWatch | None
    storage: Mapping[str, StorageOptions] = field(default_factory=_list_storage_options)
    """How the buckets of the recipe are reached."""
    needed_content: frozenset[str] = frozenset()
    """What workers keep loaded when this stage begins: the content that its steps or those of later stages load."""
    node_check: NodeCheck | None = None
    """What a worker on another machine must see there."""

    @classmethod
    def extend(cls, context: StageContext, **settings: Any) -> Self:
        """Make a context from that of a stage, or of an earlier kind of task, and what is known since."""
        names = {each.name for each in fields(cls)} & {each.name for each in fields(context)}
        return cls(**{name: getattr(context, name) for name in names} | settings)

    def place_sink(self, source: str, stem: OutputStem) -> OutputStem:
        """Return where the records of a source are written, given where its other files are."""
        if not self.sources[source].output.is_intermediate:
            return stem
        return open_stem(self.work, stored_path(stem.name), self.run_id, syncs=stem.syncs)

    @property
    def runs_user_code(self) -> bool:
        return any(runs_user_code(source.steps) for source in self.sources.values())

    def without_steps(self) -> Self:
        """Return the context for tasks that run no steps: their workers then need not import code of the user."""
        return replace(
            self, sources={name: replace(source, steps=(), score_layout=None) for name, source in self.sources.items()}
        )

    @property
    def runs_untrusted_templates(self) -> bool:
        return any(step.runs_untrusted_code for stage in self.sources.values() for step in stage.steps)

    def load(self) -> LoadedContext:
        """Load the kernels of all steps. A worker does this once, and keeps them from task to task."""
        is_watched = self.watch is not None
        kernels = {
            name: [step.load_stopping() if is_watched else step.load() for step in stage.steps]
            for name, stage in self.sources.items()
        }
        for source_kernels in kernels.values():
            link_counting_kernels(source_kernels)
        return LoadedContext(self, kernels)


@dataclass(frozen=True, slots=True)
class LoadedContext:
    """The context of a stage in a worker that runs its steps."""

    context: StageContext
    kernels: Mapping[str, Sequence[StepKernel]]
    """By source, one kernel for each step."""


def set_up_worker(stage: StageContext, *, loads: bool) -> StageContext | LoadedContext:
    """Prepare a worker for its first task; `loads` if it will run the steps."""
    if nesting.is_worker_process():  # any other has chosen its own, which stay valid when its environment changes
        for bucket, options in stage.storage.items():
            choose_options(bucket, options)
    if stage.node_check is not None and nesting.is_worker_process():
        from gristmill.pipeline.stages.node_check import check_node  # noqa: PLC0415  (only on other machines)

        check_node(stage.node_check)
    if nesting.is_worker_process():
        logging.getLogger("gristmill.kernels").setLevel(logging.ERROR)  # the parent has logged all of it
        forget_content(needed=stage.needed_content)
        pa.default_memory_pool().release_unused()  # of the stage before
    if nesting.is_worker_process() and not stage.runs_user_code:
        block_pandas_import()
    return stage.load() if loads else stage
