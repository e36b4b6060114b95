"""Files that many processes fill at once, and that appear together when all are whole.

They are made under temporary names in the folder where they will stand, at their full size: a full disk is an error
before the work, not in the middle of it. Whoever fills them only writes; the process that made them syncs and renames.

Several files cannot be renamed in one go, so what is about to appear is noted first. A process that is killed between
two renames leaves that note, and the next one removes what it names: never a new index beside old data.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from gristmill.storage.commit import make_folder, sync_folder, write_file
from gristmill.storage.lock import FolderLock
from gristmill.storage.stored_paths import StoredName, decode_stored, path_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer


class PreallocatedFiles:
    """The files whose names begin with a prefix, from `with` to `commit`; without it nothing stays. Locks the folder.

    A prefix that ends with a slash is a folder, whose files have no more in common than the end of their names.

    >>> with PreallocatedFiles("bin/corpus") as files:   # doctest: +SKIP
    ...     temporary = files.add("_train.bin", num_bytes=1 << 30)
    ...     ...                                      # any process writes into `temporary`
    ...     files.commit()
    """

    def __init__(self, prefix: str | os.PathLike[str], *, suffix: str = "") -> None:
        folder, _, self._stem = os.fspath(prefix).rpartition("/")
        self._folder = Path(folder or ("/" if os.fspath(prefix).startswith("/") else "."))
        self._suffix = suffix
        # In the names of our temporary files: those of another prefix may be in use by another process.
        self._run_id = f"files-{xxhash.xxh3_64_hexdigest(self._stem.encode())}"
        self._note = self._folder / f".gristmill-{self._run_id}.json"
        self._lock = FolderLock(self._folder)
        self._temporaries: dict[Path, Path] = {}

    def __enter__(self) -> Self:
        make_folder(self._folder)
        self._lock.__enter__()
        try:
            self._remove_leftovers()
        except BaseException as error:
            self._lock.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._remove_leftovers()
        finally:
            self._lock.__exit__(kind, error, traceback)

    def find_existing(self, names: Iterable[str]) -> list[Path]:
        """Which of the files (named by what follows the prefix) are there already."""
        return [path for path in map(self.path, names) if path.exists()]

    def add(self, name: str, num_bytes: int | None = None, head: Buffer = b"") -> str:
        """Make a file, of this size if it is known, that begins with `head`; the path to fill it at."""
        path = self.path(name)
        temporary = path.with_name(f".gristmill-{self._run_id}-{secrets.token_hex(8)}.tmp")
        self._temporaries[path] = temporary  # first: an interrupt may come at any moment
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if num_bytes:
                _allocate(fd, num_bytes)
            write_at(fd, head, 0)
        except OSError as error:
            error.add_note(f"while making room for {path}")
            raise
        finally:
            os.close(fd)
        return str(temporary)

    def commit(self, replaced: Sequence[Path] = ()) -> list[Path]:
        """Give all files their names, in the order in which they were added; `replaced` ones go first."""
        for temporary in self._temporaries.values():
            _sync(temporary)
        names = sorted({path.name for path in (*self._temporaries, *replaced)})
        write_file(self._note, json.dumps(names).encode(), self._run_id)
        for path in replaced:
            path.unlink(missing_ok=True)
        for path, temporary in self._temporaries.items():
            temporary.replace(path)
        sync_folder(self._folder)
        self._note.unlink()
        paths = list(self._temporaries)
        self._temporaries.clear()
        return paths

    def path(self, name: str) -> Path:
        """Where the file will stand."""
        return self._folder / f"{self._stem}{name}"

    def _remove_leftovers(self) -> None:
        """What we or a process that was killed did not commit: temporary files, and what was being renamed."""
        for temporary in self._folder.glob(f".gristmill-{self._run_id}-*.tmp"):
            temporary.unlink(missing_ok=True)
        if self._note.exists():
            names = decode_stored(self._note.read_bytes(), list[StoredName], self._note)
            ours = [name for name in names if name.startswith(self._stem) and name.endswith(self._suffix)]
            for path in [path_below(self._folder, name) for name in ours]:
                path.unlink(missing_ok=True)
            self._note.unlink()


def write_at(fd: int, data: Buffer, offset: int) -> None:
    """Write all of it at a place in the file; any number of processes may do so at once."""
    view = memoryview(data)
    if not view.nbytes:
        return
    view = view.cast("B")
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _allocate(fd: int, num_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, num_bytes)
    else:  # macOS: there a full disk is noticed while writing
        os.ftruncate(fd, num_bytes)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
