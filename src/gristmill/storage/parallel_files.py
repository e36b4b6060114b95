"""Files that many processes fill in parallel, and that appear together when all are complete.

`PreallocatedFiles` creates them under temporary names in their final folder, at their full size: a full disk is an
error before the work, not in the middle of it. Other processes only write into them; the process that created them
syncs and renames. `UploadedFiles`, with the same interface, makes them in a folder of the user's cache, whose disk must
have room for them, and `commit` uploads them to a store. Files that tell how to read others (`.idx`, `.json`) come last
there, and go first where older files are replaced.

Several files cannot get their names in one atomic operation, so a journal with the names is written first. A process
that is killed between two of them leaves the journal, and the next one removes the files that it names: a new index
never stays next to old data. On a store the journal is in a hidden folder next to the files. A lease there keeps other
writers of the same names out; the folder goes at the end.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from gristmill.storage.commit import PendingFile, make_folder, sync_folder, write_file
from gristmill.storage.leases import Lease
from gristmill.storage.locations import StoredName, StoredPath, StorePath, decode_stored, path_below
from gristmill.storage.lock import FolderLock
from gristmill.storage.stores.open_store import open_store
from gristmill.storage.user_cache import open_staging_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

_LAST_SUFFIXES = (".idx", ".json")
_PIECE_BYTES = 4 * 2**20


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
        try:
            self._lock.__enter__()
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
        """Whether there is a file of this name (what follows the prefix)."""
        return self.path(name).exists()

    def add(self, name: str, num_bytes: int | None = None, head: Buffer = b"") -> str:
        """Create a file that begins with `head`, of this size if it is known; return the temporary path to fill."""
        path = self.path(name)
        temporary = Path(f"{self.temporary_stem}{secrets.token_hex(8)}.tmp")
        self._temporaries[path] = temporary  # before the file exists: an interrupt may come at any moment
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if num_bytes and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, num_bytes)
            elif num_bytes:  # macOS cannot reserve space: a full disk is noticed only while writing
                os.ftruncate(fd, num_bytes)
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


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class UploadedFiles:
    """New objects of a store whose URLs begin with a prefix. Without `commit` nothing remains."""

    def __init__(self, prefix: str, *, suffixes: tuple[str, ...] = ()) -> None:
        self._store, key = open_store(prefix)
        self._folder_key, slash, self._stem = key.rpartition("/")
        self._folder_key += slash
        self._suffixes = suffixes
        self._prefix = prefix
        self._hidden_key = f"{self._folder_key}.gristmill-files-{xxhash.xxh3_64_hexdigest(self._stem.encode())}"
        self._journal_key = f"{self._hidden_key}/journal.json"
        self._lease = Lease(self._store, self._hidden_key)
        self._stack = ExitStack()
        self._present: set[str] = set()
        self._names: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._remove_lease_files)
            stack.enter_context(self._lease)
            self._remove_leftovers()
            stack.callback(self._remove_leftovers)
            self._present = set(self._list_present())
            staging = stack.enter_context(open_staging_folder("exports"))
            local_prefix = f"{staging}/files/{self._stem}"
            self._local = stack.enter_context(PreallocatedFiles(local_prefix, suffixes=self._suffixes))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def temporary_stem(self) -> Path:
        """The beginning of local paths for files that are removed at the end."""
        return self._local.temporary_stem

    def exists(self, name: str) -> bool:
        """Whether there was an object of this name (what follows the prefix) at the beginning."""
        return self._stem + name in self._present

    def add(self, name: str, num_bytes: int | None = None, head: Buffer = b"") -> str:
        """Create a file that begins with `head`, of this size if it is known; return the local path to fill."""
        self._names.append(name)
        return self._local.add(name, num_bytes, head)

    def path(self, name: str) -> StorePath:
        """Return the final URL of a file."""
        return StorePath(self._prefix + name)

    def commit(self, replaced: Collection[str] = ()) -> list[StorePath]:
        """Upload all files; those in `replaced`, which are there already, are removed first."""
        files = dict(zip(self._names, self._local.commit(), strict=True))
        self._lease.check()
        all_names = sorted({self._stem + name for name in (*self._names, *replaced)})
        self._store.put(self._journal_key, json.dumps(all_names).encode())
        self._delete([self._stem + name for name in _sort_for_upload(replaced)[::-1]])
        for name in _sort_for_upload(self._names):
            self._lease.check()
            with files[name].open("rb") as content, PendingFile(self.path(name), "export") as upload:
                while piece := content.read(_PIECE_BYTES):
                    upload.write(piece)
                upload.commit()
            files[name].unlink()  # the disk need not hold it until all others are uploaded
        self._lease.check()
        self._store.delete([self._journal_key])
        return [self.path(name) for name in self._names]

    def _list_present(self) -> Iterable[str]:
        """List the objects whose names begin as those of the files do, in one pass."""
        entries = (
            self._store.list_all(self._folder_key) if self._suffixes else self._store.list_folder(self._folder_key)
        )
        for entry in entries:
            if not isinstance(entry, str):
                name = entry.key[len(self._folder_key) :]
                if name.startswith(self._stem):
                    yield name

    def _remove_leftovers(self) -> None:
        """Remove what this or a killed process has uploaded without completing all files."""
        if self._lease.is_lost:  # its new holder does that
            return
        journal = StorePath(self._store.url(self._journal_key))
        try:
            content = journal.read_bytes()
        except FileNotFoundError:
            return
        names = decode_stored(content, list[StoredPath], journal)
        ours = [name for name in names if name.startswith(self._stem) and name.endswith(self._suffixes or "")]
        for name in ours:
            self._store.abort_uploads(self._folder_key + name, (self._folder_key + name).__eq__)
        self._delete(_sort_for_upload(ours)[::-1])
        self._store.delete([self._journal_key])

    def _delete(self, names: Sequence[str]) -> None:
        if names:
            self._store.delete([self._folder_key + name for name in names])

    def _remove_lease_files(self) -> None:
        """Remove what is left of the hidden folder: no name depends on the number of a lease that has ended."""
        if self._lease.epoch and not self._lease.is_lost:
            keys = [entry.key for entry in self._store.list_folder(self._hidden_key) if not isinstance(entry, str)]
            self._store.delete([key for key in keys if key != self._journal_key])


def _sort_for_upload(names: Iterable[str]) -> list[str]:
    """Sort names: first the data, then what tells how to read it."""
    return sorted(names, key=lambda name: name.endswith(_LAST_SUFFIXES))
