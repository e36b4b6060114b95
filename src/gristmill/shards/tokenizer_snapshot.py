"""The tokenizer of a dataset that is being made, from a `tokenize` step or from another dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.shards.manifests.stored_files import TokenizerIdentity


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of a tokenizer, in its present location."""

    path: str
    """A local path or a URL."""
    xxh3: str


@dataclass(frozen=True, slots=True)
class TokenizerSnapshot:
    """The identity of a tokenizer, and the files that are copied into the dataset."""

    identity: TokenizerIdentity
    """The identity without `files`: their paths in the dataset are not known yet."""
    files: Mapping[str, SnapshotFile]
    """The files by their usual names, `tokenizer.json` first."""

    @property
    def content(self) -> str:
        """The hash of the tokenizer. Ids of tokenizers with equal hashes can be mixed."""
        return self.identity.content

    @property
    def pad_id(self) -> int:
        """The id of padding. Any id would do, because a row holds the lengths of its documents."""
        ids = (self.identity.pad_id, self.identity.eos_id)
        return next((token for token in ids if token is not None), 0)
