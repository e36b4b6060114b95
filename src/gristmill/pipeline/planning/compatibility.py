"""What the sources of one recipe must have in common: they become one dataset, with one schema and one tokenizer."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from gristmill.core.errors import UsageError
from gristmill.core.records import INPUT_IDS, LOSS_MASK, RECORD, SPLIT
from gristmill.core.splits import TRAIN
from gristmill.core.step import GlobalStep, StepPosition
from gristmill.shards.manifest import MIXED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from gristmill.core.recipe import Recipe
    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.shards.carried_tokenizer import CarriedTokenizer
    from gristmill.steps.pack.pack import Pack
    from gristmill.steps.write import Write


class PlannedSource(Protocol):
    """What is looked at of each."""

    @property
    def name(self) -> str: ...

    @property
    def output_schema(self) -> pa.Schema: ...

    @property
    def tokenizer(self) -> CarriedTokenizer | None: ...


def check_sources(sources: Sequence[PlannedSource], pack: Pack | None, write: Write) -> None:
    """Raise `UsageError` where the sources do not fit together, or do not fit the steps that write them."""
    _check_same_tokenizer(sources)
    _check_same_columns(sources)
    _check_tokens(sources[0], pack, write)


def check_positions(recipe: Recipe, *, is_packed: bool) -> None:
    """Ask each step whether it fits the recipe around it; raises `UsageError` where it does not."""
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


def check_split_steps(files: Iterable[SourceFile], steps: Sequence[Step]) -> None:
    """Refuse a step that makes a split which its records already have."""
    splits = {file.split or TRAIN for file in files}
    for step in steps:
        for split in step.splits_added():
            if split in splits:
                raise UsageError(
                    f"{step.name}: there is a split {split} already",
                    help=f"leave {split} out of the step; or give the split another name in the source, or leave it "
                    "out there: split: {train: train}",
                )
        splits.update(step.splits_added())


def _check_same_tokenizer(sources: Sequence[PlannedSource]) -> None:
    with_ids = [source for source in sources if INPUT_IDS in source.output_schema.names]
    for first, other in pairwise(with_ids):
        if _find_tokenizer_content(first) != _find_tokenizer_content(other):
            raise UsageError(
                f"sources {first.name} and {other.name} have different tokenizers: their ids cannot be mixed",
                help="use one tokenizer for all sources, also for a dataset of tokens that is read",
            )


def _find_tokenizer_content(source: PlannedSource) -> str | None:
    return source.tokenizer.content if source.tokenizer is not None else None


def _check_same_columns(sources: Sequence[PlannedSource]) -> None:
    """JSON records aside, which are written as they are. A source without splits is for training."""
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
    """Chats and plain documents are rows of different kinds."""
    names = [source.output_schema.names for source in sources]
    masked = [source.name for source, columns in zip(sources, names, strict=True) if LOSS_MASK in columns]
    if len(masked) == 1 and all(INPUT_IDS in columns for columns in names):
        raise UsageError(
            f"source {masked[0]} has chats, which say what is trained, and another one has plain documents",
            help="make two datasets of them: Stream mixes rows of both in one batch",
        )


def _check_tokens(source: PlannedSource, pack: Pack | None, write: Write) -> None:
    """What only tokens can do, and what they cannot."""
    if INPUT_IDS not in source.output_schema.names:
        if source.tokenizer is not None:
            raise UsageError(
                f'source {source.name}: no column "{INPUT_IDS}" is left of its tokens',
                help="leave out the step that renames or drops it",
            )
        if pack is not None:
            raise UsageError("pack needs token ids", help="put a tokenize step before it")
        return
    if write.format != "arrow":
        raise UsageError(
            f"rows of tokens are written as arrow, not as {write.format}",
            help=f"leave the step out, and make {write.format} of the finished dataset with gristmill export",
        )


def _drop_split_column(schema: pa.Schema) -> pa.Schema:
    """Splits are folders, not a column."""
    index = schema.get_field_index(SPLIT)
    return schema if index < 0 else schema.remove(index)


def _list_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name not in (RECORD, SPLIT))


def has_joining_step(steps: Sequence[Step]) -> bool:
    """Whether one of these steps makes all sources one lane."""
    return any(isinstance(step, GlobalStep) and step.joins_sources for step in steps)


def check_joined_lane(recipe: Recipe) -> None:
    """Raise `UsageError` where sources cannot become one lane."""
    for name, source in recipe.sources.items():
        if has_joining_step(source.steps):
            raise UsageError(
                f"sources.{name}.steps: across: sources is about all sources", help="put it among the common steps"
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
            help="leave mixture out, or leave the sources apart: interleave: false",
            key="mixture",
        )


def make_order_note(sources: Sequence[str]) -> str:
    """What a tool that reads files in their order finds in the output."""
    return (
        f"sources are written one after the other ({', then '.join(sources)}); Stream mixes them, and for tools that "
        "read files in their order there are mix and shuffle: {across: sources}"
    )
