"""Pinning: which CPUs each worker may use, and from which NUMA node its memory should come.

`cores` gives each worker one CPU. `numa` gives it the CPUs of one node, and spreads workers over the nodes in
proportion to their CPUs: memory of another node takes up to twice as long to reach, and the kernel moves a worker to
another node whenever that one has an idle CPU. Only CPUs that this process may use are chosen: the kernel's answer
already follows an affinity mask (`taskset`) and the CPU set of a container. Reads a few small files.
"""

from __future__ import annotations

import functools
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gristmill.core.errors import UsageError
from gristmill.core.names import check_choice
from gristmill.engine.machine import resources
from gristmill.engine.worker import binding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Pin = Literal["none", "cores", "numa"]
PINS = ("none", "cores", "numa")
_NODES = Path("/sys/devices/system/node")

_log = logging.getLogger("gristmill")


@dataclass(frozen=True, slots=True)
class Pinning:
    """The places for workers, or the reason why there are none."""

    places: tuple[binding.Place, ...] = ()
    """A worker takes the place with its number; there may be more workers than places. Empty: not pinned."""
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
    if not binding.can_bind_cpus():
        return Pinning(note="workers are not pinned: this system does not let a process choose its CPUs")
    if pin == "cores":
        return Pinning(tuple(binding.Place((cpu,)) for cpu in usable_cpus))
    nodes = find_nodes(usable_cpus, nodes_folder)
    if len(nodes) < 2:
        return Pinning(note="workers are not pinned: all CPUs that may be used are in one NUMA node")
    if binding.can_bind_memory():
        return Pinning(tuple(binding.Place(nodes[node], node) for node in _take_turns(nodes)))
    note = "workers are pinned to the CPUs of NUMA nodes, but this system does not let a process choose its memory"
    return Pinning(tuple(binding.Place(nodes[node]) for node in _take_turns(nodes)), note)


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


def _take_turns(nodes: dict[int, tuple[int, ...]]) -> list[int]:
    """List a node once for each of its CPUs, such that the first places are spread over all nodes.

    >>> _take_turns({0: (0, 1), 1: (2, 3)})
    [0, 1, 0, 1]
    """
    turns = [((number + 1) / len(cpus), node) for node, cpus in nodes.items() for number in range(len(cpus))]
    return [node for _, node in sorted(turns)]


def choose_machine_places(pin: Pin) -> Pinning:
    """Choose the places of workers on this machine, and tell the user once if less is done than was asked for."""
    pinning = choose_places(pin, resources.find_usable_cpus())
    if pinning.note:
        _warn_once(f"pin={pin}: {pinning.note}")
    return pinning


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning(message)
