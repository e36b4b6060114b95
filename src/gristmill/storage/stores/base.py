"""The one interface to all that is not a local folder: a store of complete objects, each under a key.

An object appears complete or not at all, and has a version that changes with its content. Two writes are conditional:
`put(create=True)` succeeds for one of any number of writers, and `put(replaces=version)` only if no one has written
since. Leases and manifests need no more than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from gristmill.core.errors import GristmillError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from typing_extensions import Buffer


class StoredObject(NamedTuple):
    """An object of a store."""

    key: str
    num_bytes: int
    version: str
    """The etag, or the modification time."""


class ObjectExistsError(GristmillError, FileExistsError):
    """An object that was to be created is there already."""


class ObjectChangedError(GristmillError, RuntimeError):
    """An object is not in the version that was to be replaced."""


class Store(Protocol):
    """A store of objects. All methods may be called from several threads, and retry what a retry may help."""

    lists_flat: ClassVar[bool]
    """Whether all that is below a folder is listed as fast as the folder alone."""

    def url(self, key: str) -> str:
        """Return the URL of a key."""

    def head(self, key: str) -> StoredObject:
        """Return size and version. `FileNotFoundError` if there is no such object."""

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str = "") -> bytes:
        """Read a range of an object; of this version, if it is named (`SourceChangedError` otherwise)."""

    def open(self, key: str, start: int = 0, stop: int | None = None) -> BinaryIO:
        """Open an object for reading at byte `start`. Nothing is read ahead beyond `stop`, but it may be read.

        That there is no such object may be noticed by the first read.
        """

    def put(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> str:
        """Write a small object and return its version.

        Raises:
            ObjectExistsError: With `create`, the object exists.
            ObjectChangedError: With `replaces`, it has another version.
        """

    def put_stream(self, key: str, pieces: Iterator[bytes]) -> str:
        """Write an object of any size from pieces of `PIECE_BYTES`, in bounded memory; return its version.

        An error leaves nothing.
        """

    def copy(self, key: str, target: str) -> None:
        """Copy an object inside the store."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Those that are not there are no error."""

    def list_all(self, prefix: str) -> Iterator[StoredObject]:
        """Iterate over all objects below a folder, however deep, in bounded memory."""

    def list_folder(self, prefix: str) -> Iterator[StoredObject | str]:
        """Iterate over the objects of one folder, and the names of the folders in it."""

    def abort_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> Iterable[str]:
        """Abort the unfinished uploads whose keys begin like this and are ours; return their keys."""


PIECE_BYTES = 8 * 2**20
"""The size of a part of an upload: a store takes 10,000 of them."""
