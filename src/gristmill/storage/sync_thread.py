"""Syncing in a thread: files that are written reach the disk while the next ones are being made.

A sync takes as long as the disk needs for the data, 0.1 to 0.5 s for the shards of a unit, and no processor. So workers
give their files names without waiting (`PendingFile.commit(sync=False)`), and one thread of the parent process waits
for the disk. Only when the files and their folders are synced does the owner hear of it, and may write down that they
are there. Everything that is waiting is synced together: one commit of the file system's journal serves many files.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from gristmill.storage.commit import sync_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gristmill.storage.locations import Location

Item = TypeVar("Item")

_MAX_WAITING = 256
"""How many items may wait before `add` waits too: a disk that is too slow must slow down the work."""


class SyncThread(Generic[Item]):
    """Syncs the files of items, then calls `on_synced` with each item, in order, in a thread of its own.

    Leaving the context waits for all items. An error of the disk is raised by the next `add`, or on leaving.
    """

    def __init__(self, on_synced: Callable[[Item], None]) -> None:
        self._on_synced = on_synced
        self._changed = threading.Condition()
        self._waiting: list[tuple[Item, Sequence[Location]]] = []
        self._is_closing = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            self._raise_error()

    def add(self, item: Item, paths: Sequence[Location]) -> None:
        """Sync these files soon; they must not change any more."""
        with self._changed:
            while len(self._waiting) >= _MAX_WAITING and self._error is None:
                self._changed.wait()
            self._raise_error()
            self._waiting.append((item, paths))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gristmill-sync")
                self._thread.start()

    def _run(self) -> None:
        while batch := self._take_waiting():
            try:
                sync_files(path for _, paths in batch for path in paths)
                for item, _ in batch:
                    self._on_synced(item)
            except BaseException as error:  # it is raised where the run can end
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return

    def _take_waiting(self) -> list[tuple[Item, Sequence[Location]]]:
        """Wait for items; none are left only at the end."""
        with self._changed:
            while not self._waiting and not self._is_closing:
                self._changed.wait()
            batch, self._waiting = self._waiting, []
            self._changed.notify_all()
            return batch

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
