"""A folder that several machines mount, as a store: for leases and manifests that several processes write at once."""

from __future__ import annotations

import errno
import os
import secrets
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from gristmill.core.errors import UsageError
from gristmill.storage.stores.base import ObjectChangedError, ObjectExistsError, StoredObject
from gristmill.storage.stores.retries import make_changed_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
"""What FUSE file systems on object stores answer to a hard link."""


class PosixStore:
    """A folder. Keys are paths below it. A create is a hard link, which is atomic on network file systems, too."""

    lists_flat: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self._root = root

    def url(self, key: str) -> str:
        return str(self._root / key)

    def head(self, key: str) -> StoredObject:
        return _to_object(key, (self._root / key).stat())

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str = "") -> bytes:
        with (self._root / key).open("rb") as file:
            file.seek(start)
            data = file.read() if stop is None else file.read(stop - start)
            if version and _to_object(key, os.fstat(file.fileno())).version != version:
                raise make_changed_error(self.url(key))
        return data

    def open(self, key: str, start: int = 0, stop: int | None = None) -> BinaryIO:  # noqa: ARG002
        file = (self._root / key).open("rb")
        file.seek(start)
        return file

    def put(self, key: str, data: Buffer, *, create: bool = False, replaces: str | None = None) -> str:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if create:
                self._link(temporary, path)
            elif replaces is None:
                temporary.replace(path)
            else:
                self._exchange(temporary, path, key, replaces)
        finally:
            temporary.unlink(missing_ok=True)
        return self.head(key).version

    def put_stream(self, key: str, pieces: Iterator[bytes]) -> str:
        return self.put(key, b"".join(pieces))

    def copy(self, key: str, target: str) -> None:
        self.put(target, self.read(key))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            (self._root / key).unlink(missing_ok=True)

    def list_all(self, prefix: str) -> Iterator[StoredObject]:
        for path in sorted((self._root / prefix).rglob("*")):
            if path.is_file():
                yield _to_object(path.relative_to(self._root).as_posix(), path.stat())

    def list_folder(self, prefix: str) -> Iterator[StoredObject | str]:
        folder = self._root / prefix
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.is_dir():
                yield path.name
            elif not path.name.endswith(".tmp"):
                try:
                    status = path.stat()
                except FileNotFoundError:  # another process has removed it meanwhile
                    continue
                yield _to_object(path.relative_to(self._root).as_posix(), status)

    def abort_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> list[str]:  # noqa: ARG002
        return []

    def _link(self, temporary: Path, path: Path) -> None:
        try:
            path.hardlink_to(temporary)
        except FileExistsError as error:
            # Over NFS the answer may be lost and the request repeated: two names for the file mean that it succeeded.
            if temporary.stat().st_nlink != 2:
                raise ObjectExistsError(f"{path} exists already") from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise UsageError(
                f"{path.parent}: the file system cannot be used for output: it has no hard links",
                help="write to the store that it shows (s3://…), or to NFS, Lustre or the like",
            ) from error

    def _exchange(self, temporary: Path, path: Path, key: str, replaces: str) -> None:
        """Replace a file that has this version; of several replacements of one version exactly one succeeds.

        There is no such operation on a file system. But a rename needs its temporary file: a process that has renamed
        removes those of all others, then looks whether one of them was faster. A file that is made later is made before
        its writer looks at the version, which is another one by then.
        """
        is_mine = False
        try:
            own_version = _to_object(key, temporary.stat()).version
            if self._find_version(key) == replaces:
                temporary.replace(path)
                for other in path.parent.glob(f".{path.name}-*.tmp"):
                    other.unlink(missing_ok=True)
                is_mine = self._find_version(key) == own_version
        except FileNotFoundError:  # removed by a writer that has won
            pass
        if not is_mine:
            raise ObjectChangedError(f"{path} was changed by another writer")

    def _find_version(self, key: str) -> str | None:
        try:
            return self.head(key).version
        except FileNotFoundError:
            return None


def _to_object(key: str, status: os.stat_result) -> StoredObject:
    return StoredObject(key, status.st_size, f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}")
