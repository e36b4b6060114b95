"""A dataset of tokens as a source, in the plan: what may be asked of it, and what becomes of its splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.core.records import SPLIT
from gristmill.steps.read import refuse_text_keys
from gristmill.steps.split import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from gristmill.core.records import SourceFile
    from gristmill.core.step import Step
    from gristmill.shards.carried_tokenizer import CarriedTokenizer
    from gristmill.steps.read import Read


def check_token_source(read: Read, schema: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
    """The columns that are read: with the documents' splits, unless a step makes new ones."""
    refuse_text_keys(read)
    makes_splits = any(isinstance(step, Split) for step in steps)
    return schema.remove(schema.get_field_index(SPLIT)) if makes_splits else schema


def token_source_notes(tokenizer: CarriedTokenizer, files: Sequence[SourceFile], schema: pa.Schema) -> list[str]:
    """What is taken over from the dataset."""
    splits = ", ".join(sorted({file.split for file in files}))
    fate = "kept" if SPLIT in schema.names else "joined, and the step split makes new ones"
    identity = tokenizer.identity
    return [
        f"tokens of tokenizer {identity.name}: {identity.vocab_size:,} tokens, not tokenized again",
        f"the dataset's splits ({splits}) are {fate}",
    ]
