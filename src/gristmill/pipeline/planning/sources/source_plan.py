"""The plan of one source: its files, its stages, and what can be estimated from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gristmill.core.json_text import is_json, reason_for_json
from gristmill.core.quantities import format_bytes, format_count
from gristmill.core.recipe import step_parameters
from gristmill.core.records import RECORD, TEXT, SourceFile
from gristmill.pipeline.planning.outline import SourceOutline, estimate_unpacked_bytes
from gristmill.pipeline.planning.packed_list import PackedList
from gristmill.pipeline.planning.units import CELLS_PER_UNIT, UNIT_BYTES, Span, cut_into_slices, make_units
from gristmill.steps.read import RECORD_FORMATS, file_format, open_reader
from gristmill.steps.records.columns import list_value_columns
from gristmill.storage.codecs.compression import find_codec
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from gristmill.pipeline.planning.split_stages import Stage
    from gristmill.pipeline.planning.units import UnitCut
    from gristmill.shards.tokenizer_snapshot import TokenizerSnapshot
    from gristmill.steps.read import Read

# A compressed file from this size on is unpacked first, so that all workers can share it.
UNPACK_BYTES = 16 << 20
_SIZE_BYTES = 8.0
"""What a barrier stores of a text or a record that is read again: its size."""


@runtime_checkable
class TokenizingStep(Protocol):
    """A step that makes token ids. The dataset carries its tokenizer."""

    def make_snapshot(self) -> TokenizerSnapshot:
        """Make the copy of the tokenizer that goes into the dataset."""


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

    def __repr__(self) -> str:
        """Leave out the files, of which there may be a million."""
        return f"SourcePlan({self.name!r}, {format_count(len(self.files), 'file')}, {format_bytes(self.num_bytes)})"

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def read_parameters(self) -> dict[str, Any]:
        """How the files are read, for fingerprints. Which files these are is part of their identities."""
        code = {name: value for name, value in step_parameters(self.read).items() if name != "read"}
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
    def is_limited(self) -> bool:
        """Whether its first stage ends at a step that needs only the first records."""
        global_step = self.stages[0].global_step
        return global_step is not None and global_step.needs_first_only

    @property
    def reads_again(self) -> bool:
        """Whether its first stage stores no content: what comes to the barrier are lines of local files as they are."""
        first = self.stages[0]
        return (
            first.global_step is not None
            and first.global_step.reads_again
            and not first.steps
            and {TEXT, RECORD} <= {*self.schema.names}
            and self.read.format in (None, "jsonl")
            and all(map(self._holds_plain_lines, self.files))
        )

    def _holds_plain_lines(self, file: SourceFile) -> bool:
        from gristmill.steps.read.json_files.json_lines import is_from_python  # noqa: PLC0415  (few recipes ask)

        return (
            file_format(file.path, self.read.format) == "jsonl"
            and find_codec(file.relative) is None
            and find_protocol(file.path) is None
            and not is_from_python(file.path)
        )

    def must_unpack(self, file: SourceFile) -> bool:
        """Tell whether a file is first unpacked into pieces, or scanned for them where it is not compressed."""
        if file.num_bytes < min(UNPACK_BYTES, UNIT_BYTES) and not file.is_scanned:
            return False  # nothing else is asked of the files of a large folder
        is_compressed = find_codec(file.relative) is not None
        if file_format(file.relative, self.read.format) == "webdataset":
            # A compressed tar is unpacked as a whole, which is too much for the first records alone.
            if is_compressed:
                return file.num_bytes >= UNPACK_BYTES and not self.is_limited
            return file.num_bytes > UNIT_BYTES
        return file.is_scanned or (
            file.num_bytes >= UNPACK_BYTES
            and is_compressed
            and file_format(file.relative, self.read.format) in (*RECORD_FORMATS, "text")
        )

    def cell_sizes(self, file: SourceFile) -> Sequence[int] | None:
        """Find the sizes of a file's cells; None if it can only be read from start to end."""
        reader = open_reader(self.read, file, self.schema)
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
            stored_copies=[stage.global_step.disk_copies for stage in self.stages if stage.global_step is not None],
            notes=self.notes,
            is_sample=self.is_sample,
        )

    def _count_tasks(self, choose_unit_cut: Callable[[int], UnitCut], unit_scale: int) -> tuple[int, int]:
        """Count the units and the tasks of its first stage."""
        units = PackedList(
            make_units(self.files, self.cell_sizes, self._estimate_pieces, unit_scale), shared_types=(SourceFile,)
        )
        num_tasks = 0
        bytes_after = sum(unit.num_bytes for unit in units)
        for unit in units:
            bytes_after -= unit.num_bytes
            num_tasks += len(cut_into_slices(unit, choose_unit_cut(bytes_after), self._estimate_cell_sizes))
        return len(units), num_tasks

    def _estimate_stored_columns(self, unpacked: int) -> list[dict[str, int]]:
        """Estimate what each barrier stores, by column, if nothing is filtered."""
        num_records = unpacked / self.record_bytes if self.record_bytes else 0
        stored_bytes = list(self.stored_record_bytes)
        if stored_bytes and self.reads_again:
            stored_bytes[0] = stored_bytes[0] | dict.fromkeys((TEXT, RECORD), _SIZE_BYTES)
        return [{name: round(num_records * size) for name, size in stored.items()} for stored in stored_bytes]

    def _estimate_unpacked_bytes(self, file: SourceFile) -> int:
        kind = file_format(file.relative, self.read.format)
        return estimate_unpacked_bytes(file.num_bytes, kind, compressed=find_codec(file.relative) is not None)

    def _estimate_pieces(self, file: SourceFile) -> list[Span] | None:
        """Estimate the pieces of a file that is not unpacked yet; None where it will not be."""
        if not self.must_unpack(file):
            return None
        count = -(-self._estimate_unpacked_bytes(file) // UNIT_BYTES)
        return [
            Span(file, number * CELLS_PER_UNIT, (number + 1) * CELLS_PER_UNIT, UNIT_BYTES) for number in range(count)
        ]

    def _estimate_cell_sizes(self, file: SourceFile) -> Sequence[int] | None:
        """Estimate the cells of the pieces that a file will become; find those of a file that is read as it is."""
        pieces = self._estimate_pieces(file)
        return (
            self.cell_sizes(file) if pieces is None else [UNIT_BYTES // CELLS_PER_UNIT] * (len(pieces) * CELLS_PER_UNIT)
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
