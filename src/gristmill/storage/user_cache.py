"""Remote files in the user's cache folder: blocks and copies of them, and folders for files on their way elsewhere.

Blocks (`BlockCache`) are shared by all processes of a user: fetched once, verified, bounded in size. A block is written
under a name that only its process has, verified and renamed, so no process ever sees half of one. It is verified again
whenever a process opens it. A process that wants a block that another one is fetching waits for its `flock`, at most 10
seconds, then fetches it too. Above the limit, the blocks that were opened longest ago are unlinked; mappings of them
live on. What a killed process was writing has a lock that no process holds, and goes with the next eviction. A block
whose checksum is not known in advance, because it is converted from a foreign file or is fetched for the first time,
ends with one (`open_sealed`). Locks hold on local disks only, so a folder on a shared file system is refused. Only its
owner may enter the folder: others could plant blocks with the right checksum.

Copies (`copy_locally`) are for readers that map files. A copy is named by its content, so it is never stale, and two
datasets share what they have in common. It is compared with its checksum while it is fetched. Above `_MAX_BYTES` the
copies that were used longest ago are removed. A staging folder (`open_staging_folder`) is locked while it is in use, so
what a killed process has left is recognized and removed by the next one. All may be deleted at any time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from gristmill.core.cache_folders import choose_cache_folder
from gristmill.core.errors import DamagedDatasetError, FolderLockedError, UsageError
from gristmill.storage.commit import PendingFile, make_folder
from gristmill.storage.lock import FolderLock, find_file_system, is_shared_file_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from gristmill.storage.locations import Location, StorePath


_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.02
_NUM_LOCKS = 256
_SEAL_BYTES = 8
_WRITE_BYTES = 256 << 10
"""Written at a time. For one write of a whole block the kernel takes large pieces of memory, which are dear to get."""
_SHARE_BETWEEN_EVICTIONS = 16
"""A process looks for blocks to evict after it has fetched this share of the limit."""
_MAX_BYTES = 64 << 30
_COPY_BYTES = 4 << 20
_folder: Path | None = None
"""The folder of copies that this process has chosen."""


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
        # `join`, because a store returns views, which `+` refuses.
        descriptor = self._open(name, None, _is_sealed, lambda: b"".join((data := make(), xxhash.xxh3_64_digest(data))))
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

    def keep_block(self, name: str, data: bytes, checksum: int) -> None:
        """Add a block that was fetched for another purpose, unless this process has filled the cache already."""
        if self.fetched_bytes + len(data) <= self.max_bytes:
            os.close(self.open_block(name, len(data), checksum, lambda: data))

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
            _prepare_folder(self.folder)  # it was cleared meanwhile
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


def name_block(content: str, offset: int, num_bytes: int) -> str:
    """Return the name of a range of a file; `content` identifies the file with its content."""
    return f"{content}-{offset}-{num_bytes}"


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
                    help=f"choose an empty folder: cache={os.fspath(folder / 'blocks')!r}",
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
            help="choose another folder, or a smaller size if the disk is full: Cache(folder, max_bytes=…)",
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
    """Create a file and lock it: as long as the lock is held, no process removes the file."""
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
    """Remove what a killed process was writing: no process holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        if _try_lock(descriptor):
            Path(path).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def choose_copies_folder(folder: Path | None) -> None:
    """Choose the folder of copies for this process; None: the user's cache folder."""
    global _folder  # noqa: PLW0603  (one setting of the process)
    _folder = folder


def copy_locally(path: Location, num_bytes: int, checksum: str, group: str = "") -> Path:
    """Return a local file with this content: the file itself, or a copy. Copies of one `group` are in one folder.

    Raises:
        DamagedDatasetError: What the store has is something else.
    """
    if isinstance(path, Path):
        return path
    folder = _folder or Path(choose_cache_folder(str(Path.home()), sys.platform, "files"))
    copy = folder / (group or f"{checksum}-{num_bytes}") / path.name
    try:
        if copy.stat().st_size == num_bytes:
            with suppress(OSError):
                os.utime(copy)
            return copy
    except FileNotFoundError:
        pass
    _remove_oldest(copy.parents[1], num_bytes)
    _fetch(path, copy, num_bytes, checksum)
    return copy


def _fetch(path: StorePath, copy: Path, num_bytes: int, checksum: str) -> None:
    with path.open() as stream, PendingFile(copy, "copy") as file:
        while piece := stream.read(_COPY_BYTES):
            file.write(piece)
        if (file.num_bytes, file.checksum) != (num_bytes, checksum):
            raise DamagedDatasetError(
                f"{path} is not what the manifest says: it has {file.num_bytes} bytes, xxh3 {file.checksum}",
                help="run gristmill verify on its dataset",
            )
        file.commit(sync=False)


def _remove_oldest(folder: Path, num_bytes: int) -> None:
    copies = [(file.stat(), file) for file in folder.glob("*/*")] if folder.is_dir() else []
    total = sum(status.st_size for status, _ in copies) + num_bytes
    for status, file in sorted(copies, key=lambda entry: entry[0].st_mtime):
        if total <= _MAX_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= status.st_size


@contextmanager
def open_staging_folder(kind: str) -> Iterator[Path]:
    """Make an empty folder, which is removed at the end with everything in it."""
    parent = Path(choose_cache_folder(str(Path.home()), sys.platform, kind))
    for left in parent.iterdir() if parent.is_dir() else ():
        try:
            with FolderLock(left):
                shutil.rmtree(left)
        except (FolderLockedError, FileNotFoundError):  # in use, or removed by another process
            continue
    folder = parent / secrets.token_hex(8)
    make_folder(folder)
    try:
        with FolderLock(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
