"""Files that many processes fill in parallel, and that appear together when all are complete.

They are created under temporary names in their final folder, at their full size: a full disk is an error before the
work, not in the middle of it. Other processes only write into them; the process that created them syncs and renames.

Several files cannot be renamed in one atomic operation, so a journal with their names is written first. A process that
is killed between two renames leaves the journal, and the next one removes the files that it names. So a new index never
stays beside old data.
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
from gristmill.storage.stored_paths import StoredName, StoredPath, decode_stored, path_below

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer


class PreallocatedFiles:
    """New files whose names begin with a prefix. Without `commit` nothing remains. The folder is locked meanwhile.

    A prefix that ends with a slash is a folder; its files may be in folders below, and have one of the `suffixes`.

    >>> with PreallocatedFiles("bin/corpus") as files:   # doctest: +SKIP
    ...     temporary = files.add("_train.bin", num_bytes=1 << 30)
    ...     ...                                      # any process writes into `temporary`
    ...     files.commit()
    """

    def __init__(self, prefix: str | os.PathLike[str], *, suffixes: tuple[str, ...] = ()) -> None:
        folder, _, self._stem = os.fspath(prefix).rpartition("/")
        self._folder = Path(folder or ("/" if os.fspath(prefix).startswith("/") else "."))
        self._suffixes = suffixes
        # Part of the names of temporary files: those of another prefix may be in use by another process.
        self._run_id = f"files-{xxhash.xxh3_64_hexdigest(self._stem.encode())}"
        self._journal = self._folder / f".gristmill-{self._run_id}.json"
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

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of this name (what follows the prefix)."""
        return self.path(name).exists()

    def add(self, name: str, num_bytes: int | None = None, head: Buffer = b"") -> str:
        """Create a file that begins with `head`, of this size if it is known; return the temporary path to fill."""
        path = self.path(name)
        temporary = Path(f"{self.temporary_stem}{secrets.token_hex(8)}.tmp")
        self._temporaries[path] = temporary  # before the file exists: an interrupt may come at any moment
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if num_bytes:
                _allocate(fd, num_bytes)
            write_at(fd, head, 0)
        except OSError as error:
            error.add_note(f"while allocating {path}")
            raise
        finally:
            os.close(fd)
        return str(temporary)

    @property
    def temporary_stem(self) -> Path:
        """The beginning of paths in the same folder for files that are removed at the end."""
        return self._folder / f".gristmill-{self._run_id}-"

    def commit(self, replaced: Sequence[str] = ()) -> list[Path]:
        """Give all files their names, in the order of `add`. The older files in `replaced` are removed first."""
        replaced_paths = [self.path(name) for name in replaced]
        # The content first, then the journal, then the names: at every moment a killed process leaves either no file of
        # the set under its final name, or a journal from which the next process removes those that are there.
        for temporary in self._temporaries.values():
            sync_file(temporary)
        names = sorted({str(path.relative_to(self._folder)) for path in (*self._temporaries, *replaced_paths)})
        write_file(self._journal, json.dumps(names).encode(), self._run_id)
        for path in replaced_paths:
            path.unlink(missing_ok=True)
        for path, temporary in self._temporaries.items():
            make_folder(path.parent)
            temporary.replace(path)
        for folder in {self._folder, *(path.parent for path in self._temporaries)}:
            sync_folder(folder)
        self._journal.unlink()
        paths = list(self._temporaries)
        self._temporaries.clear()
        return paths

    def path(self, name: str) -> Path:
        """Return the final path of a file."""
        return self._folder / f"{self._stem}{name}"

    def _remove_leftovers(self) -> None:
        """Remove what this or a killed process did not commit: temporary files, and files that were being renamed."""
        for temporary in self._folder.glob(f"{self.temporary_stem.name}*"):
            temporary.unlink(missing_ok=True)
        if self._journal.exists():
            kind = list[StoredPath] if self._suffixes else list[StoredName]
            names = decode_stored(self._journal.read_bytes(), kind, self._journal)
            ours = [name for name in names if name.startswith(self._stem) and name.endswith(self._suffixes or "")]
            for path in [path_below(self._folder, name) for name in ours]:
                path.unlink(missing_ok=True)
            self._journal.unlink()


def write_at(fd: int, data: Buffer, offset: int) -> None:
    """Write all data at an offset of the file. Any number of processes may do so in parallel."""
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
    else:  # macOS cannot reserve space: a full disk is noticed only while writing
        os.ftruncate(fd, num_bytes)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
