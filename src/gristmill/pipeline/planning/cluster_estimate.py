"""The estimate for a cluster, from a sample and the outline of a plan: hours, tasks, network, storage and money.

Every core is assumed to be as fast as one here on the first records of each source, and storage to be fast enough. The
input may be larger than what is here: all of it is then assumed to be like the sample, so every number grows with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gristmill.core.checks import find_nearest
from gristmill.core.errors import UsageError
from gristmill.core.quantities import format_bytes, format_count
from gristmill.pipeline.planning.units import UnitLayout, choose_cut, choose_tasks_per_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gristmill.pipeline.planning.outline import Outline

_RANGE_BYTES = 4 << 20
"""The bytes of one request to read."""
_PART_BYTES = 8 << 20
"""The bytes of one request to write."""
_REQUESTS_A_TASK = 2
"""Requests of a task besides those for data: one to begin an upload, one to complete it."""
_DRIVER_SECONDS_A_TASK = 0.00015
_DRIVER_SECONDS_A_MESSAGE = 0.0006
"""Measured with `benchmarks/cluster.py`: a unit, its task and its receipt; a call through Ray and its answer."""
_GB = 10**9
_MILLION = 10**6
PRICES = {
    "core_hour": "an hour of one core, whether or not it works",
    "gb_network": "10^9 bytes read or written",
    "million_reads": "a million requests to read",
    "million_writes": "a million requests to write",
    "gb_month": "10^9 bytes of the dataset for a month",
}
"""What may have a price."""


class SampleRates(NamedTuple):
    """The speed and the sizes that a trial on the first records has measured."""

    bytes_a_second: float
    """Unpacked input that one core takes through all steps per second."""
    output_share: float | None = None
    """The size of the dataset, as a share of the unpacked input; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEstimate:
    """The cost of a run on a cluster."""

    nodes: int
    cores: int
    """Cores of a node."""
    input_bytes: int
    """The size of the files of all sources."""
    bytes_a_second: float
    """Unpacked input that one core takes through all steps per second."""
    core_hours: float
    hours: float
    tasks: int
    driver_hours: float
    """Processor time of the driver: if it is more than `hours`, workers wait for tasks."""
    read_requests: int
    write_requests: int
    read_bytes: int
    written_bytes: int
    storage_bytes: int
    """Work folder and output together, estimated from above."""
    dataset_bytes: int | None
    """The size of the dataset, by the share of the sample that was kept."""
    costs: dict[str, float] = field(default_factory=dict)
    """By the name of each price: what a run costs, and the dataset in each month (`gb_month`)."""

    def __str__(self) -> str:
        speed = f"{format_bytes(int(self.bytes_a_second))}/s per core, measured on the first records"
        where = f"{format_count(self.nodes, 'node')} with {format_count(self.cores, 'core')} each"
        network = f"{format_bytes(self.read_bytes)} read, {format_bytes(self.written_bytes)} written"
        rate = (self.read_bytes + self.written_bytes) / self.nodes / max(self.hours * 3600, 1)
        dataset = "" if self.dataset_bytes is None else f", the dataset about {format_bytes(self.dataset_bytes)}"
        lines = [
            f"{format_bytes(self.input_bytes)} on {where}: about {self.hours:,.2f} hours",
            f"├── {self.core_hours:,.1f} core-hours ({speed})",
            f"├── {format_count(self.tasks, 'task')}; the driver is busy for {self.driver_hours:,.2f} hours",
            f"├── requests: {self.read_requests:,} to read, {self.write_requests:,} to write",
            f"├── network: {network}; {format_bytes(int(rate))}/s for each node",
            f"└── storage: up to {format_bytes(self.storage_bytes)} while it runs{dataset}",
        ]
        if self.driver_hours > self.hours:
            lines.insert(-1, "├── note: the driver cannot feed that many workers; use fewer, or a larger unit_bytes")
        if self.costs:
            once = {name: cost for name, cost in self.costs.items() if name != "gb_month"}
            terms = [", ".join(f"{name} {cost:,.2f}" for name, cost in once.items())]
            parts = [f"{sum(once.values()):,.2f} for the run ({terms[0]})"] if once else []
            parts += [f"{self.costs['gb_month']:,.2f} a month for the dataset"] if "gb_month" in self.costs else []
            lines.insert(-1, f"├── money: {'; '.join(parts)}")
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


def parse_prices(words: Iterable[str]) -> dict[str, float]:
    """Parse prices of the form `NAME=PRICE`.

    >>> parse_prices(["core_hour=0.04", "gb_month=0.02"])
    {'core_hour': 0.04, 'gb_month': 0.02}
    """
    prices = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in PRICES:
            nearest = find_nearest(name, PRICES)
            raise UsageError(
                f'there is no price "{name}"',
                help=f'did you mean "{nearest}"?' if nearest else f"prices are {', '.join(PRICES)}",
            )
        if re.fullmatch(r"\d+(\.\d+)?", text) is None:
            raise UsageError(f"the price {word!r} is not a number", help=f"write --price {name}=0.04")
        prices[name] = float(text)
    return prices


def estimate_cluster(
    outline: Outline,
    nodes: int,
    cores: int,
    rates: SampleRates,
    unit_bytes: int = UnitLayout().unit_bytes,
    *,
    size: int | None = None,
    prices: Mapping[str, float] | None = None,
) -> ClusterEstimate:
    """Estimate a run whose records go through all steps at the `rates` of a sample on one core.

    Args:
        outline: What a run on the files that are here would do.
        nodes: The number of machines.
        cores: The cores of each.
        rates: What the sample has measured.
        unit_bytes: How much input becomes one shard.
        size: The size of all files, if it is another one than that of the files that are here.
        prices: By names of `PRICES`.
    """
    num_workers = nodes * cores
    here = sum(source.num_bytes for source in outline.sources)
    scale = 1.0 if size is None else size / max(1, here)
    input_bytes = round(scale * here)
    unpacked_bytes = round(scale * sum(source.unpacked_bytes for source in outline.sources))
    stored_bytes = round(
        scale * sum(source.stored_bytes(stage) for source in outline.sources for stage in range(len(source.stages) - 1))
    )
    storage_bytes = round(scale * outline.needed_bytes)
    num_stages = max(len(source.stages) for source in outline.sources)
    slice_bytes = min(
        unit_bytes,
        max(
            choose_cut("auto", num_workers, 0, UnitLayout()).min_bytes,
            unpacked_bytes // (4 * num_workers),
        ),
    )
    stage_tasks = max(1, -(-unpacked_bytes // max(1, slice_bytes)))
    tasks = num_stages * stage_tasks
    messages = tasks / choose_tasks_per_message(num_workers, stage_tasks, unpacked_bytes, UnitLayout())
    core_hours = unpacked_bytes / rates.bytes_a_second / 3600
    hours = core_hours / min(num_workers, tasks)
    read_bytes = input_bytes + stored_bytes
    read_requests = read_bytes // _RANGE_BYTES + tasks
    write_requests = storage_bytes // _PART_BYTES + _REQUESTS_A_TASK * tasks
    dataset_bytes = None if rates.output_share is None else round(unpacked_bytes * rates.output_share)
    amounts = {
        "core_hour": hours * num_workers,
        "gb_network": (read_bytes + storage_bytes) / _GB,
        "million_reads": read_requests / _MILLION,
        "million_writes": write_requests / _MILLION,
        "gb_month": (storage_bytes if dataset_bytes is None else dataset_bytes) / _GB,
    }
    return ClusterEstimate(
        nodes=nodes,
        cores=cores,
        input_bytes=input_bytes,
        bytes_a_second=rates.bytes_a_second,
        core_hours=core_hours,
        hours=hours,
        tasks=tasks,
        driver_hours=(tasks * _DRIVER_SECONDS_A_TASK + messages * _DRIVER_SECONDS_A_MESSAGE) / 3600,
        read_requests=read_requests,
        write_requests=write_requests,
        read_bytes=read_bytes,
        written_bytes=storage_bytes,
        storage_bytes=storage_bytes,
        dataset_bytes=dataset_bytes,
        costs={name: price * amounts[name] for name, price in (prices or {}).items()},
    )
