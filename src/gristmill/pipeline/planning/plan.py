"""The plan: everything that can be known and checked before any work starts.

Cost: one listing of the inputs, the metadata of large files, and a few records of each source.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.json_text import is_json, reason_for_json
from gristmill.core.names import join_names
from gristmill.core.recipe import step_parameters
from gristmill.core.records import INPUT_IDS, LITERALS, ORIGIN, RECORD, SPLIT, TEXT, TRAINED
from gristmill.core.step import GlobalStep, LocalStep
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.chat_steps import (
    has_opened_chats,
    has_rendered_text,
    link_chat_steps,
    mark_tokenized_render,
)
from gristmill.pipeline.planning.compatibility import (
    check_joined_lane,
    check_mix,
    check_preferred_sources,
    check_sources,
    has_joining_step,
    make_order_note,
)
from gristmill.pipeline.planning.inputs import find_inputs, refuse_own_output
from gristmill.pipeline.planning.notebook import render_text
from gristmill.pipeline.planning.outline import (
    Outline,
    SourceOutline,
    estimate_unpacked_bytes,
    format_bytes,
    format_count,
)
from gristmill.pipeline.planning.python_records import remove_sample_urls, sample_python_records
from gristmill.pipeline.planning.sample import SampleTrial, explain_no_records, try_sample
from gristmill.pipeline.planning.split_stages import (
    collect_sample_steps,
    find_stage_schemas,
    list_source_column_notes,
    replace_steps,
    select_stored_columns,
    split_into_stages,
)
from gristmill.pipeline.planning.splits import check_split_steps
from gristmill.pipeline.planning.unite_sources import SourceBranch, unite_sources
from gristmill.pipeline.planning.units import CELLS_PER_UNIT, UNIT_BYTES, Span, cut_into_slices, make_units
from gristmill.pipeline.work_folder import check_writable
from gristmill.shards.formats.shard_format import open_encoder
from gristmill.shards.token_rows import is_masked, shard_schema
from gristmill.steps.deduplicate.deduplicate import DeduplicateAgainst
from gristmill.steps.limit import FirstRecords, Limit
from gristmill.steps.pack.pack import Pack
from gristmill.steps.read import (
    RECORD_FORMATS,
    file_format,
    needs_scan,
    open_reader,
    plan_schema,
    refuse_text_keys,
    sample_record_types,
)
from gristmill.steps.records.columns import value_columns
from gristmill.steps.select import Select
from gristmill.steps.tokenize.resolved_tokenize import ResolvedTokenize
from gristmill.steps.write import Write
from gristmill.storage.commit import count_free_bytes
from gristmill.storage.compression import codec_of
from gristmill.text.tokenizers import clear_engine_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.pipeline.planning.inputs import Inputs
    from gristmill.pipeline.planning.split_stages import Stage
    from gristmill.shards.carried_tokenizer import CarriedTokenizer
    from gristmill.steps.read import Read

# A compressed file from this size on is unpacked first, so that all workers can share it.
UNPACK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, repr=False)
class SourcePlan:
    """One source: its files, its way through the steps, and the columns at each point."""

    name: str
    read: Read
    files: tuple[SourceFile, ...]
    schema: pa.Schema
    stages: tuple[Stage, ...]
    stage_schemas: tuple[pa.Schema, ...]
    """After each leg's local steps."""
    described_steps: list[Any] | None
    """The steps' fingerprint; None: the code of a function cannot be known."""
    notes: tuple[str, ...] = ()
    """What the user should know before the run."""
    is_sample: bool = False
    """Only the first records of a Python object were looked at."""
    dataset_tokenizer: CarriedTokenizer | None = None
    """What made the ids of a dataset of tokens that is read."""
    record_bytes: float = 0.0
    """Of a sample of its records, as they are in the files; 0: not known."""
    stored_record_bytes: tuple[dict[str, float], ...] = ()
    """What each barrier stores of such a record, by column."""
    empty_splits: tuple[str, ...] = ()
    """Those of a dataset that have no file."""

    def __repr__(self) -> str:
        """Without its files, of which there may be a million."""
        return f"SourcePlan({self.name!r}, {format_count(len(self.files), 'file')}, {format_bytes(self.num_bytes)})"

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def read_parameters(self) -> dict[str, Any]:
        """How the files are read; which files these are is said by their identities."""
        code = {name: value for name, value in step_parameters(self.read).items() if name != "read"}
        # The files do not say it: with another padding token the same shards make other rows.
        return code if self.dataset_tokenizer is None else code | {"tokenizer": self.dataset_tokenizer.content}

    @property
    def output_schema(self) -> pa.Schema:
        return self.stage_schemas[-1]

    @property
    def tokenizer(self) -> CarriedTokenizer | None:
        """What makes or made its tokens, if it has any."""
        steps = (step for leg in self.stages for step in leg.steps)
        return next(
            (step.make_snapshot() for step in steps if isinstance(step, ResolvedTokenize)), self.dataset_tokenizer
        )

    def must_unpack(self, file: SourceFile) -> bool:
        """Whether a large compressed file is unpacked into pieces first, or a plain one looked through for them."""
        is_compressed = codec_of(file.relative) is not None
        if file_format(file.relative, self.read.format) == "webdataset":
            # A compressed tar is unpacked as a whole, which is too much for the first records alone.
            is_limited = isinstance(self.stages[0].barrier, Limit)
            return file.num_bytes >= UNPACK_BYTES and not is_limited if is_compressed else file.num_bytes > UNIT_BYTES
        return file.is_scanned or (
            file.num_bytes >= UNPACK_BYTES
            and is_compressed
            and file_format(file.relative, self.read.format) in (*RECORD_FORMATS, "text")
        )

    def cell_sizes(self, file: SourceFile) -> Sequence[int] | None:
        """The sizes of a file's cells, None if it can only be read from start to end."""
        reader = open_reader(self.read, file, self.schema)
        return reader.cell_sizes() if reader.can_cut else None

    def outline(self, slice_bytes: int, output_steps: Sequence[str]) -> SourceOutline:
        """Its part of the run in numbers."""
        sizes = {file.id: self._estimate_unpacked_bytes(file) for file in self.files}
        to_unpack = [file for file in self.files if self.must_unpack(file) and codec_of(file.relative) is not None]
        units = list(make_units(self.files, self.cell_sizes, self._estimate_pieces))
        stages = [
            [*(step.name for step in leg.all_steps), *(output_steps if leg.barrier is None else ())]
            for leg in self.stages
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
            num_units=len(units),
            num_tasks=sum(len(cut_into_slices(unit, slice_bytes, self.cell_sizes)) for unit in units),
            columns=_describe_columns(self.output_schema),
            stored_columns=self._estimate_stored_columns(sum(sizes.values())),
            notes=self.notes,
            is_sample=self.is_sample,
        )

    def _estimate_stored_columns(self, unpacked: int) -> list[dict[str, int]]:
        """What each barrier stores, by column, if nothing is filtered."""
        num_records = unpacked / self.record_bytes if self.record_bytes else 0
        return [
            {name: round(num_records * size) for name, size in stored.items()} for stored in self.stored_record_bytes
        ]

    def _estimate_unpacked_bytes(self, file: SourceFile) -> int:
        kind = file_format(file.relative, self.read.format)
        return estimate_unpacked_bytes(file.num_bytes, kind, compressed=codec_of(file.relative) is not None)

    def _estimate_pieces(self, file: SourceFile) -> list[Span] | None:
        """What a file that is yet to be unpacked will probably become."""
        if not self.must_unpack(file):
            return None
        count = -(-self._estimate_unpacked_bytes(file) // UNIT_BYTES)
        return [
            Span(file, number * CELLS_PER_UNIT, (number + 1) * CELLS_PER_UNIT, UNIT_BYTES) for number in range(count)
        ]


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A recipe that has been checked. `print(plan)` shows all of it, a notebook too."""

    recipe: Recipe
    output: Path
    sources: tuple[SourcePlan, ...]
    write: Write
    pack: Pack | None
    versions: dict[str, str]
    is_limited: bool = False
    """Whether only the first records of each source are wanted, for a quick look."""

    @property
    def output_steps(self) -> tuple[Step, ...]:
        """What is done to records when they are written."""
        return (self.write,) if self.pack is None else (self.pack, self.write)

    @property
    def joins_sources(self) -> bool:
        """Whether what is for training is written as one lane."""
        return has_joining_step(self.recipe.steps)

    @property
    def tokenizer(self) -> CarriedTokenizer | None:
        """What makes or made the tokens of all sources."""
        return self.sources[0].tokenizer

    @property
    def pad_id(self) -> int:
        """What fills rows up."""
        return self.tokenizer.pad_id if self.tokenizer is not None else 0

    @property
    def shard_schema(self) -> pa.Schema:
        """The columns of the shards."""
        row_length = self.pack.row_length if self.pack is not None else None
        return open_encoder(self.write.shard_format, shard_schema(self.sources[0].output_schema, row_length)).schema

    @property
    def fingerprint(self) -> str | None:
        """Of all that shapes the output; None where a function's code cannot be known."""
        sources = []
        for source in self.sources:
            if source.described_steps is None:
                return None
            files = [file.identity for file in source.files]
            sources.append([source.name, source.read_parameters, files, source.described_steps])
        write = fingerprint.describe_steps(self.output_steps)
        recipe = self.recipe
        return fingerprint.of(recipe.seed, sources, write, self.versions, recipe.mixture, recipe.keep_dropped)

    def outline(self) -> Outline:
        """What the run will do, in numbers."""
        output_steps = [step.name for step in self.output_steps]
        if self.joins_sources:
            output_steps.insert(-1, "interleave")
        sources = [source.outline(self.recipe.slice_bytes, output_steps) for source in self.sources]
        compressed = self.write.codec is not None
        names = [source.name for source in self.sources]
        # To be interleaved, all records are stored once more.
        interleaved_bytes = sum(source.unpacked_bytes for source in sources) if self.joins_sources else 0
        return Outline(
            output=str(self.output),
            format=self.write.suffix.removeprefix("."),
            sources=sources,
            needed_bytes=interleaved_bytes
            + sum(source.needed_bytes(self.write.format, compressed=compressed) for source in sources),
            free_bytes=count_free_bytes(self.output),
            notes=() if self.joins_sources or len(names) == 1 else (make_order_note(names),),
        )

    def __str__(self) -> str:
        return str(self.outline())

    def __repr__(self) -> str:
        return f"Plan(output={str(self.output)!r}, sources=[{join_names(map(repr, self.sources), 5)}])"

    def _repr_html_(self) -> str:
        return render_text(str(self))


def _describe_columns(schema: pa.Schema) -> dict[str, str]:
    """The columns that are written, with their types; JSON text with the reason for it."""
    columns = {each.name: str(each.type) for each in value_columns(schema)}
    for each in schema:
        if is_json(each):
            columns[each.name] = f"json ({reason_for_json(each)})" if reason_for_json(each) else "json"
        elif each.name == RECORD:
            columns[RECORD] = "json (the whole record, written as it was read)"
    return columns


def make_plan(
    recipe: Recipe,
    *,
    limit: int | None = None,
    backend: str = "processes",
    timeout: float | None = None,
    spooled: Mapping[str, Read] | None = None,
    tell: Callable[[str], object] = str,
    debug: bool = False,
) -> Plan:
    """Check a recipe against the files that it names. Raises `UsageError` for whatever would fail later.

    Where the run will use processes, so does the plan for the user's functions; `timeout` holds for them there, and for
    chat templates, which are tried in a worker in any case. Records from Python are read from where
    a run has `spooled` them; without that, only the first of them. `tell` is called with what is being done. With
    `debug` the user's functions are called no more once they have raised.
    """
    if "://" in recipe.output:
        raise UsageError(f"the output must be a local folder, not {recipe.output}", help="copy it there afterwards")
    check_preferred_sources(recipe)
    steps, pack, write = _take_output_steps(recipe)
    check_mix(recipe, pack)
    check_joined_lane(recipe)
    resolved: list[tuple[Step, Step]] = []  # steps that all sources share are looked up once
    reads = sample_python_records(recipe) if spooled is None else spooled
    apart = backend == "processes"
    drafts = [
        _draft_source(
            recipe, name, link_chat_steps((*source.steps, *steps), pack), resolved, write, limit, reads.get(name), tell
        )
        for name, source in recipe.sources.items()
    ]
    if all(draft.writes_documents for draft in drafts):
        united = unite_sources([draft.strand for draft in drafts], write)
        drafts = [replace(draft, strand=strand) for draft, strand in zip(drafts, united, strict=True)]
    # The first records from Python are in this process, where no worker finds them.
    sources = tuple(
        _plan_source(
            recipe,
            draft,
            write,
            apart=apart and not (spooled is None and draft.strand.name in reads),
            timeout=timeout,
            tell=tell,
            debug=debug,
        )
        for draft in drafts
    )
    if spooled is None:
        sources = tuple(replace(source, is_sample=source.name in reads) for source in sources)
    check_sources(sources, pack, write)
    if pack is not None and is_masked(sources[0].output_schema):
        pack = pack.to_chat_form()
    if apart:
        clear_engine_cache()  # the workers load their own
    output = Path(recipe.path(recipe.output))
    check_writable(output)
    return Plan(recipe, output, sources, write, pack, fingerprint.find_versions(), is_limited=limit is not None)


def _take_output_steps(recipe: Recipe) -> tuple[tuple[Step, ...], Pack | None, Write]:
    """The common steps without the last ones, if these say how to pack and to write."""
    steps = list(recipe.steps)
    write = steps.pop() if steps and isinstance(steps[-1], Write) else Write()
    pack = steps.pop() if steps and isinstance(steps[-1], Pack) else None
    for place, step in recipe.all_steps():
        if isinstance(step, Write) and step is not write:
            raise UsageError(f"{place}: write must be the last of the common steps")
        if isinstance(step, Pack) and step is not pack:
            raise UsageError(f"{place}: pack must be the last of the common steps; only write may follow it")
    return tuple(steps), pack, write  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _SourceDraft:
    """A source whose files are known, before it is united with the others."""

    strand: SourceBranch
    inputs: Inputs
    read: Read
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...]
    """What the user should know of the files."""

    @property
    def writes_documents(self) -> bool:
        has_ids = any(isinstance(step, ResolvedTokenize) for step in self.strand.steps)
        return self.inputs.tokenizer is None and not has_ids


def _draft_source(
    recipe: Recipe,
    name: str,
    steps: Sequence[Step],
    resolved: list[tuple[Step, Step]],
    write: Write,
    limit: int | None,
    spooled: Read | None,
    tell: Callable[[str], object],
) -> _SourceDraft:
    source = recipe.sources[name]
    first = () if limit is None else (FirstRecords(max_records=limit),)
    with _add_source_note(name):
        steps = (*first, *mark_tokenized_render([_resolve_once(step, recipe, resolved, tell) for step in steps]))
        against = [step for step in steps if isinstance(step, DeduplicateAgainst)]
        refuse_own_output(recipe, {file.path.rpartition("/")[0] for step in against for file in step.files})
        tell(f"planning: looking for the files of {name}")
        inputs = find_inputs(recipe, name, spooled or source.read, is_spooled=spooled is not None)
        files, tokenizer = tuple(_mark_if_scanned(inputs.read, file) for file in inputs.files), inputs.tokenizer
        read = _add_needed_columns(inputs.read, steps) if tokenizer is None else inputs.read
        tell(f"planning: reading a sample of {name} ({format_count(len(files), 'file')})")
        keeps_all = _has_all_columns(inputs.read, steps)
        schema = plan_schema(
            read,
            files,
            keeps_record=keeps_all or _has_whole_records(steps, write),
            has_text=not has_rendered_text(steps),
            carries_members=keeps_all,
        )
        if tokenizer is not None:
            refuse_text_keys(read)
        check_split_steps(files, steps)
        no_records = explain_no_records(read, files, schema)
        if no_records is not None and not recipe.allow_empty and limit is None:
            raise no_records
        opens_record = RECORD in schema.names and keeps_all and (not write.keeps_record or has_opened_chats(steps))
        has_text = TEXT in schema.names
        types, sees_all = sample_record_types(read, files, has_text=has_text) if opens_record else ({}, False)
        names_columns = bool(inputs.read.columns)
        num_own = len(first) + len(source.steps)
        text = read.text if has_text else ""
        strand = SourceBranch(name, schema, steps, num_own, text, types, sees_all, names_columns)
        notes = (*inputs.notes, *([no_records.message] if no_records is not None else []))
        return _SourceDraft(strand, inputs, read, files, notes)


def _plan_source(
    recipe: Recipe,
    draft: _SourceDraft,
    write: Write,
    *,
    apart: bool,
    timeout: float | None,
    tell: Callable[[str], object],
    debug: bool,
) -> SourcePlan:
    strand, read = draft.strand, draft.read
    files, tokenizer, schema = draft.files, draft.inputs.tokenizer, strand.schema
    with _add_source_note(strand.name):
        legs = split_into_stages(strand.steps)
        schemas = find_stage_schemas(schema, legs)
        if INPUT_IDS not in schemas[-1].names:
            open_encoder(write.shard_format, schemas[-1])
        file = min(files, key=lambda file: file.num_bytes or UNIT_BYTES)
        tried = SampleTrial(
            read, file, schema, collect_sample_steps(legs), schemas[-1], recipe.seed, recipe.max_quarantine, stops=debug
        )
        tell(f"planning: trying the steps on records of {strand.name}")
        outcome, notes = try_sample(tried, apart=apart, timeout=timeout)
        legs = replace_steps(legs, outcome.steps)
        code = fingerprint.describe_steps(step for leg in legs for step in leg.all_steps)
        notes = [*draft.notes, *notes]
        if tokenizer is not None:
            made_by = tokenizer.identity
            notes.append(f"tokens of tokenizer {made_by.name}: {made_by.vocab_size:,} tokens, not tokenized again")
        notes += [note for leg in legs for step in leg.steps for note in step.notes()]
        notes += list_source_column_notes(legs, schemas)
        return SourcePlan(
            strand.name,
            read,
            files,
            schema,
            legs,
            schemas,
            code,
            tuple(notes),
            dataset_tokenizer=tokenizer,
            record_bytes=outcome.record_bytes,
            stored_record_bytes=select_stored_columns(legs, outcome.column_bytes),
            empty_splits=draft.inputs.empty_splits,
        )


@contextmanager
def _add_source_note(name: str) -> Iterator[None]:
    try:
        yield
    except GristmillError as error:
        error.message = remove_sample_urls(error.message)
        error.args = (error.message,)
        error.add_note(f"in source {name}")
        raise


def _mark_if_scanned(read: Read, file: SourceFile) -> SourceFile:
    """A plain file of more than a unit with whether it is CSV or a JSON array, which are not cut like others."""
    if file.num_bytes <= UNIT_BYTES or codec_of(file.relative) is not None or not needs_scan(read, file):
        return file
    return msgspec.structs.replace(file, is_scanned=True)


def _resolve_once(step: Step, recipe: Recipe, known: list[tuple[Step, Step]], tell: Callable[[str], object]) -> Step:
    found = next((result for given, result in known if given is step), None)
    if found is None:
        tell(f"planning: preparing step {step.name}")
        found = step.resolve(recipe.path("."))
        known.append((step, found))
    return found


def _add_needed_columns(read: Read, steps: Sequence[Step]) -> Read:
    """The columns that the steps need are read too; one that an earlier step makes need not be in the files."""
    made: set[str] = {ORIGIN, TEXT, RECORD, SPLIT, TRAINED, LITERALS}
    needed: list[str] = list(read.columns)
    for step in steps:
        if isinstance(step, (LocalStep, GlobalStep)):
            needed += [name for name in step.columns_needed() if name not in made and name not in needed]
        made.update(getattr(step, "columns", {}) if not isinstance(step, Write) else ())
        made.update(step.columns_added() if isinstance(step, LocalStep) else ())
    return msgspec.structs.replace(read, columns=needed)


def _has_all_columns(read: Read, steps: Sequence[Step]) -> bool:
    """Documents are written with all their columns, unless the recipe names or selects them. Tokens have none."""
    return not read.columns and not any(isinstance(step, (ResolvedTokenize, Select)) for step in steps)


def _has_whole_records(steps: Sequence[Step], write: Write) -> bool:
    """Whole records are needed to write them out again, and for the user's own functions."""
    return write.keeps_record or any(isinstance(step, LocalStep) and step.needs_whole_record for step in steps)
