"""From a source of a recipe to its plan, in two steps.

A draft knows the files of a source (found, checked, and never the recipe's own output) and its resolved steps. Drafts
of all sources are united first, where a step may be added that gives them the same columns; then each becomes a plan,
with its steps adapted to a sample of its records.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.quantities import format_count
from gristmill.core.records import INPUT_IDS, KINDS, LITERALS, ORIGIN, RECORD, SPLIT, TEXT
from gristmill.core.step import find_keys_consumed
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.compatibility import SourceBranch, check_split_steps
from gristmill.pipeline.planning.fingerprint import name_missing_packages, read_recorded_plugins
from gristmill.pipeline.planning.python_records import find_spooled_split, remove_sample_urls
from gristmill.pipeline.planning.source_plan import (
    SourcePlan,
    TokenizingStep,
    collect_sample_steps,
    drop_other_columns,
    find_stage_schemas,
    list_source_column_notes,
    replace_steps,
    select_stored_columns,
    split_into_stages,
)
from gristmill.pipeline.planning.trials import SampleTrial, explain_no_records, try_sample
from gristmill.readers.read import list_patterns, looks_like_path
from gristmill.readers.schema import plan_schema, sample_record_types
from gristmill.readers.source import (
    choose_split_files,
    find_source_tokenizer,
    make_source_files,
    needs_scan,
    with_detected_format,
)
from gristmill.readers.tables.gristmill_dataset import refuse_text_keys, refuse_unfinished
from gristmill.shards.formats.base import has_sample_sizes
from gristmill.shards.formats.shard_format import open_encoder
from gristmill.shards.stored_files import MANIFEST
from gristmill.steps.columns import ComposeText
from gristmill.steps.sampling import FirstRecords
from gristmill.storage.codecs import find_codec
from gristmill.storage.files import compute_file_checksum
from gristmill.storage.paths import find_files, list_files
from gristmill.storage.patterns import PathPattern, expand_braces, find_fixed_folder
from gristmill.storage.urls import find_protocol, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.engine.worker_pool import WorkerPool
    from gristmill.pipeline.planning.units import UnitLayout
    from gristmill.readers.field_types import FieldType
    from gristmill.readers.read import Read
    from gristmill.shards.manifest_file import TokenizerSnapshot
    from gristmill.steps.write import Write
    from gristmill.storage.paths import FileListing, ListedFile


_RENDER = "gristmill.steps.render.render"
_FIM = "gristmill.steps.fim"


class StepResolver:
    """Resolves the steps of all sources; those that sources share are looked up once."""

    def __init__(self, folder: str, tell: Callable[[str], object]) -> None:
        self._folder = folder
        self._tell = tell
        self._resolved: list[tuple[Step, Step]] = []

    def resolve_all(self, source: str, steps: Sequence[Step], row_length: int | None) -> tuple[Step, ...]:
        """Resolve the steps of a source, after those of its chats have been linked."""
        with _add_source_note(source):
            if _FIM in sys.modules:
                from gristmill.steps.tokenize.fim_form import link_fim  # noqa: PLC0415

                steps = link_fim(steps)
            # Where the class is not imported, no step is a `render`. The modules of chats take 50 ms to import.
            if _RENDER not in sys.modules:
                return tuple(map(self._resolve, steps))
            from gristmill.steps.render.link_chats import link_chat_steps, mark_tokenized_render  # noqa: PLC0415

            return mark_tokenized_render([self._resolve(step) for step in link_chat_steps(steps, row_length)])

    def _resolve(self, step: Step) -> Step:
        resolved = next((after for before, after in self._resolved if before is step), None)
        if resolved is None:
            self._tell(f"planning: preparing step {step.name}")
            resolved = step.resolve(self._folder)
            self._resolved.append((step, resolved))
        return resolved


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of a source, and how they are read."""

    read: Read
    """The step as the recipe has it; for the folder of a dataset, with its format."""
    files: tuple[SourceFile, ...]
    tokenizer: TokenizerSnapshot | None = None
    """The tokenizer of the ids, where the source is a dataset of tokens."""
    notes: tuple[str, ...] = ()
    """Notes on files that match and are not read."""
    empty_splits: tuple[str, ...] = ()
    """Splits that have no file."""


@dataclass(frozen=True, slots=True)
class SourceDraft:
    """A source whose files and steps are known, before it is united with the others."""

    branch: SourceBranch
    inputs: Inputs
    read: Read
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...]
    """Notes for the user about the files."""

    @property
    def writes_documents(self) -> bool:
        """Whether its records are documents, not tokens."""
        has_ids = any(isinstance(step, TokenizingStep) for step in self.branch.steps)
        return self.inputs.tokenizer is None and not has_ids


def draft_source(
    recipe: Recipe,
    name: str,
    steps: Sequence[Step],
    write: Write,
    *,
    limit: int | None,
    spooled: Read | None,
    tell: Callable[[str], object],
    layout: UnitLayout,
) -> SourceDraft:
    """Find the files of a source and the columns that are read. `steps` are resolved."""
    source = recipe.sources[name]
    first: tuple[Step, ...] = () if limit is None else (FirstRecords(max_records=limit),)
    with (
        _add_source_note(name),
        name_missing_packages(partial(read_recorded_plugins, Path(recipe.path(recipe.output)))),
    ):
        refuse_own_output(recipe, {file.path.rpartition("/")[0] for step in steps for file in step.input_files()})
        tell(f"planning: looking for the files of {name}")
        inputs = find_inputs(recipe, name, spooled or source.read, is_spooled=spooled is not None)
        if inputs.read.is_text_composed and inputs.tokenizer is None:
            first = (*first, ComposeText(template=inputs.read.text))
            inputs = replace(inputs, read=msgspec.structs.replace(inputs.read, text=TEXT))
        if inputs.read.id_fields:
            if inputs.tokenizer is not None:
                raise UsageError("ids: a dataset of tokens needs no fields of ids", help="leave out ids")
            from gristmill.steps.token_ids import TokenIds  # noqa: PLC0415  (tokenizers take time to import)

            decodes = any(TEXT in (*step.columns_needed(), getattr(step, "by", None)) for step in steps)
            first = (*first, TokenIds.of(inputs.read, recipe.folder or ".", decodes=decodes))
        files = tuple(_mark_if_scanned(inputs.read, file, layout.unit_bytes) for file in inputs.files)
        steps = (*first, *steps)
        tokenizer = inputs.tokenizer
        read = _add_needed_columns(inputs.read, steps) if tokenizer is None else inputs.read
        tell(f"planning: reading a sample of {name} ({format_count(len(files), 'file')})")
        # Documents are written with all their columns, unless the recipe names or selects some. Tokens have no others.
        keeps_all = not inputs.read.columns and not any(step.traits.selects_columns for step in steps)
        if tokenizer is not None:
            refuse_text_keys(read)
        check_split_steps(files, steps)
        schema = plan_schema(
            read,
            files,
            # Whole records are needed to write them out again, and for the user's functions.
            keeps_record=not inputs.read.id_fields
            and (keeps_all or write.keeps_record or any(step.traits.needs_whole_record for step in steps)),
            has_text=not any(step.traits.makes_text for step in steps),
            is_text_optional=not any(TEXT in step.columns_needed() for step in steps),
            carries_members=keeps_all,
        )
        no_records = explain_no_records(read, files, schema)
        types: dict[str, FieldType] = {}
        has_all_keys = False
        opens_record = keeps_all and (not write.keeps_record or any(map(find_keys_consumed, steps)))
        if opens_record and RECORD in schema.names:
            types, has_all_keys = sample_record_types(read, files, has_text=TEXT in schema.names)
        if no_records is not None and not recipe.allow_empty and limit is None:
            raise no_records
        branch = SourceBranch(
            name,
            schema,
            steps,
            len(first) + len(source.steps),
            read.text if TEXT in schema.names else "",
            types,
            has_all_keys,
            bool(inputs.read.columns),
        )
        notes = (*inputs.notes, *([no_records.message] if no_records is not None else []))
        return SourceDraft(branch, inputs, read, files, notes)


def plan_source(
    recipe: Recipe,
    draft: SourceDraft,
    write: Write,
    *,
    in_worker: bool,
    runs_templates_here: bool,
    timeout: float | None,
    pool: WorkerPool | None,
    tell: Callable[[str], object],
    debug: bool,
    layout: UnitLayout,
) -> SourcePlan:
    """Split the steps of a source into stages, and adapt them to a sample of its records."""
    branch, tokenizer = draft.branch, draft.inputs.tokenizer
    with _add_source_note(branch.name):
        steps = drop_other_columns(branch.schema, branch.steps)
        stages = split_into_stages(steps)
        schemas = find_stage_schemas(branch.schema, stages)
        if INPUT_IDS not in schemas[-1].names:
            encoder = open_encoder(write.shard_format, schemas[-1])  # refuses columns that the format cannot hold
            if write.energon and not has_sample_sizes(encoder):
                raise UsageError("energon is for samples, and these records have no members", help="leave it out")
        trial = SampleTrial(
            draft.read,
            min(draft.files, key=lambda file: file.num_bytes or layout.unit_bytes),
            branch.schema,
            collect_sample_steps(stages),
            schemas[-1],
            recipe.seed,
            recipe.max_quarantine,
            runs_templates_here=runs_templates_here,
            stops=debug,
        )
        tell(f"planning: trying the steps on records of {branch.name}")
        outcome, sample_notes = try_sample(trial, in_worker=in_worker, timeout=timeout, pool=pool)
        stages = replace_steps(stages, outcome.steps)
        notes = [*draft.notes, *sample_notes]
        if tokenizer is not None:
            identity = tokenizer.identity
            notes.append(f"tokens of tokenizer {identity.name}: {identity.vocab_size:,} tokens, not tokenized again")
        notes += [note for stage in stages for step in stage.all_steps for note in step.notes()]
        notes += list_source_column_notes(stages, schemas)
        return SourcePlan(
            branch.name,
            draft.read,
            draft.files,
            branch.schema,
            stages,
            schemas,
            fingerprint.describe_steps(step for stage in stages for step in stage.all_steps),
            tuple(notes),
            dataset_tokenizer=tokenizer,
            record_bytes=outcome.record_bytes,
            stored_record_bytes=select_stored_columns(stages, outcome.column_bytes),
            empty_splits=draft.inputs.empty_splits,
            layout=layout.fit_steps(stages[0].steps),
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


def _mark_if_scanned(read: Read, file: SourceFile, unit_bytes: int) -> SourceFile:
    """Mark a plain file of more than a unit that is CSV or a JSON array: it must be scanned before it can be cut."""
    if file.num_bytes <= unit_bytes or find_codec(file.relative) is not None or not needs_scan(read, file):
        return file
    return msgspec.structs.replace(file, is_scanned=True)


def _add_needed_columns(read: Read, steps: Sequence[Step]) -> Read:
    """Add the columns that the steps need; one that an earlier step makes need not be in the files."""
    available: set[str] = {ORIGIN, TEXT, RECORD, SPLIT, KINDS, LITERALS}
    needed: list[str] = list(read.columns)
    for step in steps:
        needed += [name for name in step.columns_needed() if name not in available and name not in needed]
        available.update(step.columns_added())
    return msgspec.structs.replace(read, columns=needed)


def find_inputs(recipe: Recipe, name: str, read: Read, *, is_spooled: bool = False) -> Inputs:
    """Find the files of a source.

    Files that the run itself has spooled are in its output folder, and are identified by their content.
    """
    if is_spooled:
        splits: dict[str, list[ListedFile]] = {}
        for file in find_files(read.read):
            splits.setdefault(find_spooled_split(read, file), []).append(file)
        return Inputs(read, _add_checksums(make_source_files(name, splits)))
    patterns = list_patterns(read.read)
    local = [local_path(pattern) for pattern in patterns if find_protocol(pattern) is None]
    refuse_own_output(recipe, [recipe.path(pattern) for pattern in local])
    _refuse_matching_output(recipe, local)
    refuse_unfinished(patterns, recipe.folder)
    listing = _list_files(read, recipe)
    folders = {file.path.rpartition("/")[0] for file in listing.files if find_protocol(file.path) is None}
    folders |= {target.rpartition("/")[0] for target in listing.link_targets}
    refuse_own_output(recipe, folders)
    read = with_detected_format(read, listing.files)
    declared = _find_declared_splits(read, recipe) if isinstance(read.read, Mapping) else None
    chosen = choose_split_files(name, read, listing.files, declared=declared)
    files = _add_checksums(chosen.files) if recipe.identity == "content" else tuple(chosen.files)
    notes = (*chosen.notes, *_describe_skipped_links(listing))
    return Inputs(read, files, find_source_tokenizer(read, listing.files), notes, chosen.empty_splits)


def _find_declared_splits(read: Read, recipe: Recipe) -> dict[str, str]:
    """Find the split of each file by its path, where `read` is a mapping of splits."""
    declared: dict[str, str] = {}
    for split, paths in read.read.items():
        for file in find_files(paths, base=recipe.folder):
            if declared.setdefault(file.path, split) != split:
                raise UsageError(
                    f"{file.path} is in two splits, {declared[file.path]} and {split}",
                    help="name the files of each split more exactly",
                )
    return declared


def _list_files(read: Read, recipe: Recipe) -> FileListing:
    try:
        return list_files(list_patterns(read.read), base=recipe.folder)
    except UsageError as error:
        if isinstance(read.read, list) and not any(map(looks_like_path, read.read)):
            error.help = f'{error.help}; if these are texts and not paths, make each a dict: {{"text": ...}}'
        raise


def _describe_skipped_links(listing: FileListing) -> Iterator[str]:
    """Describe which links are left out: how many, why, and the first of them."""
    for links, why in (
        (listing.links_outside, "to folders elsewhere, which are read only where they are named"),
        (listing.duplicate_links, "to files that are read under another name"),
    ):
        if links:
            yield f"{len(links):,} symbolic links left out, {why}: {links[0]}{' …' if len(links) > 1 else ''}"


def _add_checksums(files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
    return tuple(msgspec.structs.replace(file, content=compute_file_checksum(file.path)) for file in files)


def _refuse_matching_output(recipe: Recipe, patterns: Iterable[str]) -> None:
    """Refuse patterns that would match the files of the output, before there are any."""
    if find_protocol(recipe.output) is not None:
        return
    output = os.path.abspath(recipe.path(recipe.output))  # noqa: PTH100  (links are looked at when there are files)
    for pattern in patterns:
        path = os.path.abspath(recipe.path(pattern))  # noqa: PTH100
        folder = f"{path}/" if os.path.isdir(path) else find_fixed_folder(path)  # noqa: PTH112
        if not output.startswith(folder):
            continue
        names = [*output[len(folder) :].split("/"), MANIFEST]
        rests = expand_braces(path[len(folder) :])
        if folder == f"{path}/" or any(PathPattern.below(rest).matches(names) for rest in rests):
            raise UsageError(
                f"{recipe.output} is the output of this recipe, and {pattern} matches its files",
                help="choose another output, or name the files to read more exactly",
            )


def refuse_own_output(recipe: Recipe, folders: Collection[str]) -> None:
    """Raise `UsageError` for a folder that this recipe itself writes to."""
    written = {"output": recipe.output} | ({"work": recipe.work} if recipe.work is not None else {})
    for key, written_folder in written.items():
        place = Path(os.path.realpath(recipe.path(written_folder)))
        for folder in folders:
            if Path(os.path.realpath(folder)).is_relative_to(place):
                raise UsageError(
                    f"{folder} is the {key} of this recipe, which cannot read what it writes",
                    help=f"choose another {key}, or name the files to read more exactly",
                )
