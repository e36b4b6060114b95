"""Checks that the sources of a recipe fit together: they become one dataset, with one schema and one tokenizer."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK, RECORD, SPLIT
from gristmill.core.splits import TRAIN
from gristmill.core.step import GlobalStep, StepPosition
from gristmill.shards.manifests.manifest import MIXED
from gristmill.storage.urls import find_protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.shards.tokenizer_snapshot import TokenizerSnapshot
    from gristmill.steps.pack.pack import Pack
    from gristmill.steps.read import Read
    from gristmill.steps.write import Write
    from gristmill.storage.locations import Location


class PlannedSource(Protocol):
    """The parts of a source plan that are compared."""

    @property
    def name(self) -> str: ...

    @property
    def output_schema(self) -> pa.Schema: ...

    @property
    def tokenizer(self) -> TokenizerSnapshot | None: ...


def check_sources(sources: Sequence[PlannedSource], pack: Pack | None, write: Write) -> None:
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
                    "split: {train: train}",
                )
        splits.update(step.splits_added())


def _check_same_tokenizer(sources: Sequence[PlannedSource]) -> None:
    with_ids = [source for source in sources if INPUT_IDS in source.output_schema.names]
    for first, other in pairwise(with_ids):
        if _find_tokenizer_content(first) != _find_tokenizer_content(other):
            raise UsageError(
                f"sources {first.name} and {other.name} have different tokenizers: their ids cannot be mixed",
                help="use one tokenizer for all sources; a dataset of tokens keeps the one that made it",
            )


def _find_tokenizer_content(source: PlannedSource) -> str | None:
    return source.tokenizer.content if source.tokenizer is not None else None


def _check_same_columns(sources: Sequence[PlannedSource]) -> None:
    """Compare the columns of all sources, without the split: a source without splits is for training."""
    first = sources[0]
    for other in sources[1:]:
        _check_same_kind(first, other)
        if not _drop_split_column(other.output_schema).equals(_drop_split_column(first.output_schema)):
            raise UsageError(
                f"sources {first.name} and {other.name} have different columns: "
                f"{_list_columns(first.output_schema)} and {_list_columns(other.output_schema)}",
                help="name the same columns in each source, or use select and rename",
            )


def _check_same_kind(*sources: PlannedSource) -> None:
    """Refuse chats together with plain documents: only rows of chats have a loss mask."""
    names = [source.output_schema.names for source in sources]
    masked = [source.name for source, columns in zip(sources, names, strict=True) if LOSS_MASK in columns]
    if len(masked) == 1 and all(INPUT_IDS in columns for columns in names):
        raise UsageError(
            f"source {masked[0]} has chats, with a loss mask, and another one has plain documents",
            help="make two datasets: Stream mixes rows of both in one batch",
        )


def _check_tokens(source: PlannedSource, pack: Pack | None, write: Write) -> None:
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


def _list_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name not in (RECORD, SPLIT))


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
        f"sources are written one after the other ({', then '.join(sources)}); Stream mixes them, and for tools that "
        "read files in their order there are mix and shuffle: {across: sources}"
    )
