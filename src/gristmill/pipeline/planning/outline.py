"""The outline of a plan: what a run will do and need, in numbers, printed as a table, or as HTML for a notebook.

All are estimates, which shape no bytes. Sizes that only the run can know (what a compressed file unpacks to, how much
the filters leave) are estimated from above: nothing is filtered, and text unpacks to four times its size.

A worker takes what its imports take, one cell with its batches, and what each step says that it holds
(`Step.expected_bytes`), or in a barrier's tasks `GlobalStep.expected_barrier_bytes`. The stage that needs most decides,
since a worker frees what no later stage needs. The constants are fitted to peaks of workers on 200 MB of JSON lines, so
these pairs (expected and peak, MiB) show the fit and prove nothing: a length filter 138 and 138, the same to Parquet
250 and 254, a vocabulary of 50,000 tokens 226 and 227, packed 354 and 362, one of 152,000 packed 467 and 482, languages
283 and 282. Two recipes that were not fitted: 20 MB packed 245 and 264, languages to packed rows 354 and 321. Parents
took 89 to 410, where 200 to 401 are expected.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from gristmill.core.checks import join_names
from gristmill.core.quantities import count_cells, format_bytes, format_count, format_rough
from gristmill.engine.machine import count_usable_workers, read_memory_available

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gristmill.core.books import Account
    from gristmill.core.step import Step


_UNPACKED_FACTORS = {"compressed": 4.0, "parquet": 3.0}
"""For display only. Where units end is decided by constants of `units`, which shape bytes."""
_MANY_SHARDS = 20_000
_WRITTEN_FACTORS = {"compressed": 0.4, "parquet": 0.5, "webdataset": 1.3}
_WORKER_BYTES = 138 << 20
_PARENT_BYTES = 200 << 20
_WORKERS_SHARE = 0.8
"""The share of the free memory that workers may take; the engine leaves the same to others."""
_ENGINE_NOTE = "engine "
"""How notes begin that say which implementation was chosen, and why."""
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_VARIABLE = re.compile(r"\b(?:\d[\d,.]*|[a-z]{2,3})\b")
"""A number or a language; short words too, which are the same in notes of one kind."""
_LIST = re.compile(r"#(?:, #)+(?: # # more)?")
_MAX_ALIKE = 3
_MAX_SOURCES = 20
_TABLE_WIDTH = 76
"""A table fits a terminal of 80 columns, below a branch of the tree."""
_HEADS = ("step", "records in", "created", "out", "dropped", "quarantined", "reasons")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRecords:
    """An estimate of what the local steps make of a source, as if all its records were like those of the sample."""

    records: int
    kept_share: float
    """The share of the sample's records of which something is left."""
    examples: int
    """What is left of the records: `render` may make several examples of one."""
    tokens: int
    cpu_seconds: float


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
    expected: ExpectedRecords | None = None
    """None: the sample has no records, or only the run knows how many there are."""
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
class ExpectedMemory:
    """The number of workers of a run, what limits it, and the memory that all of them will need."""

    num_workers: int
    limited_by: str
    """`cores`, `quota`, `memory` or `tasks`; `process` if the run stays in this process."""
    worker_bytes: int
    parent_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.num_workers * self.worker_bytes + self.parent_bytes

    def __str__(self) -> str:
        if not self.num_workers:
            return f"memory: about {format_bytes(self.total_bytes)}, all in this process"
        workers = f"{format_count(self.num_workers, 'worker')} (limited by {self.limited_by})"
        each = f"{format_bytes(self.worker_bytes)} a worker, {format_bytes(self.parent_bytes)} the parent"
        return f"{workers}; memory: about {format_bytes(self.total_bytes)} at most, {each}"


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
    epochs: dict[str, float] = field(default_factory=dict)
    """How often `mix` takes each source, by the estimate of the sample; empty without `mix`."""
    max_epochs: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it, as far as can be known."""
        return self.needed_bytes <= self.free_bytes

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, details: bool = False) -> str:
        """Format the plan as a tree with a table of the sources. `details` has all sources, and notes on engines."""
        lines = [f"plan for {self.output}"]
        branches = list(_format_stages(self.sources))
        empty = sum(source.num_empty_files for source in self.sources)
        work = (
            f"{format_count(sum(source.num_tasks for source in self.sources), 'task')}, "
            f"{format_count(sum(source.num_units for source in self.sources), 'unit')}"
        )
        table = _format_table(self, details=details)
        if any(source.is_sample for source in self.sources):
            table.append("records from Python: only the first were read")
        if empty:
            table.append(f"{format_count(empty, 'file')} of them are empty")
        if any(source.expected is not None for source in self.sources):
            table.append(
                f"estimates, from up to 100 records of each source; min: minutes of the "
                f"steps, without reading, barriers and writing ({work} in the first stage)"
            )
        if self.epochs:
            table.append(f"mix takes: epochs of each source, of at most {self.max_epochs:g}")
        branches.append(table)
        branches += [[f"note: {note}"] for note in (*group_notes(self.sources, details=details), *self.notes)]
        for branch in branches:
            lines += _indent_branch(branch, is_last=False)
        lines += _indent_branch(self._format_output_lines(), is_last=True)
        return "\n".join(lines)

    def _format_output_lines(self) -> list[str]:
        space = f"up to {format_bytes(self.needed_bytes)} needed while it runs"
        if self.free_bytes < sys.maxsize:  # what a store is said to have
            space += f", {format_bytes(self.free_bytes)} free"
        lines = [f"output: {self.format} in {self.output}", f"├── runs {self.placement}"]
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


def group_notes(sources: Sequence[SourceOutline], *, details: bool) -> list[str]:
    """List the notes of all sources, each with the sources that it is about. `details` has those on engines too.

    Of more than three that differ only in numbers or languages, those with the largest numbers are listed.
    """
    names: dict[str, list[str]] = {}
    for source in sources:
        for note in source.notes:
            if details or not note.startswith(_ENGINE_NOTE):
                names.setdefault(note, []).append(source.name)
    alike: dict[str, list[str]] = {}
    for note in names:
        alike.setdefault(_LIST.sub("#", _VARIABLE.sub("#", note)), []).append(note)
    lines = []
    for notes in alike.values():
        shown = notes
        if len(notes) > _MAX_ALIKE and not details:
            shown = sorted(notes, key=_list_numbers, reverse=True)[:_MAX_ALIKE]
        lines += [f"{_name_sources(names[note], len(sources))}{note}" for note in shown]
        others = sum(len(names[note]) for note in notes) - sum(len(names[note]) for note in shown)
        if others:
            lines.append(f"similar for {format_count(others, 'other source')} (-v lists them)")
    return lines


def _list_numbers(note: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _NUMBER.findall(note)]


def _name_sources(names: Sequence[str], num_sources: int) -> str:
    return "" if len(names) == num_sources else f"{join_names(names, _MAX_ALIKE)}: "


def _format_stages(sources: Sequence[SourceOutline]) -> Iterator[list[str]]:
    """Format the steps: once, and again only for sources that have others. Each is a line, and what is below it."""
    groups: dict[tuple[tuple[str, ...], ...], list[SourceOutline]] = {}
    for source in sources:
        groups.setdefault(tuple(map(tuple, source.stages)), []).append(source)
    for stages, members in groups.items():
        where = _name_sources([source.name for source in members], len(sources))
        for number, steps in enumerate(stages, 1):
            lines = [f"{where}stage {number}: {' → '.join(steps)}"]
            if number < len(stages):
                sizes: Counter[str] = Counter()
                for source in members:
                    sizes.update(source.stored_columns[number - 1] if source.stored_columns else {})
                columns = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.most_common())
                total = format_bytes(sum(source.stored_bytes(number - 1) for source in members))
                lines.append(f"  on disk until stage {number + 1}: about {total}{f' ({columns})' if columns else ''}")
            yield lines
    columns_of: dict[str, list[str]] = {}
    for source in sources:
        described = ", ".join(f"{name} {kind}" for name, kind in source.columns.items())
        columns_of.setdefault(described, []).append(source.name)
    for described, members_of in columns_of.items():
        yield [f"{_name_sources(members_of, len(sources))}columns: {described}"]
    for source in sources:
        if source.num_unpacked_files:
            files = format_count(source.num_unpacked_files, "large compressed file")
            yield [f"unpack: {files} of {source.name}, about {format_bytes(source.pieces_bytes)}"]


def _format_table(outline: Outline, *, details: bool) -> list[str]:
    """Format a table with a line for each source: the 20 largest, unless `details` asks for all."""
    sources = list(outline.sources)
    rows = [(source.name, [source]) for source in sources]
    if len(sources) > _MAX_SOURCES and not details:
        ordered = sorted(sources, key=lambda source: -source.num_bytes)
        rows = [(source.name, [source]) for source in ordered[:_MAX_SOURCES]]
        rows.append((f"{len(sources) - _MAX_SOURCES} others", ordered[_MAX_SOURCES:]))
    if len(sources) > 1:
        rows.append(("total", sources))
    formats = {source.format for source in sources}
    heads = ["source", "files", "format", "size", "records", "kept", "tokens", "min", "mix takes"]
    cells = [[name, *_format_row(members, outline)] for name, members in rows]
    if len(formats) == 1:
        heads[0] = f"source ({formats.pop()})"
        cells = [[*row[:2], "", *row[3:]] for row in cells]
    used = [number for number in range(len(heads)) if number == 0 or any(row[number] for row in cells)]
    table = [[row[number] for number in used] for row in (heads, *cells)]
    widths = [max(map(count_cells, column)) for column in zip(*table, strict=True)]
    widths[0] = min(widths[0], max(count_cells(table[0][0]), _TABLE_WIDTH - sum(2 + width for width in widths[1:])))
    lines = []
    for row in table:
        name = row[0]
        if count_cells(name) > widths[0]:  # a name is not cut: its numbers are in the next line
            lines.append(name)
            name = ""
        first = name + " " * (widths[0] - count_cells(name))
        lines.append("  ".join([first, *(f"{cell:>{size}}" for cell, size in zip(row[1:], widths[1:], strict=True))]))
    return [line.rstrip() for line in lines]


def _format_row(sources: Sequence[SourceOutline], outline: Outline) -> list[str]:
    is_known = not any(source.is_sample for source in sources)
    files = f"{sum(source.num_files for source in sources):,}" if is_known else "Python"
    size = format_bytes(sum(source.num_bytes for source in sources)) if is_known else ""
    formats = {source.format for source in sources}
    first = [files, formats.pop() if len(formats) == 1 else "", size]
    expected = [source.expected for source in sources if source.expected is not None]
    if len(expected) < len(sources):
        return [*first, *[""] * 5]
    records, tokens = (sum(getattr(part, name) for part in expected) for name in ("records", "tokens"))
    num_kept = sum(part.records * part.kept_share for part in expected)
    minutes = sum(part.cpu_seconds for part in expected) / 60 / max(1, outline.memory.num_workers)
    epochs = outline.epochs.get(sources[0].name) if len(sources) == 1 else None
    return [
        *first,
        format_rough(records),
        f"{num_kept / records:.0%}" if records else "",
        format_rough(tokens) if tokens else "",
        "<0.1" if minutes < 0.1 else f"{minutes:,.1f}",
        ""
        if epochs is None
        else f"{f'{epochs:.2f}x' if epochs < 1000 else '>999x'}{' ok' if epochs <= outline.max_epochs else ' NO'}",
    ]


def _indent_branch(lines: Sequence[str], *, is_last: bool) -> Iterator[str]:
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


def expect_memory(
    stages: Iterable[Sequence[Step]], *, slice_bytes: int, num_tasks: int, in_process: bool, barrier_bytes: int = 0
) -> ExpectedMemory:
    """Estimate the memory of a run.

    Args:
        stages: The steps of each stage of each source, with those of the output in the last ones.
        slice_bytes: The size of its largest task.
        num_tasks: The number of tasks of its first stage.
        in_process: Whether it has no worker processes.
        barrier_bytes: The most that a task of a barrier holds.
    """
    stages = list(stages)
    needs = [sum(step.expected_bytes(slice_bytes) for step in steps) for steps in stages]
    worker_bytes = _WORKER_BYTES + max([*needs, barrier_bytes])
    if in_process:
        return ExpectedMemory(num_workers=0, limited_by="process", worker_bytes=0, parent_bytes=worker_bytes)
    # The plan loads what its trial needs, and proves tokenizers; it packs and writes nothing.
    loaded = max((sum(step.expected_bytes(0) for step in steps if step.loaded_content) for steps in stages), default=0)
    num_cores, limited_by = count_usable_workers()
    limits = {
        limited_by: num_cores,
        "memory": max(1, int(_WORKERS_SHARE * read_memory_available()) // worker_bytes),
        "tasks": max(1, num_tasks),
    }
    smallest = min(limits, key=lambda name: limits[name])
    return ExpectedMemory(
        num_workers=limits[smallest],
        limited_by=smallest,
        worker_bytes=worker_bytes,
        parent_bytes=_PARENT_BYTES + loaded,
    )


def render_text(text: str) -> str:
    """Render text as it is.

    >>> render_text("<b>")
    '<pre>&lt;b&gt;</pre>'
    """
    return f"<pre>{escape(text)}</pre>"


def render_result(title: str, books: Mapping[str, Sequence[Account]]) -> str:
    """Render a title, and the books of each source as a table; tables are folded if there are several."""
    tables = [
        f"<details{' open' if len(books) == 1 else ''}><summary>{escape(source)}</summary>"
        f"{_render_table(accounts)}</details>"
        for source, accounts in books.items()
    ]
    return f"<div><p>{escape(title)}</p>{''.join(tables)}</div>"


def _render_table(accounts: Sequence[Account]) -> str:
    rows = [_render_row("th", _HEADS), *(_render_row("td", _list_cells(account)) for account in accounts)]
    return f"<table>{''.join(rows)}</table>"


def _list_cells(account: Account) -> list[str]:
    numbers = (
        account.records_in,
        account.created,
        account.records_out,
        account.dropped.total(),
        account.quarantined.total(),
    )
    reasons = ", ".join(
        f"{reason} {count:,}" for reason, count in (account.dropped + account.quarantined).most_common()
    )
    return [account.step, *(f"{number:,}" for number in numbers), reasons]


def _render_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
