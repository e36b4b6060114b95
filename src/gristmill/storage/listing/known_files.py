"""Which files of a work folder are there, and how large they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.storage.listing.packed_index import PackedIndex
from gristmill.storage.locations import StorePath, list_files_below, measure_file
from gristmill.storage.stored_paths import path_below

if TYPE_CHECKING:
    from gristmill.storage.locations import Location


class KnownFiles:
    """The sizes of the files of a folder. A local file is looked at each time.

    A store is listed once, at first use. Files that are added later are believed to be there: a lost one is found when
    it is read. Memory: about 24 bytes for each file of a store.
    """

    def __init__(self, root: Location) -> None:
        self._root = root
        self._listed: PackedIndex | None = None
        self._added = PackedIndex()

    def find_size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        if isinstance(self._root, Path):
            return measure_file(path_below(self._root, path))
        size = self._added.get(path)
        if size is not None:
            return size
        if self._listed is None:
            self._listed = PackedIndex()
            for listed, num_bytes in list_files_below(self._root):
                self._listed[listed] = num_bytes
        return self._listed.get(path)

    def add(self, path: str, num_bytes: int) -> None:
        """Note a file that was written."""
        if isinstance(self._root, StorePath):
            self._added[path] = num_bytes
