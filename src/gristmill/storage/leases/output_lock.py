"""One run for each output: `flock` where one machine writes, a lease where several can."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import LeaseLostError
from gristmill.storage.commit import PendingFile
from gristmill.storage.leases.file_systems import is_shared_file_system
from gristmill.storage.lock import FolderLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gristmill.storage.leases.lease import Lease
    from gristmill.storage.locations import Location
    from gristmill.storage.stores.base import Store


class HeldOutput:
    """An output that this run may write, and nobody else."""

    def __init__(self, folder: Location, sealed_name: str, lease: Lease | None) -> None:
        self._folder = folder
        self._sealed_name = sealed_name
        self._lease = lease
        self.run_id = secrets.token_hex(6) if lease is None else f"{lease.epoch:08d}"
        self._version = None if lease is None else self._find_version()

    def check(self) -> None:
        """Raise `LeaseLostError` if another run has taken over."""
        if self._lease is not None:
            self._lease.check()

    def replace_sealed_file(self, pieces: Iterable[bytes]) -> None:
        """Write the file that makes everything else visible, if it is still the one that was seen at the start."""
        if self._lease is None:
            with PendingFile(self._folder / self._sealed_name, self.run_id) as file:
                for piece in pieces:
                    file.write(piece)
                file.commit()
            return
        content = b"".join(pieces)
        self._lease.check()
        store, key = self._find_sealed_file()
        from gristmill.storage.stores.base import ObjectChangedError, ObjectExistsError  # noqa: PLC0415

        try:
            store.put(key, content, create=self._version is None, replaces=self._version)
        except (ObjectExistsError, ObjectChangedError) as error:
            # A write that succeeded may have been asked again, because its answer was lost.
            if store.read(key) != content:
                raise LeaseLostError(
                    f"{store.url(key)} was written by another run",
                    help="nothing was deleted; look there for its result",
                ) from error

    def release_old_epochs(self) -> None:
        """Remove the files of earlier leases."""
        if self._lease is not None:
            self._lease.remove_old_files()

    def _find_sealed_file(self) -> tuple[Store, str]:
        store, key = open_folder_store(self._folder)
        return store, f"{key}/{self._sealed_name}" if key else self._sealed_name

    def _find_version(self) -> str | None:
        store, key = self._find_sealed_file()
        try:
            return store.head(key).version
        except FileNotFoundError:
            return None


@contextmanager
def hold_output(
    folder: Location, sealed_name: str, lease_folder: str, *, take_over: bool = False
) -> Iterator[HeldOutput]:
    """Hold an output folder, which exists; `sealed_name` is the file that is replaced last."""
    if isinstance(folder, Path) and not is_shared_file_system(folder):
        with FolderLock(folder):
            yield HeldOutput(folder, sealed_name, None)
        return
    from gristmill.storage.leases.lease import Lease  # noqa: PLC0415  (most outputs are local)

    store, key = open_folder_store(folder)
    with Lease(store, f"{key}/{lease_folder}" if key else lease_folder, take_over=take_over) as lease:
        yield HeldOutput(folder, sealed_name, lease)


def open_folder_store(folder: Location) -> tuple[Store, str]:
    """Return a folder as a store, and the folder's own key in it."""
    if not isinstance(folder, Path):
        return folder.open_store()
    from gristmill.storage.stores.posix_store import PosixStore  # noqa: PLC0415

    return PosixStore(folder), ""
