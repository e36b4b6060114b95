"""What all tasks of a stage have in common, sent to each worker once; the options of a run; and slices as data.

A `SliceTask` is what a worker is asked to do with one slice, and a `SliceResult` what it returns. `RunOptions` say how
a plan is run: none of them changes the output.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa

from gristmill.core.books import Account  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError
from gristmill.core.recipe import runs_user_code
from gristmill.core.step import find_untrusted_template, link_counting_kernels, load_kernel
from gristmill.engine.parallel_run import Options
from gristmill.engine.worker import chunk
from gristmill.pipeline.planning.units import Span, UnitLayout
from gristmill.pipeline.stages.outputs.split_files import ScoreBlocks, SplitFile, open_stem
from gristmill.pipeline.work_folder import stored_path
from gristmill.readers.cells import CELL_BYTES
from gristmill.runtime.process import block_pandas_import, forget_content
from gristmill.shards.stored_files import StoredFile  # noqa: TC001
from gristmill.storage.locations import Count  # noqa: TC001
from gristmill.storage.stores.credentials import choose_options, list_chosen_options, look_up_options

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Self

    from gristmill.core.recipe import RunSettings
    from gristmill.core.step import LocalStep, StepKernel
    from gristmill.engine.machine import Pin
    from gristmill.engine.observer import EventLog
    from gristmill.pipeline.monitoring.views import StatusView
    from gristmill.pipeline.stages.outputs.observers import SliceObserver
    from gristmill.pipeline.stages.outputs.split_files import OutputStem
    from gristmill.pipeline.stages.outputs.unit_output import UnitOutput
    from gristmill.pipeline.stages.preparation import NodeCheck
    from gristmill.pipeline.stages.stored import UnitInput
    from gristmill.readers.read import Read
    from gristmill.shards.score_file import ScoreLayout
    from gristmill.storage.locations import Location
    from gristmill.storage.stores.credentials import StorageOptions

Monitor = Literal["terminal", "web"]
MONITORS = ("terminal", "web")
BYTES_PER_ROW = 1 << 10
"""A guess at the size of a stored row, for progress only."""
PIECE_ROWS = 64
"""A task that has killed a worker sends this many rows at a time through the steps."""


def _list_storage_options() -> dict[str, StorageOptions]:
    """List how the stores of this process are reached, so that workers need not look for it."""
    chosen = list_chosen_options()
    if not chosen:
        return {}
    return {bucket: look_up_options(bucket, options) for bucket, options in chosen.items()}


@dataclass(frozen=True, slots=True)
class SourceStage:
    """The way of one source's records through one stage: reader, steps, output."""

    read: Read
    schema: pa.Schema
    """The columns of what is read."""
    steps: tuple[LocalStep, ...]
    output: UnitOutput
    entry_account: str | None = "read"
    """The name of the account that counts the records coming in: `read`, or the barrier that they have passed."""
    score_layout: ScoreLayout | None = None
    """What is kept of that which the steps measure; None: nothing."""
    layout: UnitLayout = UnitLayout()
    """The sizes by which its files are cut."""


@dataclass(frozen=True, slots=True)
class StageContext:
    """The settings that all tasks of a stage have in common."""

    root: Location
    """The output folder."""
    work: Location
    """Where intermediate data is: the output folder, or a separate one."""
    run_id: str
    seed: int
    max_quarantine: float
    sources: Mapping[str, SourceStage]
    """By source."""
    keep_dropped: str | None
    watch: SliceObserver | None
    storage: Mapping[str, StorageOptions] = field(default_factory=_list_storage_options)
    """How the buckets of the recipe are reached."""
    needed_content: frozenset[str] = frozenset()
    """What workers keep loaded when this stage begins: the content that its steps or those of later stages load."""
    node_check: NodeCheck | None = None
    """What a worker on another machine must see there."""
    layout: UnitLayout = UnitLayout()
    """The sizes by which barriers cut what they store."""

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
        return any(find_untrusted_template(step) for stage in self.sources.values() for step in stage.steps)

    def load(self) -> LoadedContext:
        """Load the kernels of all steps. A worker does this once, and keeps them from task to task."""
        is_watched = self.watch is not None
        kernels = {
            name: [load_kernel(step, stops=is_watched) for step in stage.steps] for name, stage in self.sources.items()
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
    if chunk.is_worker_process():  # any other has chosen its own, which stay valid when its environment changes
        for bucket, options in stage.storage.items():
            choose_options(bucket, options)
    if stage.node_check is not None and chunk.is_worker_process():
        from gristmill.pipeline.stages.preparation import check_node  # noqa: PLC0415  (only on other machines)

        check_node(stage.node_check)
    if chunk.is_worker_process():
        logging.getLogger("gristmill.kernels").setLevel(logging.ERROR)  # the parent has logged all of it
        forget_content(needed=stage.needed_content)
        pa.default_memory_pool().release_unused()  # of the stage before
    if chunk.is_worker_process() and not stage.runs_user_code:
        block_pandas_import()
    return stage.load() if loads else stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of one run. Those that are left at their defaults are taken from the recipe's section `run`."""

    workers: int | Literal["auto"] = "auto"
    backend: str = "auto"
    """"auto": in this process if the input is small and nothing else stands against it, else in processes."""
    timeout: float | None = None
    """Seconds for the records of one cell (about 4 MiB of input)."""
    update: bool = False
    """Rebuild a changed dataset, reusing shards that are still valid."""
    overwrite: bool = False
    """Rebuild the dataset from scratch."""
    keep_work: bool = False
    progress: bool | None = None
    monitor: Monitor | bool = False
    """A live view of the run: on the terminal (True is the same), or in a browser."""
    monitor_port: int = 0
    """The port of the view in a browser; 0: any free one."""
    view: StatusView | None = None
    """A view that is open already, instead of `monitor`."""
    pin: bool | Pin = "none"
    """Where workers may run: anywhere, on one CPU each, or on the CPUs and in the memory of one NUMA node each."""
    ray_address: str | None = None
    """The address of a Ray cluster; None: the one that is running, or else a new one on this machine."""
    wait_for_nodes: float | None = None
    """Seconds to wait for nodes of a Ray cluster; None: 600 if it has none yet, else 60."""
    stall_timeout: float = 900.0
    """Seconds without progress after which a run says what it is waiting for."""
    stop_on_stall: bool = False
    """Whether a run without progress stops then."""
    retries: int = 2
    """How often a task that raised is run again."""
    take_over: bool = False
    """Do not wait for a run on another machine that may still use a shared output."""
    allow_endpoints: Collection[str] = ()
    """Hosts that a recipe may name as an endpoint though the connection is not encrypted."""
    events: EventLog | None = None
    watch: SliceObserver | None = None
    """Watches every step and batch; only for runs in this process."""
    layout: UnitLayout = UnitLayout()
    """The sizes by which the work is cut. The one option that does change the output: tests need many small units."""

    def __post_init__(self) -> None:
        """Raise what the engine would raise, before any planning."""
        if self.monitor is True:
            object.__setattr__(self, "monitor", "terminal")
        elif self.monitor:
            check_choice("monitor", self.monitor, MONITORS)
        Options(workers=self.workers, backend=self.backend, timeout=self.timeout, pin=self.pin)
        if not self.stall_timeout > 0:
            raise UsageError(f"stall_timeout must be a positive number of seconds, not {self.stall_timeout!r}")
        if self.ray_address is not None and self.backend != "ray":
            raise UsageError("an address of a Ray cluster needs the backend ray", help='add backend="ray"')
        if self.wait_for_nodes is not None and self.backend != "ray":
            raise UsageError("waiting for nodes of a Ray cluster needs the backend ray", help='add backend="ray"')
        if self.update and self.overwrite:
            raise UsageError(
                "update and overwrite exclude each other",
                help="update reuses what is still valid; overwrite rebuilds everything",
            )

    def fill_from(self, settings: RunSettings) -> Self:
        """Return these options with the settings of a recipe in place of defaults."""
        names = [field.name for field in fields(self) if field.name in settings.__struct_fields__]
        if self.backend != "ray":
            names.remove("wait_for_nodes")
        default = RunOptions()
        chosen = {name: getattr(settings, name) for name in names if getattr(self, name) == getattr(default, name)}
        return replace(self, **chosen)


class TrialRows(NamedTuple):
    """The rows of one cell that a trial sends through the steps, to find out which of them kills (`poison`)."""

    cell: int
    first: int
    stop: int
    piece_rows: int
    """How many rows are sent at a time."""


@dataclass(frozen=True, slots=True)
class SliceTask:
    """One slice of a unit: the cells that a worker reads in one go."""

    source: str
    inputs: tuple[UnitInput, ...]
    stem: str
    """The start of the paths of its files, below the output folder."""
    num_slices: int
    """The number of slices in its unit; what it writes depends on it."""
    excluded: frozenset[tuple[int, int, str]] = frozenset()
    """Records that end their workers: the number of the cell in this task, the row in it, and the reason."""
    trial: TrialRows | None = None
    """If this is a trial, it writes nothing."""
    num_harmless_trials: int = 0
    """How often workers died of it though no record of it kills: then few rows at a time go through the steps."""

    @property
    def size(self) -> int:
        """How much there is to do, for progress."""
        return sum(map(measure_input, self.inputs))

    def describe_place(self, num_bytes: int) -> str:
        """Describe the file that the task reads after this many bytes, and about where in it."""
        for source in self.inputs:
            if not isinstance(source, Span):
                return f"stored records of {self.source}"
            if num_bytes <= source.num_bytes:
                return f"{source.file.path}, byte {_find_start(source) + num_bytes:,}"
            num_bytes -= source.num_bytes
        return f"the end of a slice of {self.source}"


class SliceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The files and books that a slice or a unit has made; they become its receipt."""

    split_files: list[SplitFile]
    held_files: list[SplitFile] = []
    """Training records that wait to be interleaved (`mixed_lane`), as Arrow streams of what is to be written."""
    leftovers: list[SplitFile] = []
    """Documents of rows that documents of other units are to fill (`packing`)."""
    books: list[Account]
    quarantine: list[StoredFile] = []
    dropped: list[StoredFile] = []
    scores: list[ScoreBlocks] = []
    """What its filters have measured, as blocks of a score file."""
    score_histograms: dict[str, list[tuple[int, Count]]] = {}
    """For each score the bins that are not empty, with the numbers of documents in them."""

    def files(self) -> list[StoredFile]:
        """List all its files in the work folder."""
        split_files = (*self.split_files, *self.held_files, *self.leftovers)
        data_files = [file for split_file in split_files for file in split_file.files()]
        score_files = [blocks.file for blocks in self.scores]
        return [*data_files, *self.quarantine, *self.dropped, *score_files]


def _find_start(span: Span) -> int:
    """Find the byte at which a span begins; exact for lines of text, which are cut every 4 MiB."""
    if span.piece is not None:
        return span.piece.start
    num_cells = max(1, (span.stop or span.first + 1) - span.first)
    # The last cell of a file is short; cells of other formats have any size.
    is_cut_by_size = (num_cells - 1) * CELL_BYTES < span.num_bytes <= num_cells * CELL_BYTES
    return span.first * (CELL_BYTES if is_cut_by_size else span.num_bytes // num_cells)


def measure_input(source: UnitInput) -> int:
    """Measure an input for progress: bytes of a file, or a guess for rows of an earlier stage."""
    return source.num_bytes if isinstance(source, Span) else source.num_rows * BYTES_PER_ROW
