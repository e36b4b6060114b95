"""What the sources of one recipe must have in common: they become one dataset, with one schema and one tokenizer."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from gristmill.core.errors import UsageError
from gristmill.core.names import nearest
from gristmill.core.records import INPUT_IDS, RECORD, SPLIT
from gristmill.steps.deduplicate import Deduplicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from gristmill.core.recipe import Recipe
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


def check_together(sources: Sequence[PlannedSource], pack: Pack | None, write: Write) -> None:
    """Raise `UsageError` where the sources do not fit together, or do not fit the steps that write them."""
    _check_same_tokenizer(sources)
    _check_same_columns(sources)
    _check_tokens(sources[0], pack, write)


def check_preferred_sources(recipe: Recipe) -> None:
    """Raise `UsageError` where a `deduplicate` prefers a source that is not there."""
    for place, step in recipe.all_steps():
        for name in step.prefer if isinstance(step, Deduplicate) else ():
            if name not in recipe.sources:
                meant = nearest(name, recipe.sources)
                raise UsageError(
                    f'{place} (deduplicate): prefer names "{name}", which is not a source',
                    help=f'did you mean "{meant}"?' if meant else f"the sources are {', '.join(recipe.sources)}",
                )


def _check_same_tokenizer(sources: Sequence[PlannedSource]) -> None:
    with_ids = [source for source in sources if INPUT_IDS in source.output_schema.names]
    for first, other in pairwise(with_ids):
        if _content(first) != _content(other):
            raise UsageError(
                f"sources {first.name} and {other.name} have different tokenizers: their ids cannot be mixed",
                help="use one tokenizer for all sources, also for a dataset of tokens that is read",
            )


def _content(source: PlannedSource) -> str | None:
    return source.tokenizer.content if source.tokenizer is not None else None


def _check_same_columns(sources: Sequence[PlannedSource]) -> None:
    """JSON records aside, which are written as they are. A source without splits is for training."""
    first = sources[0]
    for other in sources[1:]:
        if not _written(other.output_schema).equals(_written(first.output_schema)):
            raise UsageError(
                f"sources {first.name} and {other.name} have different columns: "
                f"{_columns(first.output_schema)} and {_columns(other.output_schema)}",
                help="name the same columns in each source, or use select and rename",
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


def _written(schema: pa.Schema) -> pa.Schema:
    """Splits are folders, not a column."""
    index = schema.get_field_index(SPLIT)
    return schema if index < 0 else schema.remove(index)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name not in (RECORD, SPLIT))
