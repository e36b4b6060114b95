"""Files that many processes fill on this machine, and that appear together on a store when all are complete.

The interface is that of `PreallocatedFiles`, which makes them in a folder of the user's cache: their size must be free
there. `commit` uploads them. A store cannot give several objects their names at once, so a journal with the names is
written first, as on a disk: whoever finds it removes the objects that it names. Files that tell how to read others
(`.idx`, `.json`) come last, and go first where older files are replaced.

The journal is in a hidden folder beside the files. A lease there keeps other writers of the same names out; the folder
goes at the end.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import xxhash

from gristmill.storage.commit import PendingFile
from gristmill.storage.leases.lease import Lease
from gristmill.storage.locations import StorePath
from gristmill.storage.preallocated import PreallocatedFiles
from gristmill.storage.stored_paths import StoredPath, decode_stored
from gristmill.storage.stores.open_store import open_store
from gristmill.storage.user_cache.staging import open_staging_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path
    from typing import Self

    from typing_extensions import Buffer

_LAST_SUFFIXES = (".idx", ".json")
_PIECE_BYTES = 4 * 2**20


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
        """Tell whether there was an object of this name (what follows the prefix) at the beginning."""
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
            self._upload(files[name], self.path(name))
        self._lease.check()
        self._store.delete([self._journal_key])
        return [self.path(name) for name in self._names]

    def _upload(self, file: Path, target: StorePath) -> None:
        with file.open("rb") as content, PendingFile(target, "export") as upload:
            while piece := content.read(_PIECE_BYTES):
                upload.write(piece)
            upload.commit()
        file.unlink()  # the disk need not hold it until all others are uploaded

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
        if self._lease.is_lost:  # whoever has it now does that
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
