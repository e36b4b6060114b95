"""The plan of one source: its files, its stages, and what can be estimated from them.

A stage is one pass over the records: the local steps up to the next barrier, or to the output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gristmill.core.errors import UsageError
from gristmill.core.json_values import is_json, reason_for_json
from gristmill.core.quantities import format_bytes, format_count
from gristmill.core.recipe import step_parameters
from gristmill.core.records import INPUT_IDS, ORIGIN, RECORD, SOURCE, SPLIT, SourceFile
from gristmill.core.step import GlobalStep, LimitingStep, LocalStep
from gristmill.pipeline.planning.outline import SourceOutline, estimate_unpacked_bytes
from gristmill.pipeline.planning.units import Span, UnitLayout, cut_into_slices, make_units
from gristmill.readers.formats import RECORD_FORMATS, file_format
from gristmill.readers.source import open_reader
from gristmill.shards.token_rows import list_token_names
from gristmill.steps.column_names import list_value_columns, require_column
from gristmill.steps.columns import Select
from gristmill.storage.codecs import find_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from gristmill.core.step import Step
    from gristmill.pipeline.planning.units import UnitCut
    from gristmill.readers.read import Read
    from gristmill.shards.manifest_file import TokenizerSnapshot


@runtime_checkable
class TokenizingStep(Protocol):
    """A step that makes token ids. The dataset carries its tokenizer."""

    def make_snapshot(self) -> TokenizerSnapshot:
        """Make the copy of the tokenizer that goes into the dataset."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Local steps that run in one pass, and the global step at whose barrier they end (None: the output)."""

    steps: tuple[LocalStep, ...]
    global_step: GlobalStep | None

    @property
    def all_steps(self) -> tuple[Step, ...]:
        return self.steps if self.global_step is None else (*self.steps, self.global_step)


@dataclass(frozen=True, slots=True, repr=False)
class SourcePlan:
    """The plan of one source: its files, its stages, and the columns after each of them."""

    name: str
    read: Read
    files: tuple[SourceFile, ...]
    schema: pa.Schema
    stages: tuple[Stage, ...]
    stage_schemas: tuple[pa.Schema, ...]
    """The columns after each stage's local steps."""
    described_steps: list[Any] | None
    """The steps as a fingerprint describes them; None: the code of a function cannot be known."""
    notes: tuple[str, ...] = ()
    """Notes for the user before the run."""
    is_sample: bool = False
    """Whether only the first records of a Python object were read."""
    dataset_tokenizer: TokenizerSnapshot | None = None
    """The tokenizer of the ids, where the source is a dataset of tokens."""
    record_bytes: float = 0.0
    """Mean size of a record in the files, from a sample; 0: not known."""
    stored_record_bytes: tuple[dict[str, float], ...] = ()
    """Mean bytes that each barrier stores of a record, by column."""
    empty_splits: tuple[str, ...] = ()
    """Splits of a dataset that have no file."""
    layout: UnitLayout = UnitLayout()
    """The sizes by which its files are cut."""

    def __repr__(self) -> str:
        """Leave out the files, of which there may be a million."""
        return f"SourcePlan({self.name!r}, {format_count(len(self.files), 'file')}, {format_bytes(self.num_bytes)})"

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def read_parameters(self) -> dict[str, Any]:
        """How the files are read, for fingerprints. Which files these are is part of their identities."""
        parameters = step_parameters(self.read).items()  # the content of a tokenizer is part of the step `token_ids`
        code = {name: value for name, value in parameters if name not in ("read", "tokenizer")}
        # The files do not name the tokenizer: with another padding token the same shards become other rows.
        return code if self.dataset_tokenizer is None else code | {"tokenizer": self.dataset_tokenizer.content}

    @property
    def output_schema(self) -> pa.Schema:
        return self.stage_schemas[-1]

    @property
    def tokenizer(self) -> TokenizerSnapshot | None:
        """The tokenizer that makes or made its tokens, if it has any."""
        steps = (step for stage in self.stages for step in stage.steps)
        return next(
            (step.make_snapshot() for step in steps if isinstance(step, TokenizingStep)), self.dataset_tokenizer
        )

    @property
    def limiting_step(self) -> LimitingStep | None:
        """The step at the end of its first stage, if that needs only the first records."""
        step: object = self.stages[0].global_step
        return step if isinstance(step, LimitingStep) else None

    @property
    def is_limited(self) -> bool:
        return self.limiting_step is not None

    def must_unpack(self, file: SourceFile) -> bool:
        """Tell whether a file is first unpacked into pieces, or scanned for them where it is not compressed."""
        if file.num_bytes < min(self.layout.unpack_bytes, self.layout.unit_bytes) and not file.is_scanned:
            return False  # nothing else is asked of the files of a large folder
        is_compressed = find_codec(file.relative) is not None
        if file_format(file.relative, self.read.format) == "webdataset":
            # A compressed tar is unpacked as a whole, which is too much for the first records alone.
            if is_compressed:
                return file.num_bytes >= self.layout.unpack_bytes and not self.is_limited
            return file.num_bytes > self.layout.unit_bytes
        return file.is_scanned or (
            file.num_bytes >= self.layout.unpack_bytes
            and is_compressed
            and file_format(file.relative, self.read.format) in (*RECORD_FORMATS, "text")
        )

    def cell_sizes(self, file: SourceFile) -> Sequence[int] | None:
        """Find the sizes of a file's cells; None if it can only be read from start to end."""
        reader = open_reader(self.read, file, self.schema, cell_bytes=self.layout.cell_bytes)
        return reader.cell_sizes() if reader.can_cut else None

    def outline(
        self, choose_unit_cut: Callable[[int], UnitCut], output_steps: Sequence[str], unit_scale: int
    ) -> SourceOutline:
        """Outline what the run will do; `choose_unit_cut` is told the bytes after a unit."""
        sizes = {file.id: self._estimate_unpacked_bytes(file) for file in self.files}
        to_unpack = [file for file in self.files if self.must_unpack(file) and find_codec(file.relative) is not None]
        num_units, num_tasks = self._count_tasks(choose_unit_cut, unit_scale)
        stages = [
            [*(step.name for step in stage.all_steps), *(output_steps if stage.global_step is None else ())]
            for stage in self.stages
        ]
        return SourceOutline(
            name=self.name,
            format=file_format(self.files[0].relative, self.read.format),
            num_files=len(self.files),
            num_empty_files=sum(not file.num_bytes for file in self.files),
            num_bytes=self.num_bytes,
            unpacked_bytes=sum(sizes.values()),
            pieces_bytes=sum(sizes[file.id] for file in to_unpack),
            num_unpacked_files=len(to_unpack),
            stages=[["read", *stages[0]], *stages[1:]],
            num_units=num_units,
            num_tasks=num_tasks,
            columns=_describe_columns(self.output_schema),
            stored_columns=self._estimate_stored_columns(sum(sizes.values())),
            stored_copies=[
                stage.global_step.traits.disk_copies for stage in self.stages if stage.global_step is not None
            ],
            notes=self.notes,
            is_sample=self.is_sample,
        )

    def _count_tasks(self, choose_unit_cut: Callable[[int], UnitCut], unit_scale: int) -> tuple[int, int]:
        """Count the units and the tasks of its first stage."""
        units = list(make_units(self.files, self.cell_sizes, self._estimate_pieces, self.layout, unit_scale))
        num_tasks = 0
        bytes_after = sum(unit.num_bytes for unit in units)
        for unit in units:
            bytes_after -= unit.num_bytes
            num_tasks += len(
                cut_into_slices(unit, choose_unit_cut(bytes_after), self._estimate_cell_sizes, self.layout.cell_bytes)
            )
        return len(units), num_tasks

    def _estimate_stored_columns(self, unpacked: int) -> list[dict[str, int]]:
        """Estimate what each barrier stores, by column, if nothing is filtered."""
        num_records = unpacked / self.record_bytes if self.record_bytes else 0
        return [
            {name: round(num_records * size) for name, size in stored.items()} for stored in self.stored_record_bytes
        ]

    def _estimate_unpacked_bytes(self, file: SourceFile) -> int:
        kind = file_format(file.relative, self.read.format)
        return estimate_unpacked_bytes(file.num_bytes, kind, compressed=find_codec(file.relative) is not None)

    def _estimate_pieces(self, file: SourceFile) -> list[Span] | None:
        """Estimate the pieces of a file that is not unpacked yet; None where it will not be."""
        if not self.must_unpack(file):
            return None
        unit_bytes, num_cells = self.layout.unit_bytes, self.layout.cells_per_unit
        count = -(-self._estimate_unpacked_bytes(file) // unit_bytes)
        return [Span(file, number * num_cells, (number + 1) * num_cells, unit_bytes) for number in range(count)]

    def _estimate_cell_sizes(self, file: SourceFile) -> Sequence[int] | None:
        """Estimate the cells of the pieces that a file will become; find those of a file that is read as it is."""
        pieces = self._estimate_pieces(file)
        num_cells = self.layout.cells_per_unit
        return (
            self.cell_sizes(file)
            if pieces is None
            else [self.layout.unit_bytes // num_cells] * (len(pieces) * num_cells)
        )


def _describe_columns(schema: pa.Schema) -> dict[str, str]:
    """Describe the columns that are written by their types; for JSON text with the reason for it."""
    columns = {field.name: str(field.type) for field in list_value_columns(schema)}
    for field in schema:
        if is_json(field):
            columns[field.name] = f"json ({reason_for_json(field)})" if reason_for_json(field) else "json"
        elif field.name == RECORD:
            columns[RECORD] = "json (the whole record, written as it was read)"
    return columns


def split_into_stages(steps: Sequence[Step]) -> tuple[Stage, ...]:
    """Split the steps after each global step."""
    stages: list[Stage] = []
    local: list[LocalStep] = []
    for step in steps:
        if isinstance(step, GlobalStep):
            stages.append(Stage(tuple(local), step))
            local = []
        elif isinstance(step, LocalStep):
            local.append(step)
        else:
            raise UsageError(f"step {step.name} cannot be used here")
    return (*stages, Stage(tuple(local), None))


def find_stage_schemas(schema: pa.Schema, stages: Sequence[Stage]) -> tuple[pa.Schema, ...]:
    """Find the columns after each stage's local steps, starting from those that are read."""
    schemas = []
    for stage in stages:
        for step in stage.steps:
            for column in step.columns_needed():
                require_column(step.name, column, schema)
            schema = step.output_schema(schema)
        schemas.append(schema)
        if stage.global_step is not None:
            schema = stage.global_step.output_schema(schema)
    return tuple(schemas)


def drop_other_columns(schema: pa.Schema, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Add a step that drops what rows of tokens do not hold, such as columns that were read to filter by.

    A column that the user's own function has made is refused: whoever wrote it expects it in the rows.
    """
    final = find_stage_schemas(schema, split_into_stages(steps))[-1]
    if INPUT_IDS not in final.names:
        return tuple(steps)
    token_names = list_token_names(final)
    others = [name for name in final.names if name not in (*token_names, ORIGIN, SPLIT)]
    if not others:
        return tuple(steps)
    for step in steps:
        own_columns = [name for name in step.columns_added() if name in others and step.traits.may_add_keys]
        if own_columns:
            raise UsageError(
                f"{step.name}: rows of tokens cannot hold its {own_columns[0]} ({final.field(own_columns[0]).type})",
                help="return a list with a number for each token, or leave the column out",
            )
    return (*steps, Select(columns=token_names))


def list_source_column_notes(stages: Sequence[Stage], schemas: Sequence[pa.Schema]) -> list[str]:
    """Note where records already have a column with the name that tells the source in a mixed lane."""
    joins = [stage.global_step is not None and stage.global_step.joins_sources for stage in stages]
    if True not in joins or SOURCE not in schemas[joins.index(True)].names:
        return []
    return [f'records have their own column "{SOURCE}", which is kept; origins tell which source a record is from']


def collect_sample_steps(stages: Sequence[Stage]) -> tuple[LocalStep, ...]:
    """Collect the steps that sample records go through: local steps, and stand-ins for barriers that change columns."""
    return tuple(step for stage in stages for step in _list_sample_steps(stage))


def replace_steps(stages: Sequence[Stage], sample_steps: Sequence[LocalStep]) -> tuple[Stage, ...]:
    """Replace the local steps of the stages by those that `collect_sample_steps` gave, adapted to the sample."""
    remaining = iter(sample_steps)
    adapted = [[next(remaining) for _ in _list_sample_steps(stage)] for stage in stages]
    return tuple(
        replace(stage, steps=tuple(steps[: len(stage.steps)])) for stage, steps in zip(stages, adapted, strict=True)
    )


def select_stored_columns(
    stages: Sequence[Stage], sizes: Sequence[Mapping[str, float]]
) -> tuple[dict[str, float], ...]:
    """Select the sizes of the columns that each barrier stores.

    `sizes` are those before the first and after each of the sample steps.
    """
    stage_sizes, index = [], 0
    for stage in stages[:-1] if sizes else ():
        stage_sizes.append(dict(sizes[index + len(stage.steps)]))
        index += len(_list_sample_steps(stage))
    return tuple(stage_sizes)


def _list_sample_steps(stage: Stage) -> tuple[LocalStep, ...]:
    """List the local steps of a stage, and the stand-in for its barrier if that changes the columns."""
    sample_step = stage.global_step.sample_step() if stage.global_step is not None else None
    return stage.steps if sample_step is None else (*stage.steps, sample_step)
