"""Whether the sources of a recipe fit together, and how documents of several sources become one table.

All sources have one schema and one tokenizer. Documents are united where a step joins their records (`mix`), otherwise
at the end. JSON records stay as they are until then. A column that a source lacks is null there; where the types of two
sources disagree, the column is JSON text. A source whose records do not have the columns of the table yet gets a
`UniteColumns` step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.core.errors import UsageError
from gristmill.core.json_values import JSON_TYPE, has_floats, is_json, make_field, reason_for_json
from gristmill.core.media import FEATURE, MEMBER, find_member
from gristmill.core.records import INPUT_IDS, LOSS_MASK, ORIGIN, OTHER_FIELDS, RECORD, RECORD_TYPE, SOURCE, SPLIT, TEXT
from gristmill.core.splits import TRAIN
from gristmill.core.step import ChatStep, GlobalStep, LocalStep, StepPosition, find_keys_consumed
from gristmill.readers.field_types import REST, FieldType, unite_types, without_nulls
from gristmill.shards.manifest import MIXED
from gristmill.steps.column_names import has_text_beside, list_value_columns
from gristmill.steps.columns import UniteColumns
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.pipeline.planning.source_plan import SourcePlan
    from gristmill.readers.read import Read
    from gristmill.steps.pack import Pack
    from gristmill.steps.write import Write
    from gristmill.storage.locations import Location


def check_sources(sources: Sequence[SourcePlan], pack: Pack | None, write: Write) -> None:
    """Raise `UsageError` where the sources do not fit together, or do not fit the steps that write them."""
    _check_same_tokenizer(sources)
    _check_same_columns(sources)
    _check_tokens(sources[0], pack, write)


def check_positions(recipe: Recipe, *, is_packed: bool) -> None:
    """Ask each step whether it fits the recipe around it; raises `UsageError` if one does not."""
    lists = [(f"sources.{name}.steps", source.steps) for name, source in recipe.sources.items()]
    for prefix, steps in [*lists, ("steps", recipe.steps)]:
        for index, step in enumerate(steps):
            step.check_position(
                StepPosition(
                    key=f"{prefix}.{index}",
                    sources=tuple(recipe.sources),
                    is_common=prefix == "steps",
                    is_packed=is_packed,
                    following=tuple(step.name for step in steps[index + 1 :]),
                )
            )


def check_kept_signatures(output: Location, reads: Iterable[Read]) -> None:
    """Raise `UsageError` if the dataset cannot keep the signatures of its documents."""
    if find_protocol(str(output)) == "memory":
        raise UsageError("keep_signatures needs an output in a folder or on an object store")
    fields = {read.text for read in reads}
    if len(fields) > 1:
        raise UsageError(
            f"keep_signatures: the sources have their texts in different fields: {', '.join(sorted(fields))}",
            help="rename the fields, so that the dataset has one field of texts",
        )


def check_split_steps(files: Iterable[SourceFile], steps: Sequence[Step]) -> None:
    """Refuse a step that makes a split which its records already have."""
    splits = {file.split or TRAIN for file in files}
    for step in steps:
        for split in step.splits_added():
            if split in splits:
                raise UsageError(
                    f"{step.name}: there is a split {split} already",
                    help=f"remove {split} from the step; or rename the split in the source, or read only others: "
                    "splits: {train: train}",
                )
        splits.update(step.splits_added())


def _check_same_tokenizer(sources: Sequence[SourcePlan]) -> None:
    with_ids = [source for source in sources if INPUT_IDS in source.output_schema.names]
    for first, other in pairwise(with_ids):
        if len({source.tokenizer and source.tokenizer.content for source in (first, other)}) > 1:
            raise UsageError(
                f"sources {first.name} and {other.name} have different tokenizers: their ids cannot be mixed",
                help="use one tokenizer for all sources; a dataset of tokens keeps the one that made it",
            )


def _check_same_columns(sources: Sequence[SourcePlan]) -> None:
    """Compare the columns of all sources, without the split: a source without splits is for training."""
    first = sources[0]
    for other in sources[1:]:
        _check_same_kind(first, other)
        if not _drop_split_column(other.output_schema).equals(_drop_split_column(first.output_schema)):
            raise UsageError(
                f"sources {first.name} and {other.name} have different columns: "
                f"{_describe_differences(first.output_schema, other.output_schema)}",
                help="name the same columns in each source, or use select and rename",
            )


def _describe_differences(first: pa.Schema, other: pa.Schema) -> str:
    """List the columns of two schemas, or what differs if their names and types are the same: fields inside, order."""
    lists = [
        ", ".join(f"{field.name} {field.type}" for field in schema if field.name not in (RECORD, SPLIT))
        for schema in (first, other)
    ]
    if lists[0] == lists[1]:
        pairs = zip(_drop_split_column(first), _drop_split_column(other), strict=False)
        pair = next((pair for pair in pairs if not pair[0].equals(pair[1])), None)
        if pair is not None:
            notes = ["" if field.nullable else ", never null" for field in pair]
            lists = [f"{field.name}: {field.type}{note}" for field, note in zip(pair, notes, strict=True)]
    return " and ".join(lists)


def _check_same_kind(*sources: SourcePlan) -> None:
    """Refuse chats together with plain documents: only rows of chats have a loss mask."""
    names = [source.output_schema.names for source in sources]
    masked = [source.name for source, columns in zip(sources, names, strict=True) if LOSS_MASK in columns]
    if len(masked) == 1 and all(INPUT_IDS in columns for columns in names):
        raise UsageError(
            f"source {masked[0]} has chats, with a loss mask, and another one has plain documents",
            help="make two datasets: Stream mixes rows of both in one batch",
        )


def _check_tokens(source: SourcePlan, pack: Pack | None, write: Write) -> None:
    """Refuse `pack` without tokens, and tokens in a format that cannot hold them."""
    if INPUT_IDS not in source.output_schema.names:
        if source.tokenizer is not None:
            raise UsageError(
                f'source {source.name}: no column "{INPUT_IDS}" is left of its tokens',
                help="remove the step that renames or drops it",
            )
        if pack is not None:
            raise UsageError("pack needs token ids", help="put a tokenize step before it")
        return
    if write.format != "arrow":
        raise UsageError(
            f"rows of tokens are written as arrow, not as {write.format}",
            help=f"remove the step, and convert the finished dataset to {write.format} with gristmill export",
        )


def _drop_split_column(schema: pa.Schema) -> pa.Schema:
    """Remove the split from a schema: splits are folders of the output, not a column."""
    index = schema.get_field_index(SPLIT)
    return schema if index < 0 else schema.remove(index)


def has_joining_step(steps: Sequence[Step]) -> bool:
    """Tell whether one of the steps writes all sources as one lane."""
    return any(isinstance(step, GlobalStep) and step.joins_sources for step in steps)


def check_joined_lane(recipe: Recipe) -> None:
    """Raise `UsageError` if the sources cannot become one lane."""
    for name, source in recipe.sources.items():
        if has_joining_step(source.steps):
            raise UsageError(
                f"sources.{name}.steps: across: sources concerns all sources", help="move it to the common steps"
            )
    if not has_joining_step(recipe.steps):
        return
    if MIXED in recipe.sources:
        raise UsageError(
            f'no source can be called "{MIXED}" where sources are interleaved: their lane has this name',
            help="give it another name",
            key=f"sources.{MIXED}",
        )
    if recipe.mixture:
        raise UsageError(
            "mixture gives weights for streaming, and the sources are interleaved when they are written",
            help="remove mixture, or keep the sources apart: interleave: false",
            key="mixture",
        )


def make_order_note(sources: Sequence[str]) -> str:
    """Note in which order a tool that reads one file after the other finds the sources."""
    return (
        f"sources are written one after the other ({', then '.join(sources[:3])}"
        f"{', …' if len(sources) > 3 else ''}); Stream mixes them, and for tools that read files in their order "
        "there are mix and shuffle: {across: sources}"
    )


@dataclass(frozen=True, slots=True)
class SourceBranch:
    """One source on its way through the steps, up to where it is united with the others."""

    name: str
    schema: pa.Schema
    """The columns that are read."""
    steps: tuple[Step, ...]
    num_own_steps: int
    """How many of the steps are for this source alone; the others are common."""
    text: str
    """The field of the files that holds the text; empty where there is none."""
    record_types: dict[str, FieldType] = field(default_factory=dict)
    """The types of the keys of JSON records, from a sample."""
    has_all_keys: bool = False
    """Whether the sample holds all records, so that no other key can follow."""
    has_named_columns: bool = False
    """Whether the recipe names the columns; then other fields of the records are ignored."""

    def find_schema_before(self, index: int) -> pa.Schema:
        """Find the columns of the records before the step at an index."""
        schema = self.schema
        for step in self.steps[:index]:
            if isinstance(step, (LocalStep, GlobalStep)):
                schema = step.output_schema(schema)
        return schema

    def with_step(self, index: int, step: Step) -> SourceBranch:
        """Return the branch with one more step at an index."""
        return replace(self, steps=(*self.steps[:index], step, *self.steps[index:]))


def unite_sources(branches: Sequence[SourceBranch], write: Write) -> list[SourceBranch]:
    """Add the steps that make one table of the sources, where they are needed."""
    branches = [_open_consumed_records(branch) for branch in branches]
    if all(branch.has_named_columns for branch in branches) and not write.keeps_record:
        return branches
    common = branches[0].steps[branches[0].num_own_steps :]
    joins = (isinstance(step, GlobalStep) and step.joins_sources for step in common)
    join_index = next((index for index, is_join in enumerate(joins) if is_join), None)
    if join_index is not None and len(branches) > 1:
        indexes = [branch.num_own_steps + join_index for branch in branches]
        branches = _unite_at(indexes, branches, write, is_last=False)
    return _unite_at([len(branch.steps) for branch in branches], branches, write, is_last=True)


def _unite_at(
    indexes: Sequence[int], branches: Sequence[SourceBranch], write: Write, *, is_last: bool
) -> list[SourceBranch]:
    """Unite the branches, each before the step at its index; `is_last`: at the end, where the table is written."""
    schemas = [branch.find_schema_before(index) for branch, index in zip(branches, indexes, strict=True)]
    # Columns next to a record are for the steps; the record is written as it was read, without them.
    beside = [_find_columns_beside(branch) if is_last else () for branch in branches]
    schemas = [
        pa.schema([column for column in schema if column.name not in names], schema.metadata)
        for schema, names in zip(schemas, beside, strict=True)
    ]
    num_json = sum(RECORD in schema.names for schema in schemas)
    if num_json and (write.keeps_record or (num_json == len(schemas) and not is_last)):
        target = (
            _find_shared_fields(schemas) if write.keeps_record else _unite_fields(branches, schemas, opens_record=False)
        )
        target.append(pa.field(RECORD, RECORD_TYPE))
    else:
        target = _unite_fields(branches, schemas)
    writes_json = is_last and write.keeps_record
    # JSON has no NaN. Where columns may hold some, the step counts what becomes null, though it changes no column.
    may_hold_nan = writes_json and any(has_floats(column.type) for column in target)
    may_hold_nan = may_hold_nan and (not num_json or any(map(_declares_columns, branches)))
    has_splits = any(SPLIT in schema.names for schema in schemas)
    united = []
    for branch, index, schema, dropped_columns in zip(branches, indexes, schemas, beside, strict=True):
        first = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
        if has_splits and not is_last and SPLIT not in schema.names:
            first.append(pa.field(SPLIT, pa.string()))
        planned = pa.schema([*first, *target])
        if may_hold_nan or dropped_columns or not _has_same_columns(planned, schema, in_order=len(branches) > 1):
            step = UniteColumns.to(
                planned, opens_record=not branch.has_named_columns, drops=dropped_columns, writes_json=writes_json
            )
            united.append(branch.with_step(index, step))
        else:
            united.append(branch)
    return united


def _open_consumed_records(branch: SourceBranch) -> SourceBranch:
    """Keep what a step leaves of JSON records as columns.

    `render` makes a text of the chat in a record; the record's other keys become columns after it.
    """
    consuming = (index for index, step in enumerate(branch.steps) if find_keys_consumed(step))
    index = next(consuming, None)
    if index is None:
        return branch
    schema = branch.find_schema_before(index + 1)
    if RECORD not in schema.names:
        return branch
    consumed = find_keys_consumed(branch.steps[index])
    other_types = {name: kind for name, kind in branch.record_types.items() if name not in consumed}
    fields = _unite_fields([replace(branch, record_types=other_types)], [schema])
    first = [schema.field(name) for name in (ORIGIN, SPLIT) if name in schema.names]
    step = UniteColumns.to(pa.schema([*first, *fields]), opens_record=not branch.has_named_columns, ignores=consumed)
    return branch.with_step(index + 1, step)


def _find_columns_beside(branch: SourceBranch) -> tuple[str, ...]:
    """Find the columns next to records: those that a step with `keeps_record_beside` and later steps add."""
    adding = (
        index for index, step in enumerate(branch.steps) if isinstance(step, ChatStep) and step.keeps_record_beside
    )
    index = next(adding, None)
    if index is None:
        return ()
    before = branch.find_schema_before(index).names
    after = branch.find_schema_before(len(branch.steps)).names
    return tuple(name for name in after if name not in (*before, SPLIT, SOURCE))


def _has_same_columns(planned: pa.Schema, actual: pa.Schema, *, in_order: bool) -> bool:
    schemas = (planned, actual)
    columns = [
        [
            (each.name, each.type, is_json(each), (each.metadata or {}).get(FEATURE))
            for each in list_value_columns(schema)
        ]
        for schema in schemas
    ]
    reserved = [{*schema.names} & {SPLIT, RECORD} for schema in schemas]
    if not in_order:
        columns = [sorted(each, key=lambda column: column[0]) for each in columns]
    return columns[0] == columns[1] and reserved[0] == reserved[1]


def _find_shared_fields(schemas: Sequence[pa.Schema]) -> list[pa.Field]:
    """Find the columns that all sources have. Where JSON records are written, only steps need columns."""
    first, *others = schemas
    fields = []
    for column in list_value_columns(first):
        types = [schema.field(column.name).type for schema in others if column.name in schema.names]
        if len(types) == len(others):
            united = column.type
            for other in types:
                united = unite_types(united, other) or JSON_TYPE
            fields.append(column if united == column.type else make_field(column.name, united))
    return fields


def _unite_fields(
    branches: Sequence[SourceBranch], schemas: Sequence[pa.Schema], *, opens_record: bool = True
) -> list[pa.Field]:
    """Unite the columns of all sources, with the keys of JSON records; the column for other fields comes last."""
    united: dict[str, tuple[FieldType, bool, str]] = {}
    needs_rest = False
    for branch, schema in zip(branches, schemas, strict=True):
        columns = {
            column.name: (
                FieldType(JSON_TYPE, reason_for_json(column)) if is_json(column) else FieldType(column.type),
                False,
            )
            for column in list_value_columns(schema)
        }
        if RECORD in schema.names and opens_record and not branch.has_named_columns:
            named_columns = {*columns, branch.text, *{name for step in branch.steps for name in step.columns_removed()}}
            columns |= {name: (kind, True) for name, kind in branch.record_types.items() if name not in named_columns}
            # A key that the sample has not shown needs a place to go.
            needs_rest = needs_rest or not branch.has_all_keys or any(step.traits.may_add_keys for step in branch.steps)
        needs_rest = needs_rest or OTHER_FIELDS in columns
        for name, (kind, is_sampled) in columns.items():
            if name not in united:
                united[name] = kind, is_sampled, branch.name
            elif name != OTHER_FIELDS:
                united[name] = _unite_types(united[name], kind, branch.name, is_sampled=is_sampled)
    united.pop(OTHER_FIELDS, None)
    fields = [
        make_field(name, without_nulls(kind) if is_sampled else kind, why)
        for name, ((kind, why), is_sampled, _) in united.items()
    ]
    if len(branches) > 1:
        fields.sort(key=lambda column: column.name != TEXT)  # the text first, no matter which source has it
    fields = _keep_labels(_keep_members(fields, schemas), schemas)
    if all(map(has_text_beside, schemas)):
        fields = [schemas[0].field(TEXT) if column.name == TEXT else column for column in fields]
    return [*fields, *([make_field(OTHER_FIELDS, *REST)] if needs_rest else [])]


def _keep_members(fields: list[pa.Field], schemas: Sequence[pa.Schema]) -> list[pa.Field]:
    """Keep the extensions of members where all sources are samples, and those that have a column agree on its own."""
    members = [{column.name: find_member(column) for column in schema} for schema in schemas]
    if not all(any(each.values()) for each in members):
        return fields
    united = []
    for column in fields:
        extensions = {each[column.name] for each in members if column.name in each}
        member = extensions.pop() if len(extensions) == 1 else None
        has_member = {**(column.metadata or {}), MEMBER: member.encode()} if member is not None else column.metadata
        united.append(column.with_metadata(has_member))
    return united


def _keep_labels(fields: list[pa.Field], schemas: Sequence[pa.Schema]) -> list[pa.Field]:
    """Keep the names of the labels of a column where all sources that have it agree on them, and on its type."""
    labeled = []
    for column in fields:
        sources = [schema.field(column.name) for schema in schemas if column.name in schema.names]
        features = {(field.metadata or {}).get(FEATURE) for field in sources if field.type.equals(column.type)}
        feature = features.pop() if len(features) == 1 else None
        notes = {key: value for key, value in (column.metadata or {}).items() if key != FEATURE}
        labeled.append(column.with_metadata({**notes, FEATURE: feature} if feature is not None else notes or None))
    return labeled


def _unite_types(
    earlier: tuple[FieldType, bool, str], kind: FieldType, source: str, *, is_sampled: bool
) -> tuple[FieldType, bool, str]:
    """Unite the type of a column in one more source with that in the sources before it.

    `earlier` holds the type, whether it is only known from a sample of JSON records, and the first source that has it.
    """
    (first, why), was_sampled, first_source = earlier
    if first.equals(JSON_TYPE) and why:
        return earlier
    both = unite_types(first, kind.type)
    if both is None and _is_json_number(first, kind.type, was_sampled, is_sampled):
        both = pa.float64()
    if both is None or both.equals(JSON_TYPE):
        reason = kind.why or f"{_describe_type(first)} in {first_source}, {_describe_type(kind.type)} in {source}"
        return FieldType(JSON_TYPE, reason), False, first_source
    return FieldType(both), was_sampled or is_sampled, first_source


def _is_json_number(first: pa.DataType, second: pa.DataType, *sampled: bool) -> bool:
    """Tell whether one type is of floats, and the other of whole numbers in JSON, where 1 and 1.0 are one type."""
    whole = [is_sampled for kind, is_sampled in zip((first, second), sampled, strict=True) if kind == pa.int64()]
    return {first, second} == {pa.int64(), pa.float64()} and all(whole)


def _describe_type(kind: pa.DataType) -> str:
    return "JSON" if kind.equals(JSON_TYPE) else str(kind)


def _declares_columns(branch: SourceBranch) -> bool:
    """Tell whether functions make columns, which can hold numbers that JSON records cannot."""
    return any(step.traits.may_add_keys and step.columns_added() for step in branch.steps)
