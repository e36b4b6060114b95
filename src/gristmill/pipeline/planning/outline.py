"""The outline of a plan: what a run will do, in numbers, printed as a tree.

Sizes that only the run can know (what a compressed file unpacks to, how much the filters leave) are estimated from
above: nothing is filtered, and text unpacks to four times its size.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gristmill.core.quantities import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gristmill.pipeline.planning.expected_memory import ExpectedMemory

_UNPACKED_FACTORS = {"compressed": 4.0, "parquet": 3.0}
"""For display only. Where units end is decided by constants of `units`, which shape bytes."""
_MANY_SHARDS = 20_000
_WRITTEN_FACTORS = {"compressed": 0.4, "parquet": 0.5, "webdataset": 1.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutline:
    """The work that a run will do for one source, in numbers."""

    name: str
    format: str
    num_files: int
    num_empty_files: int
    """How many of the files are empty."""
    num_bytes: int
    unpacked_bytes: int
    """Estimated size of all files when unpacked."""
    pieces_bytes: int
    """Estimated size of the compressed files that are unpacked first."""
    num_unpacked_files: int
    stages: list[list[str]]
    """The steps of each stage; all stages but the last end with a global step."""
    num_units: int
    """How many shards it becomes, if nothing is filtered or split."""
    num_tasks: int
    """Number of tasks of the first stage."""
    columns: dict[str, str]
    """The columns that are written, with their types."""
    stored_columns: list[dict[str, int]] = field(default_factory=list)
    """Estimated bytes in the work folder at the end of each stage but the last, by column."""
    stored_copies: list[int]
    """How often the barrier at the end of each stage but the last keeps the records on disk."""
    notes: tuple[str, ...] = ()
    is_sample: bool = False
    """Whether all numbers are of the first records of a Python object, which only the run reads to its end."""

    def needed_bytes(self, write_format: str, *, compressed: bool) -> int:
        """Estimate the disk space at the end of the run, before the work folder is removed."""
        written_bytes = estimate_written_bytes(self.unpacked_bytes, write_format, compressed=compressed)
        if write_format == "parquet" or self.num_tasks > self.num_units:
            written_bytes *= 2  # the outputs of tasks are on disk until they have been joined
        return written_bytes + sum(map(self.stored_bytes, range(len(self.stages) - 1))) + self.pieces_bytes

    def stored_bytes(self, stage: int) -> int:
        """Estimate the disk space at the barrier that ends a stage."""
        columns = self.stored_columns[stage].values() if self.stored_columns else ()
        return self.stored_copies[stage] * max(self.unpacked_bytes, sum(columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The work that a run will do for all sources, in numbers."""

    output: str
    format: str
    sources: list[SourceOutline]
    needed_bytes: int
    """Disk space while it runs, estimated from above."""
    free_bytes: int
    placement: str = "in worker processes"
    """Where the run takes place, and why."""
    memory: ExpectedMemory
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it, as far as can be known."""
        return self.needed_bytes <= self.free_bytes

    def __str__(self) -> str:
        lines = [f"plan for {self.output}"]
        common = _list_common_notes([source.notes for source in self.sources])
        for source in self.sources:
            lines += _indent_branch(_format_source(source, common), is_last=False)
        lines += _indent_branch(self._format_output_lines(common), is_last=True)
        return "\n".join(lines)

    def _format_output_lines(self, common: Sequence[str]) -> list[str]:
        space = f"up to {format_bytes(self.needed_bytes)} needed while it runs"
        if self.free_bytes < sys.maxsize:  # what a store is said to have
            space += f", {format_bytes(self.free_bytes)} free"
        notes = [f"├── note: {note}" for note in (*common, *self.notes)]
        lines = [f"output: {self.format} in {self.output}", *notes, f"├── runs {self.placement}"]
        lines += [f"├── {self.memory}", f"└── disk: {space}"]
        if not self.fits:
            lines[-1] += ": THIS MAY NOT FIT"
        return lines


def estimate_unpacked_bytes(num_bytes: int, format: str, *, compressed: bool) -> int:
    """Estimate from its size how much a file holds when unpacked."""
    return round(num_bytes * _UNPACKED_FACTORS.get("compressed" if compressed else format, 1.0))


def estimate_written_bytes(num_bytes: int, format: str, *, compressed: bool) -> int:
    """Estimate the size on disk of unpacked text in a format."""
    kind = "compressed" if compressed and format in ("jsonl", "json", "csv") else format
    return round(num_bytes * _WRITTEN_FACTORS.get(kind, 1.0))


def _list_common_notes(notes_by_source: Sequence[Sequence[str]]) -> list[str]:
    """List the notes that all of several sources have: they are printed once."""
    first, *others = notes_by_source or [()]
    return [note for note in first if others and all(note in notes for notes in others)]


def _format_source(source: SourceOutline, common: Sequence[str]) -> Iterator[str]:
    if source.is_sample:
        yield f"source {source.name}: records from Python (only the first were read), {source.format}"
    else:
        empty = f" ({source.num_empty_files:,} of them empty)" if source.num_empty_files else ""
        files = f"{format_count(source.num_files, 'file')}{empty}"
        yield f"source {source.name}: {files}, {format_bytes(source.num_bytes)}, {source.format}"
    columns = ", ".join(f"{name} {kind}" for name, kind in source.columns.items())
    yield f"├── columns: {columns}"
    yield from (f"├── note: {note}" for note in source.notes if note not in common)
    if source.num_unpacked_files:
        files = format_count(source.num_unpacked_files, "large compressed file")
        yield f"├── unpack: {files}, about {format_bytes(source.pieces_bytes)}"
    about = "about " if source.num_unpacked_files else ""
    work = f"{about}{format_count(source.num_tasks, 'task')}, {format_count(source.num_units, 'unit')}"
    for number, steps in enumerate(source.stages, 1):
        is_last = number == len(source.stages)
        note = f"  ({work})" if number == 1 else "  (from the work folder)"
        yield f"{'└──' if is_last else '├──'} stage {number}: {' → '.join(steps)}{note}"
        if not is_last and source.stored_columns:
            column_sizes = source.stored_columns[number - 1]
            sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in column_sizes.items())
            stored_bytes = format_bytes(source.stored_bytes(number - 1))
            yield f"│   └── on disk until stage {number + 1}: about {stored_bytes} ({sizes})"


def _indent_branch(lines: Iterator[str] | Sequence[str], *, is_last: bool) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0:
            yield f"{'└── ' if is_last else '├── '}{line}"
        else:
            yield f"{'    ' if is_last else '│   '}{line}"


def propose_unit_bytes(num_units: int, unit_bytes: int) -> list[str]:
    """Propose larger shards where there would be very many; nothing where there are few.

    >>> propose_unit_bytes(19_000, 64 << 20)
    []
    >>> propose_unit_bytes(300_000, 64 << 20)
    ['about 300,000 shards in each split; with unit_bytes: 1024MiB there would be about 18,750']
    """
    scale = 1
    while num_units > scale * _MANY_SHARDS:
        scale *= 2
    if scale == 1:
        return []
    proposal, fewer = f"{scale * unit_bytes >> 20}MiB", -(-num_units // scale)
    return [f"about {num_units:,} shards in each split; with unit_bytes: {proposal} there would be about {fewer:,}"]
