"""The cores and the memory that this process may use, under the kernel's limits, and the CPUs of each worker.

The one door to psutil. Containers are limited by control groups (v1 or v2). A limit may be set on any ancestor of this
process's group, so all of them are read: a few small files, and nothing is cached, since limits and usage change. A job
checks once a second (`MemoryWatch`) how many workers fit, which one has grown too large, and whether the kernel has
killed one.

Pinning: `cores` gives each worker one CPU. `numa` gives it the CPUs of one node, and spreads workers over the nodes in
proportion to their CPUs: memory of another node takes up to twice as long to reach, and the kernel moves a worker to
another node whenever that one has an idle CPU. A process that stays on one node also gets its memory there: that is
where the kernel looks first. Only CPUs that this process may use are chosen: the kernel's answer already follows an
affinity mask (`taskset`) and the CPU set of a container.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

from gristmill.core.checks import check_choice
from gristmill.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Pin = Literal["none", "cores", "numa"]
PINS = ("none", "cores", "numa")
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
# Cgroup v1 writes "no limit" as a number near 2^63.
_UNLIMITED_BYTES = 1 << 60
_NODES = Path("/sys/devices/system/node")
_CHECK_SECONDS = 1.0
_SHRINK_SECONDS = 5.0  # a worker that was stopped needs a moment to release its memory
_SHORT_BELOW = 0.05
"""The share of the limit below which memory is short."""
_WORKERS_SHARE = 0.8
"""The share of memory that all workers together may use; the rest is for the caller and the system."""
_GROWTH_ALLOWED = 1.5

_log = logging.getLogger("gristmill")


def find_usable_cpus(topology: Path = _CPUS) -> list[int]:
    """Find the CPUs that this process may run on, one of each physical core first."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    cpus = sorted(os.sched_getaffinity(0))
    cores: dict[str, list[int]] = {}
    for cpu in cpus:
        cores.setdefault(_read(topology / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu), []).append(cpu)
    return sorted(cpus, key=lambda cpu: next(core.index(cpu) for core in cores.values() if cpu in core))


def count_physical_cores(topology: Path = _CPUS) -> int:
    """Count the physical cores among the usable CPUs."""
    siblings = [_read(topology / f"cpu{cpu}/topology/thread_siblings_list") for cpu in find_usable_cpus()]
    if all(siblings):
        return len(set(siblings))
    import psutil  # noqa: PLC0415

    return psutil.cpu_count(logical=False) or len(siblings)


def read_cpu_quota(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Read how many CPUs' worth of time the control groups allow; infinite without a limit."""
    quota = math.inf
    for group in _find_groups("cpu", proc, cgroups):
        allowed, _, period = (_read(group / "cpu.max") or "max").partition(" ")  # v2: "150000 100000"
        if allowed != "max":
            quota = min(quota, int(allowed) / int(period))
        v1_quota = int(_read(group / "cpu.cfs_quota_us") or -1)
        if v1_quota > 0:
            quota = min(quota, v1_quota / int(_read(group / "cpu.cfs_period_us") or 100_000))
    return quota


def choose_num_workers(cpus: int, cores: int, quota: float) -> int:
    """Choose the smallest of the three, at least one. A quota of 1.5 CPUs keeps two workers busy 3/4 of the time."""
    return max(1, min(cpus, cores, math.ceil(quota) if math.isfinite(quota) else cpus))


def count_usable_workers() -> tuple[int, str]:
    """Count the workers that this machine keeps busy, and say what limits them: its `cores`, or the `quota`."""
    cpus, cores, quota = len(find_usable_cpus()), count_physical_cores(), read_cpu_quota()
    num_workers = choose_num_workers(cpus, cores, quota)
    return num_workers, "quota" if num_workers < min(cpus, cores) else "cores"


def read_memory_limit(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Read how many bytes this process and its children may use together."""
    return min(_read_machine_memory()[0], *(limit for limit, _ in _read_memory_groups(proc, cgroups)), _UNLIMITED_BYTES)


def read_memory_available(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Read how many bytes are left before a limit is reached. Page cache counts as free: the kernel drops it."""
    remainders = [limit - used for limit, used in _read_memory_groups(proc, cgroups)]
    return max(0, min(_read_machine_memory()[1], *remainders, _UNLIMITED_BYTES))


def read_pressure(kind: Literal["cpu", "io"], proc: Path = _PROC) -> float | None:
    """Read the share of the last ten seconds in which a task waited for a CPU or a disk; None where it is not counted.

    Linux counts it as pressure stall information. The load average follows a minute later, and counts both as one.
    """
    average = re.search(r"some avg10=([\d.]+)", _read(proc / "pressure" / kind) or "")
    return float(average[1]) / 100 if average else None


def count_oom_kills(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Count the kernel's out-of-memory kills, in our control group if it counts them, else on the machine."""
    for group in _find_groups("memory", proc, cgroups):
        for name in ("memory.events", "memory.oom_control"):
            counts = _read_table(group / name)
            if "oom_kill" in counts:
                return counts["oom_kill"]
    return _read_table(proc / "vmstat").get("oom_kill", 0)


def read_process_bytes(pid: int) -> int:
    """Read the resident memory of a process; 0 if it has ended, or is not known."""
    pages = _read(_PROC / str(pid) / "statm")
    if pages:
        return int(pages.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if _PROC.joinpath("self").exists():
        return 0
    import psutil  # noqa: PLC0415

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):  # it has ended, or Linux has no /proc
        return 0


def read_process_cpu_seconds(pid: int) -> float:
    """Read the CPU time of a process; 0 if it has ended."""
    import psutil  # noqa: PLC0415

    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError):  # it has ended, or Linux has no /proc
        return 0.0
    return float(times.user + times.system)


def read_process_use(pid: int) -> tuple[float, int]:
    """Read the CPU seconds and the largest resident memory of a process so far; zeros if it has ended."""
    stat, status = _read(_PROC / str(pid) / "stat"), _read_table(_PROC / str(pid) / "status")
    if stat and "VmHWM:" in status:
        ticks = stat.rpartition(")")[2].split()[11:13]  # after the name, which may hold anything
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), status["VmHWM:"] << 10
    return read_process_cpu_seconds(pid), read_process_bytes(pid)


def _read_machine_memory() -> tuple[int, int]:
    """Read total and available bytes of the machine."""
    info = _read_table(_PROC / "meminfo")
    if "MemTotal:" in info and "MemAvailable:" in info:
        return info["MemTotal:"] * 1024, info["MemAvailable:"] * 1024
    import psutil  # noqa: PLC0415

    try:
        memory = psutil.virtual_memory()
    except OSError:  # Linux without /proc
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total
    return int(memory.total), int(memory.available)


def _read_memory_groups(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Read `(limit, used without page cache)` of each control group that has a limit."""
    for group in _find_groups("memory", proc, cgroups):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit and used and limit != "max" and int(limit) < _UNLIMITED_BYTES:
            cache = _read_table(group / "memory.stat")
            yield int(limit), int(used) - cache.get("total_inactive_file", cache.get("inactive_file", 0))


def _find_groups(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Find our control group and its ancestors, innermost first, for v2 and for the v1 controller."""
    for line in (_read(proc / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)  # "0::/user.slice" (v2) or "4:memory:/docker/ab12" (v1)
        if controllers == "":
            roots = [cgroups, cgroups / "unified"]
        elif controller in controllers.split(","):
            roots = [cgroups / controller, cgroups / controllers]
        else:
            continue
        for root in roots:
            # Inside a container the path may be the host's and not exist here; the root is then our group.
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root) and folder.is_dir():
                    yield folder


def _read_table(path: Path) -> dict[str, int]:
    """Read a file of lines like `oom_kill 3` or `MemTotal:  24 kB`."""
    rows = (line.split() for line in (_read(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


class MemoryWatch:
    """Compares the memory of a job with the limits of the machine and its control groups."""

    def __init__(self) -> None:
        self._limit = read_memory_limit()
        self._num_kills = count_oom_kills()
        self._last_check = self._last_shrink = monotonic()

    def is_due(self) -> bool:
        """Whether a second has passed since this was last true."""
        now = monotonic()
        if now - self._last_check < _CHECK_SECONDS:
            return False
        self._last_check = now
        return True

    def size_of(self, pid: int) -> int:
        """Return the resident memory of a process in bytes."""
        return read_process_bytes(pid)

    def count_fitting_workers(self, worker_bytes: int, max_workers: int) -> int:
        """Count the workers of this size that fit, one of them running already: from 1 to `max_workers`."""
        num_more = int(_WORKERS_SHARE * read_memory_available()) // max(worker_bytes, 1)
        return max(1, min(max_workers, 1 + num_more))

    def is_too_large(self, size: int, size_after_setup: int, num_workers: int) -> bool:
        """Whether a worker is above its share of memory, and not merely because its set-up is that large."""
        return size > _WORKERS_SHARE * self._limit / num_workers and size > _GROWTH_ALLOWED * size_after_setup

    def is_short(self) -> bool:
        """Whether memory is nearly used up; true at most every few seconds."""
        now = monotonic()
        if now - self._last_shrink < _SHRINK_SECONDS or read_memory_available() > _SHORT_BELOW * self._limit:
            return False
        self._last_shrink = now
        return True

    def has_oom_killer_fired(self) -> bool:
        """Whether the kernel has killed a process for lack of memory since the last call."""
        num_kills, self._num_kills = self._num_kills, count_oom_kills()
        return self._num_kills > num_kills


@dataclass(frozen=True, slots=True)
class Pinning:
    """The places for workers, or the reason why there are none."""

    places: tuple[tuple[int, ...], ...] = ()
    """CPUs: a worker takes the place with its number; there may be more workers than places. Empty: not pinned."""
    note: str = ""
    """A message for the user if less is done than was asked for."""


def parse_pin(value: object) -> Pin:
    """Return the word for `pin`; True is `cores` and False is `none`.

    >>> parse_pin(True), parse_pin("numa")
    ('cores', 'numa')
    """
    if isinstance(value, bool):
        return "cores" if value else "none"
    check_choice("pin", value, PINS)
    if value != "none" and sys.platform != "linux":
        raise UsageError(
            f"pin={value!r} needs Linux: other systems do not let a process choose its CPU", help='use pin="none"'
        )
    return value  # type: ignore[return-value]


def choose_places(pin: Pin, usable_cpus: Sequence[int], nodes_folder: Path = _NODES) -> Pinning:
    """Choose the places of workers among the CPUs that this process may use."""
    if pin == "none":
        return Pinning()
    if not _can_bind_cpus():
        return Pinning(note="workers are not pinned: this system does not let a process choose its CPUs")
    if pin == "cores":
        return Pinning(tuple((cpu,) for cpu in usable_cpus))
    nodes = find_nodes(usable_cpus, nodes_folder)
    if len(nodes) < 2:
        return Pinning(note="workers are not pinned: all CPUs that may be used are in one NUMA node")
    return Pinning(tuple(nodes[node] for node in _take_turns(nodes)))


def find_nodes(usable_cpus: Iterable[int], nodes_folder: Path = _NODES) -> dict[int, tuple[int, ...]]:
    """Find the NUMA nodes that have usable CPUs, with these. Nodes of memory alone have none."""
    usable = frozenset(usable_cpus)
    nodes = {}
    for folder in nodes_folder.glob("node[0-9]*"):
        try:
            number = int(folder.name.removeprefix("node"))
            cpus = parse_cpu_list((folder / "cpulist").read_text())
        except (OSError, ValueError):  # what has another name is no node
            continue
        if usable.intersection(cpus):
            nodes[number] = tuple(sorted(usable.intersection(cpus)))
    return dict(sorted(nodes.items()))


def parse_cpu_list(text: str) -> list[int]:
    """Parse the kernel's form of a set of CPUs.

    >>> parse_cpu_list("0-3,8,10-11")
    [0, 1, 2, 3, 8, 10, 11]
    """
    cpus: list[int] = []
    for entry in filter(None, text.strip().split(",")):
        first, _, last = entry.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _can_bind_cpus() -> bool:
    """Whether the system lets this process choose its CPUs: it may choose those that it has."""
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return False
    return True


def _take_turns(nodes: dict[int, tuple[int, ...]]) -> list[int]:
    """List a node once for each of its CPUs, such that the first places are spread over all nodes.

    >>> _take_turns({0: (0, 1), 1: (2, 3)})
    [0, 1, 0, 1]
    """
    turns = [((number + 1) / len(cpus), node) for node, cpus in nodes.items() for number in range(len(cpus))]
    return [node for _, node in sorted(turns)]


def choose_machine_places(pin: Pin) -> Pinning:
    """Choose the places of workers on this machine, and tell the user once if less is done than was asked for."""
    pinning = choose_places(pin, find_usable_cpus())
    if pinning.note:
        _warn_once(f"pin={pin}: {pinning.note}")
    return pinning


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)
