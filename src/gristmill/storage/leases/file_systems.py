"""Which file systems several machines may share: there a `flock` may hold on one machine only."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SHARED = re.compile(
    r"nfs\d?|lustre|gpfs|ceph|beegfs|glusterfs|wekafs|panfs|cifs|smb\d?|smbfs|afs|orangefs|pvfs2|ocfs2|gfs2"
    r"|9p|virtiofs|fuse(\..+)?"
)


def is_shared_file_system(folder: str | os.PathLike[str]) -> bool:
    """Tell whether a folder, which may not exist yet, is on a file system that other machines may write to."""
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
