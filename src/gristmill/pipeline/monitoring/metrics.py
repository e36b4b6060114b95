"""A status in the text format of Prometheus, for scrapers that run on the same machine."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

from gristmill.pipeline.monitoring.run_status import Cause, EndedJob

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.pipeline.monitoring.run_status import RunStatus

CONTENT_TYPE = "text/plain; version=0.0.4"

Sample = tuple[dict[str, str], float]


def format_metrics(status: RunStatus) -> str:
    """Format a status as families of metrics. Counts of ended jobs stay, so that counters never fall."""
    tasks: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {}
    current = EndedJob(name=status.job, seconds=status.seconds, tasks=status.done, counts=status.counts)
    for job in (*status.ended, current):  # several jobs may have one name
        tasks[job.name] += job.tasks
        counts.setdefault(job.name, Counter()).update(job.counts)
    states = [worker.state for worker in status.workers]
    workers = [({"worker": worker.name, "node": worker.node}, worker) for worker in status.workers]
    left = [] if status.seconds_left is None else [({"job": status.job}, status.seconds_left)]
    fraction = [] if status.fraction is None else [({"job": status.job}, status.fraction)]
    total = [] if status.total is None else [({"job": status.job}, float(status.total))]
    families = [
        _format("run_info", "gauge", "The run.", [({"run": status.run, "backend": status.backend}, 1.0)]),
        _format("run_seconds", "gauge", "Seconds since the run began.", [({}, status.run_seconds)]),
        _format("tasks", "gauge", "Tasks of the job that is running.", total),
        _format("tasks_done_total", "counter", "Tasks that are done.", _label("job", tasks)),
        _format("tasks_failed_total", "counter", "Tasks that failed.", [({"job": status.job}, status.failed)]),
        _format("worker_deaths_total", "counter", "Workers that died.", [({"job": status.job}, status.deaths)]),
        *(
            _format(
                f"{name}_total",
                "counter",
                f"The {name} that tasks have counted.",
                _label("job", {job: amounts[name] for job, amounts in counts.items()}),
            )
            for name in ("records", "bytes")
        ),
        _format("job_fraction", "gauge", "The fraction of the job that is done.", fraction),
        _format("job_seconds_left", "gauge", "An estimate of the seconds that the job still takes.", left),
        _format("records_per_second", "gauge", "Records in the last seconds.", [({}, status.records_per_second)]),
        _format("bytes_per_second", "gauge", "Bytes in the last seconds.", [({}, status.bytes_per_second)]),
        _format(
            "workers",
            "gauge",
            "Workers by what they do.",
            _label("state", {state: states.count(state) for state in ("starting", "idle", "busy")}),
        ),
        _format(
            "worker_cpu_share",
            "gauge",
            "The CPUs that a worker uses.",
            [(labels, worker.cpu_share) for labels, worker in workers if worker.cpu_share is not None],
        ),
        _format(
            "worker_memory_bytes",
            "gauge",
            "The resident memory of a worker.",
            [(labels, worker.memory_bytes) for labels, worker in workers],
        ),
        _format("memory_available_bytes", "gauge", "Memory that is free.", [({}, status.memory_available)]),
        _format("memory_limit_bytes", "gauge", "Memory that may be used.", [({}, status.memory_limit)]),
        _format(
            "bottleneck",
            "gauge",
            "1 for what slows the run.",
            _label("cause", {cause: int(cause == status.bottleneck.cause) for cause in get_args(Cause)}),
        ),
    ]
    return "".join(families)


def _label(name: str, amounts: dict[str, int]) -> list[Sample]:
    return [({name: value}, float(amount)) for value, amount in amounts.items()]


def _format(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP gristmill_{name} {help_text}", f"# TYPE gristmill_{name} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        lines.append(f"gristmill_{name}{f'{{{pairs}}}' if pairs else ''} {float(value)!r}")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _escape(text: str) -> str:
    """Escape a label's value: only these three characters mean something there."""
    printable = text.encode(errors="backslashreplace").decode()
    return printable.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
