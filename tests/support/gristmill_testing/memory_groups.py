"""A control group with a memory limit, for one test: a child of our own group, removed afterwards."""

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from gristmill_testing.watching import wait_until

_ROOT = Path("/sys/fs/cgroup")


def _own_group():
    """Our own memory group and whether it is of version 2. Skips the test where there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError as error:
        pytest.skip(f"no control groups here: {error}")
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder = _ROOT / "memory" / path.lstrip("/")
            if folder.is_dir():
                return folder, False
    for line in lines:
        if line.startswith("0::"):
            folder = _ROOT / line[3:].lstrip("/")
            if "memory" in _text(folder / "cgroup.subtree_control").split():
                return folder, True
    pytest.skip("no memory control group of ours takes children")


def _text(path):
    try:
        return path.read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def limited(num_bytes):
    """A new group below our own. Skips the test where we may not make one."""
    parent, is_v2 = _own_group()
    group = parent / f"gristmill-test-{uuid.uuid4().hex[:12]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups are not writable here: {error}")
    try:
        try:
            (group / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(num_bytes))
            swap = group / ("memory.swap.max" if is_v2 else "memory.memsw.limit_in_bytes")
            if swap.exists():
                swap.write_text("0" if is_v2 else str(num_bytes))
        except OSError as error:
            pytest.skip(f"control groups cannot be limited here: {error}")
        yield group
    finally:
        wait_until(lambda: not _text(group / "cgroup.procs").strip(), "the end of all processes of the group")
        group.rmdir()


def run_inside(group, *arguments, seconds=100, **options):
    """Run the interpreter as a member of the group from its first instruction."""
    return subprocess.run(
        [
            "/bin/sh",
            "-c",
            'echo $$ > "$0" && exec "$@"',
            str(group / "cgroup.procs"),
            sys.executable,
            *map(os.fspath, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=seconds,
        **options,
    )
