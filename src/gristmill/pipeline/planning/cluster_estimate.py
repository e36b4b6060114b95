"""What a run would take on a cluster: hours, tasks, requests and storage. Estimates for people; they shape no bytes.

The speed is that of one core on the first records of each source. It is assumed to be the same on every core of the
cluster, and storage to be fast enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count
from gristmill.pipeline.planning.units import UNIT_BYTES, choose_cut, choose_tasks_per_message

if TYPE_CHECKING:
    from gristmill.pipeline.planning.outline import Outline

_RANGE_BYTES = 4 << 20
"""The bytes of one request to read."""
_PART_BYTES = 8 << 20
"""The bytes of one request to write."""
_REQUESTS_A_TASK = 2
"""Requests of a task beside those for data: one to begin an upload, one to complete it."""
_DRIVER_SECONDS_A_TASK = 0.00015
_DRIVER_SECONDS_A_MESSAGE = 0.0006
"""Measured with `benchmarks/cluster.py`: a unit, its task and its receipt; a call through Ray and its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEstimate:
    """The cost of a run on a cluster."""

    nodes: int
    cores: int
    """Cores of a node."""
    bytes_a_second: float
    """Unpacked input that one core takes through all steps in a second."""
    core_hours: float
    hours: float
    tasks: int
    driver_hours: float
    """Processor time of the driver: if it is more than `hours`, workers wait for tasks."""
    read_requests: int
    write_requests: int
    storage_bytes: int
    """Work folder and output together, estimated from above."""

    def __str__(self) -> str:
        speed = f"{format_bytes(int(self.bytes_a_second))} a second and core, measured on the first records"
        where = f"{format_count(self.nodes, 'node')} with {format_count(self.cores, 'core')} each"
        lines = [
            f"on {where}: about {self.hours:,.2f} hours",
            f"├── {self.core_hours:,.1f} core-hours ({speed})",
            f"├── {format_count(self.tasks, 'task')}; the driver is busy for {self.driver_hours:,.2f} hours",
            f"├── requests: {self.read_requests:,} to read, {self.write_requests:,} to write",
            f"└── storage while it runs: up to {format_bytes(self.storage_bytes)}",
        ]
        if self.driver_hours > self.hours:
            lines.insert(-1, "├── note: the driver cannot feed that many workers; use fewer, or a larger unit_bytes")
        return "\n".join(lines)


def parse_cluster(text: str) -> tuple[int, int]:
    """Parse `NODESxCORES`.

    >>> parse_cluster("64x32")
    (64, 32)
    """
    match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,3})", text)
    if match is None:
        raise UsageError(
            f"a cluster is written as NODESxCORES, not {text!r}", help="--cluster 64x32: 64 nodes, 32 cores each"
        )
    return int(match[1]), int(match[2])


def estimate_cluster(
    outline: Outline, nodes: int, cores: int, bytes_a_second: float, unit_bytes: int = UNIT_BYTES
) -> ClusterEstimate:
    """Estimate a run that takes `bytes_a_second` of unpacked input through all steps on one core."""
    num_workers = nodes * cores
    input_bytes = sum(source.num_bytes for source in outline.sources)
    unpacked_bytes = sum(source.unpacked_bytes for source in outline.sources)
    stored_bytes = sum(
        source.stored_bytes(stage) for source in outline.sources for stage in range(len(source.stages) - 1)
    )
    num_stages = max(len(source.stages) for source in outline.sources)
    slice_bytes = min(
        unit_bytes,
        max(choose_cut("auto", num_workers, 0, cuts_cells=False).min_bytes, unpacked_bytes // (4 * num_workers)),
    )
    stage_tasks = max(1, -(-unpacked_bytes // max(1, slice_bytes)))
    tasks = num_stages * stage_tasks
    messages = tasks / choose_tasks_per_message(num_workers, stage_tasks, unpacked_bytes)
    core_hours = unpacked_bytes / bytes_a_second / 3600
    return ClusterEstimate(
        nodes=nodes,
        cores=cores,
        bytes_a_second=bytes_a_second,
        core_hours=core_hours,
        hours=core_hours / min(num_workers, tasks),
        tasks=tasks,
        driver_hours=(tasks * _DRIVER_SECONDS_A_TASK + messages * _DRIVER_SECONDS_A_MESSAGE) / 3600,
        read_requests=(input_bytes + stored_bytes) // _RANGE_BYTES + tasks,
        write_requests=outline.needed_bytes // _PART_BYTES + _REQUESTS_A_TASK * tasks,
        storage_bytes=outline.needed_bytes,
    )
