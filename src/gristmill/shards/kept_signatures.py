"""The signatures of a dataset's documents, kept for later runs of `deduplicate`: what they are made of, by shard.

`signatures/index.json` names for each shard the files with its documents' origins, sketches, digests and keys of bands.
It belongs to the shards that it names by their checksums; the dataset does not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from gristmill.core.errors import DamagedDatasetError
from gristmill.shards.stored_files import StoredFile  # noqa: TC001  (msgspec looks at the types of fields)
from gristmill.storage.locations import Count, StoredPath, read_stored

if TYPE_CHECKING:
    from gristmill.storage.locations import Location

SIGNATURES = "signatures"
INDEX = f"{SIGNATURES}/index.json"


class KeptShard(msgspec.Struct, frozen=True, kw_only=True):
    """The signatures of one shard."""

    path: StoredPath
    """The shard, below the dataset's folder."""
    xxh3: str
    rows: Count
    cell_rows: list[Count]
    """The rows of each cell, to read the texts of some documents only."""
    files: Annotated[list[StoredFile], msgspec.Meta(min_length=4, max_length=4)]
    """Descriptions of the documents, sketches, digests and keys of bands."""
    counts: Annotated[list[Count], msgspec.Meta(min_length=2, max_length=2)]
    """The number of digests, and of keys."""

    def __post_init__(self) -> None:
        if not self.rows == sum(self.cell_rows) == self.counts[0]:
            raise ValueError(f"the numbers of documents of {self.path} differ")


class KeptSignatures(msgspec.Struct, frozen=True, kw_only=True):
    """The signatures of all shards of a dataset."""

    signer: str
    """A hash of what the signatures depend on, besides the documents."""
    text: str
    """The field that holds the text."""
    shards: list[KeptShard]

    def files(self) -> list[StoredFile]:
        """List the files of all shards."""
        return [file for shard in self.shards for file in shard.files]


def load_kept_signatures(folder: Location) -> KeptSignatures | None:
    """Load the index of a dataset; None if there is none.

    Raises:
        DamagedDatasetError: It cannot be read.
    """
    try:
        return msgspec.json.decode(read_stored(folder / INDEX), type=KeptSignatures)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise DamagedDatasetError(
            f"{folder / INDEX} cannot be read: {error}",
            help=f"remove {folder / SIGNATURES}, and run the recipe of the dataset again: it signs its documents again",
        ) from error
