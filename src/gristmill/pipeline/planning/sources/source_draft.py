"""From a source of a recipe to its plan, in two steps.

A draft knows the files of a source and its resolved steps. Drafts of all sources are united first, where a step may be
added that gives them the same columns; then each becomes a plan, with its steps adapted to a sample of its records.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import GristmillError, UsageError
from gristmill.core.quantities import format_count
from gristmill.core.records import INPUT_IDS, LITERALS, ORIGIN, RECORD, SPLIT, TEXT, TRAINED
from gristmill.pipeline.planning import fingerprint
from gristmill.pipeline.planning.compatibility import check_split_steps
from gristmill.pipeline.planning.remembered.columns import ColumnRequest, sample_columns
from gristmill.pipeline.planning.remembered.keys import hash_files
from gristmill.pipeline.planning.remembered.trials import try_remembered_sample
from gristmill.pipeline.planning.sample import SampleTrial
from gristmill.pipeline.planning.sources.inputs import find_inputs, refuse_own_output
from gristmill.pipeline.planning.sources.python_records import remove_sample_urls
from gristmill.pipeline.planning.sources.source_plan import SourcePlan, TokenizingStep
from gristmill.pipeline.planning.sources.unite_sources import SourceBranch
from gristmill.pipeline.planning.sources.used_plugins import name_missing_packages, read_recorded_plugins
from gristmill.pipeline.planning.split_stages import (
    collect_sample_steps,
    find_stage_schemas,
    list_source_column_notes,
    replace_steps,
    select_stored_columns,
    split_into_stages,
)
from gristmill.pipeline.planning.units import UNIT_BYTES
from gristmill.shards.formats.base import has_sample_sizes
from gristmill.shards.formats.shard_format import open_encoder
from gristmill.steps.limit import FirstRecords
from gristmill.steps.read import needs_scan
from gristmill.storage.codecs.compression import find_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.engine.pool.worker_pool import WorkerPool
    from gristmill.pipeline.planning.sources.inputs import Inputs
    from gristmill.steps.read import Read
    from gristmill.steps.write import Write


_RENDER = "gristmill.steps.render.render"


class StepResolver:
    """Resolves the steps of all sources; those that sources share are looked up once."""

    def __init__(self, folder: str, tell: Callable[[str], object]) -> None:
        self._folder = folder
        self._tell = tell
        self._resolved: list[tuple[Step, Step]] = []

    def resolve_all(self, source: str, steps: Sequence[Step], row_length: int | None) -> tuple[Step, ...]:
        """Resolve the steps of a source, after those of its chats have been linked."""
        with _add_source_note(source):
            # Where nobody has imported the class, no step is a `render`. The modules of chats take 50 ms to import.
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
class SourceDraft:
    """A source whose files and steps are known, before it is united with the others."""

    branch: SourceBranch
    inputs: Inputs
    read: Read
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...]
    """Notes for the user about the files."""
    files_hash: str | None
    """What a sample of the files is remembered by; None: it is not."""

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
) -> SourceDraft:
    """Find the files of a source and the columns that are read. `steps` are resolved."""
    source = recipe.sources[name]
    first = () if limit is None else (FirstRecords(max_records=limit),)
    with (
        _add_source_note(name),
        name_missing_packages(partial(read_recorded_plugins, Path(recipe.path(recipe.output)))),
    ):
        steps = (*first, *steps)
        refuse_own_output(recipe, {file.path.rpartition("/")[0] for step in steps for file in step.input_files()})
        tell(f"planning: looking for the files of {name}")
        inputs = find_inputs(recipe, name, spooled or source.read, is_spooled=spooled is not None)
        files, tokenizer = tuple(_mark_if_scanned(inputs.read, file) for file in inputs.files), inputs.tokenizer
        read = _add_needed_columns(inputs.read, steps) if tokenizer is None else inputs.read
        tell(f"planning: reading a sample of {name} ({format_count(len(files), 'file')})")
        # Documents are written with all their columns, unless the recipe names or selects some. Tokens have no others.
        keeps_all = not inputs.read.columns and not any(step.selects_columns for step in steps)
        if tokenizer is not None:
            from gristmill.steps.read import refuse_text_keys  # noqa: PLC0415  (few sources are datasets of tokens)

            refuse_text_keys(read)
        check_split_steps(files, steps)
        files_hash = hash_files(read, files)
        columns = sample_columns(
            read,
            files,
            ColumnRequest(
                # Whole records are needed to write them out again, and for the user's functions.
                keeps_record=keeps_all or write.keeps_record or any(step.needs_whole_record for step in steps),
                has_text=not any(step.makes_text for step in steps),
                is_text_optional=not any(TEXT in step.columns_needed() for step in steps),
                carries_members=keeps_all,
                opens_record=keeps_all and (not write.keeps_record or any(step.keys_consumed() for step in steps)),
            ),
            files_hash,
        )
        schema, no_records = columns.schema, columns.no_records
        if no_records is not None and not recipe.allow_empty and limit is None:
            raise no_records
        branch = SourceBranch(
            name,
            schema,
            steps,
            len(first) + len(source.steps),
            read.text if TEXT in schema.names else "",
            columns.types,
            columns.has_all_keys,
            bool(inputs.read.columns),
        )
        notes = (*inputs.notes, *([no_records.message] if no_records is not None else []))
        return SourceDraft(branch, inputs, read, files, notes, files_hash)


def plan_source(
    recipe: Recipe,
    draft: SourceDraft,
    write: Write,
    *,
    apart: bool,
    timeout: float | None,
    pool: WorkerPool | None,
    tell: Callable[[str], object],
    debug: bool,
) -> SourcePlan:
    """Split the steps of a source into stages, and adapt them to a sample of its records."""
    branch, tokenizer = draft.branch, draft.inputs.tokenizer
    with _add_source_note(branch.name):
        stages = split_into_stages(branch.steps)
        schemas = find_stage_schemas(branch.schema, stages)
        if INPUT_IDS not in schemas[-1].names:
            encoder = open_encoder(write.shard_format, schemas[-1])  # refuses columns that the format cannot hold
            if write.energon and not has_sample_sizes(encoder):
                raise UsageError("energon is for samples, and these records have no members", help="leave it out")
        trial = SampleTrial(
            draft.read,
            min(draft.files, key=lambda file: file.num_bytes or UNIT_BYTES),
            branch.schema,
            collect_sample_steps(stages),
            schemas[-1],
            recipe.seed,
            recipe.max_quarantine,
            stops=debug,
        )
        tell(f"planning: trying the steps on records of {branch.name}")
        outcome, sample_notes = try_remembered_sample(trial, draft.files_hash, apart=apart, timeout=timeout, pool=pool)
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
    """Mark a plain file of more than a unit that is CSV or a JSON array: it must be scanned before it can be cut."""
    if file.num_bytes <= UNIT_BYTES or find_codec(file.relative) is not None or not needs_scan(read, file):
        return file
    return msgspec.structs.replace(file, is_scanned=True)


def _add_needed_columns(read: Read, steps: Sequence[Step]) -> Read:
    """Add the columns that the steps need; one that an earlier step makes need not be in the files."""
    available: set[str] = {ORIGIN, TEXT, RECORD, SPLIT, TRAINED, LITERALS}
    needed: list[str] = list(read.columns)
    for step in steps:
        needed += [name for name in step.columns_needed() if name not in available and name not in needed]
        available.update(step.columns_added())
    return msgspec.structs.replace(read, columns=needed)
