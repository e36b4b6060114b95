"""What made token ids, on its way into a dataset of them: from a `tokenize` step, or from another dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.shards.manifest import TokenizerIdentity


@dataclass(frozen=True, slots=True)
class CarriedFile:
    """One of a tokenizer's files, where it is now."""

    path: str
    """A local path or a URL."""
    xxh3: str


@dataclass(frozen=True, slots=True)
class CarriedTokenizer:
    """A tokenizer's identity and the files that go along with its ids."""

    identity: TokenizerIdentity
    """Still without `files`: the dataset that is made says where they are in it."""
    files: Mapping[str, CarriedFile]
    """By their usual names, `tokenizer.json` first."""

    @property
    def content(self) -> str:
        """Ids may be mixed where this is equal."""
        return self.identity.content

    @property
    def pad_id(self) -> int:
        """What fills rows up; which it is does not matter, since a row knows its documents' lengths."""
        ids = (self.identity.pad_id, self.identity.eos_id)
        return next((token for token in ids if token is not None), 0)
