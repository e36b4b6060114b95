"""The right to write to an output that several machines can reach, by conditional creates and nothing else.

`lease/<epoch>.json` names the holder; it is created and never changed. The holder of the highest epoch has the lease.
It writes `lease/<epoch>.beat` every `BEAT_SECONDS`. Taking over means to create the next epoch. That is allowed

* at once, if the holder has released the lease, or its process ran on this machine and is dead, or the user says so;
* otherwise after `EXPIRY_SECONDS` without a new beat, as seen and timed by the contender alone: no clocks are compared.

A holder that was only slow, or cut off, may go on writing for a while. It does no harm: its files have names with its
own epoch, no receipt of the new holder names them, and its manifest is refused, because the manifest is only replaced
in the version that was seen when the lease was taken.

`hold_output` is the one door for runs: a lease where several machines can write, on stores and on file systems that
they may share (where a `flock` may hold on one machine only), and a `flock` everywhere else.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import FolderLockedError, LeaseLostError, RemoteStoreError, UsageError
from gristmill.storage.commit import PendingFile
from gristmill.storage.folders import open_folder
from gristmill.storage.stores.base import ObjectChangedError, ObjectExistsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from gristmill.storage.locations import Location
    from gristmill.storage.stores.base import Store, StoredObject


BEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
_POLL_SECONDS = 2.0
_LEASE_FILE = re.compile(r"(\d{8})\.(json|beat|released)")

_log = logging.getLogger("gristmill")


class Lease:
    """A lease on the folder `prefix` of a store, held from `with` to its end."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        take_over: bool = False,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._takes_over = take_over
        self._sleep = sleep
        self._clock = clock
        self._beat_seconds = beat_seconds
        self._holder = describe_process()
        self.epoch = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_lost = False

    def __enter__(self) -> Self:
        last = self._find_last_epoch()
        if last == 0:
            _probe(self._store, self._prefix)
        else:
            self._wait_until_free(last)
        self._create(last + 1)
        self._thread = threading.Thread(target=self._beat, name="gristmill-lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if not self.is_lost:
            try:
                self._store.put(self._key(self.epoch, "released"), b"released")  # listings ask for empty objects again
                self._store.delete([self._key(self.epoch, "beat")])
            except (RemoteStoreError, OSError) as error:  # what the run was about has succeeded or failed by itself
                _log.warning(
                    "the lease could not be released, so another machine waits for its end: %s", _first_line(error)
                )

    def check(self) -> None:
        """Raise `LeaseLostError` if another run has taken over."""
        if self.is_lost or self._is_taken_over():
            self.is_lost = True
            raise LeaseLostError(
                f"another run has taken over {self._store.url(self._prefix)}",
                help="nothing was deleted, and nothing of the other run was touched; look there for its result",
            )

    def remove_old_files(self) -> None:
        """Remove the files of earlier epochs; the number of the last one is kept, because names depend on it."""
        self._store.delete(
            [entry.key for entry in self._list_files() if int(entry.key.rpartition("/")[2][:8]) < self.epoch]
        )

    def _is_taken_over(self) -> bool:
        """Whether there is a later epoch. The next one may be gone: a later holder has cleaned up."""
        return self._find_last_epoch() > self.epoch

    def _find_last_epoch(self) -> int:
        return max((int(entry.key.rpartition("/")[2][:8]) for entry in self._list_files()), default=0)

    def _list_files(self) -> list[StoredObject]:
        entries = [entry for entry in self._store.list_folder(self._prefix) if not isinstance(entry, str)]
        return [entry for entry in entries if _LEASE_FILE.fullmatch(entry.key.rpartition("/")[2])]

    def _wait_until_free(self, epoch: int) -> None:
        """Return when the lease may be taken from its last holder.

        Raises:
            FolderLockedError: The holder lives.
        """
        if self._exists(epoch, "released") or self._takes_over:
            return
        holder = self._read_holder(epoch)
        if holder is not None and holder.is_on_this_machine():
            if holder.is_dead():
                return
            raise self._make_locked_error(holder)
        _log.warning(
            "%s was in use by %s: waiting up to %.0f s to see whether that run is alive; --take-over does not wait",
            self._store.url(self._prefix),
            holder or "another run",
            EXPIRY_SECONDS,
        )
        last_beat, since = self._read_beat(epoch), self._clock()
        while self._clock() - since < EXPIRY_SECONDS:
            self._sleep(_POLL_SECONDS)
            if self._exists(epoch, "released"):
                return
            if self._read_beat(epoch) != last_beat or self._exists(epoch + 1):
                raise self._make_locked_error(holder)

    def _create(self, epoch: int) -> None:
        try:
            self._store.put(self._key(epoch), msgspec.json.encode(self._holder), create=True)
        except ObjectExistsError:
            # A create that succeeded may have been asked again, because its answer was lost.
            holder = self._read_holder(epoch)
            if holder != self._holder:
                raise self._make_locked_error(holder) from None
        self.epoch = epoch

    def _beat(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                if self._is_taken_over():
                    self.is_lost = True
                    return
                number += 1
                self._store.put(self._key(self.epoch, "beat"), f"{self._holder.token} {number}".encode())
            except (RemoteStoreError, OSError) as error:  # the next may come through; others wait for six of them
                _log.warning("a heartbeat failed: %s", _first_line(error))
            self._stopping.wait(self._beat_seconds)

    def _key(self, epoch: int, suffix: str = "json") -> str:
        return f"{self._prefix}/{epoch:08d}.{suffix}"

    def _exists(self, epoch: int, suffix: str = "json") -> bool:
        try:
            self._store.head(self._key(epoch, suffix))
        except FileNotFoundError:
            return False
        return True

    def _read_beat(self, epoch: int) -> bytes:
        try:
            return bytes(self._store.read(self._key(epoch, "beat")))
        except FileNotFoundError:
            return b""

    def _read_holder(self, epoch: int) -> Holder | None:
        try:
            return msgspec.json.decode(self._store.read(self._key(epoch)), type=Holder)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _make_locked_error(self, holder: Holder | None) -> FolderLockedError:
        folder = self._store.url(self._prefix)
        return FolderLockedError(
            f"{folder} is in use by {holder or 'another process'}",
            help="wait for it to end, or choose another output",
            pid=holder.pid if holder is not None else None,
            host=holder.host if holder is not None else None,
        )


def _probe(store: Store, prefix: str) -> None:
    """Refuse a store that does not keep what the protocol needs: creates, conditional replaces, current listings."""
    key = f"{prefix}/probe-{describe_process().token}"
    problem = ""
    try:
        version = store.put(key, b"1", create=True)
    except ObjectExistsError:  # the name is random, so this is a create whose answer was lost
        version = store.head(key).version
    try:
        if not _is_refused(lambda: store.put(key, b"2", create=True)):
            problem = "it lets two writers create one object"
        elif not _is_refused(lambda: store.put(key, b"3", replaces=f"{version}0")):
            problem = "it replaces an object that has changed"
        elif key not in [entry.key for entry in store.list_folder(prefix) if not isinstance(entry, str)]:
            problem = "its listings are not current"
    finally:
        store.delete([key])
    if problem:
        raise UsageError(
            f"{store.url(prefix)}: the store cannot be used for output: {problem}",
            help="use a store with conditional writes (AWS, Google, Azure, MinIO, Ceph, SeaweedFS), or a shared folder",
        )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _is_refused(request: Callable[[], object]) -> bool:
    try:
        request()
    except (ObjectExistsError, ObjectChangedError):
        return True
    return False


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a lease."""

    token: str
    """Random: distinguishes one holder from another with certainty."""
    host: str
    boot_id: str
    """Changes when the machine is started again."""
    pid_namespace: str
    """Processes of two containers may have the same number."""
    pid: int
    started: str
    """When the process was started, in ticks since the machine was: numbers of processes are used again."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_on_this_machine(self) -> bool:
        """Whether its process could be seen from here."""
        return bool(self.boot_id) and _where(self) == _where(describe_process())

    def is_dead(self) -> bool:
        """Whether its process ran on this machine and has ended."""
        return self.is_on_this_machine() and _read_start(self.pid) != self.started


def describe_process() -> Holder:
    """Describe this process, with a new token."""
    return Holder(
        token=secrets.token_hex(16),
        host=socket.gethostname(),
        boot_id=_read_text("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_read_link("/proc/self/ns/pid"),
        pid=os.getpid(),
        started=_read_start(os.getpid()),
    )


def _where(holder: Holder) -> tuple[str, str, str]:
    return holder.host, holder.boot_id, holder.pid_namespace


def _read_start(pid: int) -> str:
    """Return the start time of a process; empty if there is none. The name in the second field may hold anything."""
    fields = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if not fields or fields[0] in "ZX":  # a zombie does nothing any more
        return ""
    return fields[19]


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _read_link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


class HeldOutput:
    """An output that only this run may write."""

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
        store, key = open_folder(self._folder).open_store()
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
    lock = open_folder(folder).lock()
    if lock is not None:
        with lock:
            yield HeldOutput(folder, sealed_name, None)
        return

    store, key = open_folder(folder).open_store()
    with Lease(store, f"{key}/{lease_folder}" if key else lease_folder, take_over=take_over) as lease:
        yield HeldOutput(folder, sealed_name, lease)
