"""One run per folder: an advisory lock that the system releases when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import FolderLockedError
from gristmill.storage.locations import open_stored, path_below

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LOCK_NAME = ".gristmill-lock"
_SHARED = re.compile(
    r"nfs\d?|lustre|gpfs|ceph|beegfs|glusterfs|wekafs|panfs|cifs|smb\d?|smbfs|afs|orangefs|pvfs2|ocfs2|gfs2"
    r"|9p|virtiofs|fuse(\..+)?"
)


class FolderLock:
    """A lock on a folder that this process holds, from `with` to its end.

    The lock is the `flock`. The file's content, pid and host, is only for the message, so a file that a dead run left
    locks nothing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / LOCK_NAME
        self._fd: int | None = None

    def __enter__(self) -> Self:
        holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
        while self._fd is None:
            fd = open_stored(path_below(self.path.parent, LOCK_NAME), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._fd = fd
                # The last holder may have removed the file between our open and our lock. Then we have locked a file
                # that has no name, while the next process would create and lock a new one: open it again.
                if _is_same_file(fd, self.path):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, holder, 0)
                else:
                    os.close(fd)
                    self._fd = None
            except BlockingIOError as error:
                raise _make_locked_error(self.path.parent, fd) from error
            except BaseException:  # a signal, too
                if self._fd is None:
                    os.close(fd)
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._fd is not None:
            # Removed while it is locked, so no other process can hold this file. A process that has opened it already
            # notices in `__enter__` that it is gone.
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None

    def is_held(self) -> bool:
        """Whether a process holds the lock; for display, not for deciding who may write."""
        try:
            fd = open_stored(path_below(self.path.parent, LOCK_NAME))
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


def is_shared_file_system(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder, which may not exist yet, is on a file system that other machines may write to."""
    return _SHARED.fullmatch(find_file_system(folder)) is not None


def find_file_system(folder: str | os.PathLike[str], mounts: str | None = None) -> str:
    """Return the type of a folder's file system, as `/proc/self/mountinfo` names it; empty if that is not known."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return ""
    path = os.path.realpath(folder) + "/"
    best, kind = -1, ""
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), head.split()[4]).rstrip("/") + "/"
        if path.startswith(point) and len(point) >= best:  # a later mount hides an earlier one
            best, kind = len(point), tail.split()[0]
    return kind


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _make_locked_error(folder: Path, fd: int) -> FolderLockedError:
    with os.fdopen(fd, "rb") as file:
        content = file.read()
    try:
        holder = json.loads(content)
        pid, host = holder["pid"], holder["host"]
        holder_name = f"process {pid} on {host}"
    except (ValueError, KeyError, TypeError):  # the holder has not written its name yet
        pid = host = None
        holder_name = "another process"
    return FolderLockedError(
        f"{folder} is in use by {holder_name}",
        help="wait for it to end, or choose another output folder",
        pid=pid,
        host=host,
    )
