"""Looking at the world from outside: waiting for conditions, and finding what a job has left behind."""

import gc
import os
import re
import threading
import time
from pathlib import Path

import psutil

MARK = "GRISTMILL_TEST_MARK"
HANG_SECONDS = 240.0
"""After this a condition that should have come true is a hang. Never a measure of speed."""


def wait_until(condition, what="the condition", seconds=HANG_SECONDS):
    """Poll until `condition()` is true and give its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.005)
    return value


def wait_for_file(path, seconds=HANG_SECONDS):
    """Wait until a file exists; also used by functions inside workers."""
    wait_until(Path(path).exists, f"file {path}", seconds)


def wait_for_files(folder, number, pattern="*"):
    """Wait until a folder holds this many files and give their names, sorted."""

    def names():
        found = sorted(path.name for path in Path(folder).glob(pattern))
        return found if len(found) >= number else None

    return wait_until(names, f"{number} files {pattern} in {folder}")


def sign(folder, name):
    """Leave a sign: an empty file. Atomic, and it outlives the process that left it."""
    Path(folder, str(name)).touch()


def count_and_sign(folder, name):
    """How often this has been called before for `name`, in any process. Not for two processes at the same time."""
    number = len(list(Path(folder).glob(f"{name}.*")))
    sign(folder, f"{name}.{number}")
    return number


def meet(folder, number):
    """Wait until `number` different processes (or threads) are here, so that each of them has work."""
    sign(folder, f"met-{os.getpid()}-{threading.get_ident()}")
    wait_for_files(folder, number, "met-*")


def marked_processes(mark):
    """All living processes that carry the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if wanted in Path("/proc", name, "environ").read_bytes() and is_alive(int(name)):
                    found.append(psutil.Process(int(name)))
            except (psutil.Error, OSError):
                continue
    return found


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_files():
    """What each file descriptor of this process leads to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def _shared_memory():
    try:
        return set(os.listdir("/dev/shm"))
    except FileNotFoundError:
        return set()


def _is_anothers(name):
    """Some living process has the shared memory open, or has its number in the name. Others use this machine too."""
    if any(psutil.pid_exists(int(number)) for number in re.findall(r"\d{2,9}", name)):
        return True
    try:
        inode = os.stat(f"/dev/shm/{name}").st_ino  # its name in the maps may be an earlier one
    except OSError:
        return True
    mapped = re.compile(rf" {inode} +/dev/shm/")
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mapped.search(Path("/proc", process, "maps").read_text()):
                return True
            if any(fd.stat().st_ino == inode for fd in Path("/proc", process, "fd").iterdir()):
                return True
        except OSError:
            continue
    return False


class Leftovers:
    """What is there before a test, to be compared with what is there afterwards."""

    def __init__(self, mark, folder):
        self._mark = mark
        self._folder = folder
        self._files = open_files()
        self._children = {child.pid for child in psutil.Process().children()}
        self._threads = set(threading.enumerate())
        self._shared_memory = _shared_memory()

    def found(self):
        """Everything new that is certainly ours, in words."""
        files = {fd: path for fd, path in open_files().items() if self._files.get(fd) != path}
        children = [child for child in psutil.Process().children() if child.pid not in self._children]
        new_threads = set(threading.enumerate()) - self._threads
        threads = [thread for thread in new_threads if thread.name.startswith("gristmill")]
        return (
            [f"process {process}" for process in marked_processes(self._mark)]
            + [f"child {child}" for child in children]
            + [f"thread {thread}" for thread in threads]
            + [f"file descriptor {fd} -> {path}" for fd, path in files.items()]
            + [f"temporary file {path}" for path in self._folder.rglob("*")]
        )

    def check(self, seconds=10.0):
        """Fail if something stays. Shared memory counts if it has been there all the time and belongs to nobody."""
        deadline = time.monotonic() + seconds
        names = {name for name in _shared_memory() - self._shared_memory if not _is_anothers(name)}
        found = self.found()
        if found:
            gc.collect()
        while (found or names) and time.monotonic() < deadline:
            time.sleep(0.02)
            found = self.found()
            names &= {name for name in _shared_memory() if not _is_anothers(name)}
        for process in marked_processes(self._mark):  # the next test is not to suffer
            process.kill()
        found += [f"shared memory {name}" for name in names]
        assert not found, "left behind: " + "; ".join(found)
