"""Blocks of remote files on the local disk, shared by all processes of a user: fetched once, verified, bounded in size.

A block is written under a name of the process's own, verified and renamed, so no process ever sees half of one. It is
verified again whenever a process opens it. Who wants a block that another process is fetching waits for its `flock`, at
most 10 seconds, then fetches it too. Above the limit, the blocks that were opened longest ago are unlinked; mappings of
them live on. What a killed process was writing has a lock that nobody holds any more, and goes with the next eviction.

A block whose checksum nobody knows in advance, because it is converted from a foreign file, ends with a checksum of its
own (`open_sealed`).

Locks hold on local disks only, so a folder on a shared file system is refused. Only its owner may enter the folder:
others could plant blocks with the right checksum.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from gristmill.core.errors import DamagedDatasetError, UsageError
from gristmill.storage.leases.file_systems import find_file_system, is_shared_file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.02
_NUM_LOCKS = 256
_SEAL_BYTES = 8
_WRITE_BYTES = 256 << 10
"""Written at a time. For one write of a whole block the kernel takes large pieces of memory, which are dear to get."""
_SHARE_BETWEEN_EVICTIONS = 16
"""A process looks for blocks to evict after it has fetched this share of the limit."""


class BlockCache:
    """A folder of blocks. Threads may use it together."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.fetched_bytes = 0
        """What this process has fetched so far."""
        self.num_fetches = 0
        self._fetched_since_eviction = max_bytes  # the first fetch looks what others have left
        self._counting = threading.Lock()
        _prepare_folder(folder)

    def open_block(self, name: str, num_bytes: int, checksum: int, fetch: Callable[[], bytes]) -> int:
        """Return a descriptor of a file that holds the block, verified. The caller closes it.

        Raises:
            DamagedDatasetError: What `fetch` returns has another checksum, twice.
        """
        is_right = partial(_has_checksum, num_bytes, checksum)
        return self._open(name, num_bytes, is_right, lambda: _fetch_verified(num_bytes, checksum, fetch))

    def open_sealed(self, name: str, make: Callable[[], bytes]) -> tuple[int, int]:
        """Return a descriptor of a file that begins with what `make` returns, and how long that is."""
        descriptor = self._open(name, None, _is_sealed, lambda: _seal(make()))
        return descriptor, os.fstat(descriptor).st_size - _SEAL_BYTES

    def _open(
        self, name: str, num_bytes: int | None, is_right: Callable[[Buffer], bool], fetch: Callable[[], bytes]
    ) -> int:
        path = self._find_path(name)
        with _as_usage_error(self.folder):
            descriptor = _open_verified(path, num_bytes, is_right)
        if descriptor is not None:
            return descriptor
        with self._lock_name(name):
            descriptor = _open_verified(path, num_bytes, is_right)  # another process may have fetched it meanwhile
            if descriptor is None:
                descriptor = self._add(path, fetch())
        self._evict_sometimes()
        return descriptor

    def has_block(self, name: str) -> bool:
        """Whether a block is there, as it seems: it may be gone in the next moment."""
        return self._find_path(name).exists()

    def _find_path(self, name: str) -> Path:
        return self.folder / "blocks" / name[:2] / name

    def _add(self, path: Path, data: bytes) -> int:
        with _as_usage_error(self.folder):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary, descriptor = _create_locked(path.parent)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view[:_WRITE_BYTES]) :]
                temporary.replace(path)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            except BaseException:
                os.close(descriptor)
                temporary.unlink(missing_ok=True)
                raise
        with self._counting:
            self.fetched_bytes += len(data)
            self.num_fetches += 1
            self._fetched_since_eviction += len(data)
        return descriptor

    @contextmanager
    def _lock_name(self, name: str) -> Iterator[None]:
        """Hold the lock of a block, unless another process holds it for too long. Few names share a lock."""
        number = xxhash.xxh3_64_intdigest(name.encode()) % _NUM_LOCKS
        path = self.folder / "locks" / f"{number:02x}"
        if not path.parent.exists():
            _prepare_folder(self.folder)  # somebody has cleared it
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = time.monotonic() + _WAIT_SECONDS
            while not _try_lock(descriptor) and time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _evict_sometimes(self) -> None:
        with self._counting:
            if self._fetched_since_eviction < self.max_bytes // _SHARE_BETWEEN_EVICTIONS:
                return
            self._fetched_since_eviction = 0
        descriptor = os.open(self.folder / "locks" / "evict", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _try_lock(descriptor):
                self._evict()
        finally:
            os.close(descriptor)

    def _evict(self) -> None:
        blocks: list[tuple[float, int, str]] = []
        for folder in os.scandir(self.folder / "blocks"):
            for file in os.scandir(folder.path) if folder.is_dir(follow_symlinks=False) else ():
                if not file.is_file(follow_symlinks=False):
                    continue  # no cache has made it
                if file.name.endswith(".tmp"):
                    _remove_abandoned(file.path)
                    continue
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    blocks.append((status.st_mtime, status.st_size, file.path))
        excess = sum(num_bytes for _, num_bytes, _ in blocks) - self.max_bytes
        for _, num_bytes, path in sorted(blocks):
            if excess <= 0:
                return
            Path(path).unlink(missing_ok=True)
            excess -= num_bytes


def _prepare_folder(folder: Path) -> None:
    with _as_usage_error(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_shared_file_system(folder):
            raise UsageError(
                f"the cache of blocks, {folder}, is on a file system that machines may share "
                f"({find_file_system(folder)}), where locks hold on one machine only",
                help="choose a folder on a local disk: cache=",
            )
        status = folder.stat()
        if status.st_uid != os.getuid():
            raise UsageError(
                f"the cache of blocks, {folder}, belongs to another user", help="choose another folder: cache="
            )
        if stat.S_IMODE(status.st_mode) != 0o700:
            names = {path.name for path in folder.iterdir()}
            if names and not names & {"blocks", "locks"}:
                raise UsageError(
                    f"the cache of blocks, {folder}, holds other files, and only its owner may enter a cache",
                    help=f"choose a folder of its own: cache={os.fspath(folder / 'blocks')!r}",
                )
            folder.chmod(0o700)
        for path in (folder / "blocks", folder / "locks"):
            path.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _as_usage_error(folder: Path) -> Iterator[None]:
    """Turn what the disk refuses into an error that names the folder and what to do."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the cache of blocks, {folder}, cannot be used: {error}",
            help="choose another folder, or a smaller size if the disk is full: cache=, cache_bytes=",
        ) from error


def _open_verified(path: Path, num_bytes: int | None, is_right: Callable[[Buffer], bool]) -> int | None:
    """Open a block; None if it is not there, or damaged, and then it is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        path.unlink(missing_ok=True)  # a link, which no cache has made
        return None
    content = _read_all(descriptor, os.fstat(descriptor).st_size if num_bytes is None else num_bytes + 1)
    if is_right(content):
        os.utime(descriptor)  # opened last
        return descriptor
    os.close(descriptor)
    path.unlink(missing_ok=True)
    return None


def _read_all(descriptor: int, most: int) -> bytearray:
    content = bytearray()
    while len(content) < most and (piece := os.read(descriptor, most - len(content))):
        content += piece
    return content


def _has_checksum(num_bytes: int, checksum: int, data: Buffer) -> bool:
    return memoryview(data).nbytes == num_bytes and xxhash.xxh3_64_intdigest(data) == checksum


def _seal(data: bytes) -> bytes:
    return data + xxhash.xxh3_64_digest(data)


def _is_sealed(data: Buffer) -> bool:
    view = memoryview(data)
    return view.nbytes >= _SEAL_BYTES and xxhash.xxh3_64_digest(view[:-_SEAL_BYTES]) == view[-_SEAL_BYTES:]


def _fetch_verified(num_bytes: int, checksum: int, fetch: Callable[[], bytes]) -> bytes:
    data = fetch()
    for may_fetch_again in (True, False):
        if _has_checksum(num_bytes, checksum, data):
            return data
        if may_fetch_again:
            data = fetch()
    raise DamagedDatasetError(
        f"it has {len(data)} bytes with the checksum {xxhash.xxh3_64_hexdigest(data)}, not {num_bytes} with "
        f"{checksum:016x}, and was fetched twice",
        help="run gristmill verify on its dataset",
    )


def _create_locked(folder: Path) -> tuple[Path, int]:
    """Create a file and lock it: as long as the lock is held, nobody removes the file."""
    while True:
        temporary = folder / f".{secrets.token_hex(8)}.tmp"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)  # another process has taken it for abandoned before it was locked


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_abandoned(path: str) -> None:
    """Remove what a killed process was writing: nobody holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        if _try_lock(descriptor):
            Path(path).unlink(missing_ok=True)
    finally:
        os.close(descriptor)
