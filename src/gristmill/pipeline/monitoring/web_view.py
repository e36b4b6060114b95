"""A run in the browser: one page that asks for the status every second, and `/metrics` in the format of Prometheus."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, get_args

from msgspec import structs

from gristmill.pipeline.monitoring.run_status import Cause, EndedJob
from gristmill.report.local_server import LocalServer
from gristmill.report.markup import element, join
from gristmill.report.page import make_document, make_theme_button

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.pipeline.monitoring.run_status import RunStatus
    from gristmill.report.local_server import Reply


_LAST_LOOK_SECONDS = 2.5
"""How long the end of a run is shown to a page that is open: it asks every second."""
CONTENT_TYPE = "text/plain; version=0.0.4"
Sample = tuple[dict[str, str], float]


class WebView(LocalServer):
    """A view that serves the last status to pages on this machine."""

    def __init__(self, title: str, port: int = 0) -> None:
        super().__init__(port)
        self._title = title
        self._status: RunStatus | None = None
        self._asked = float("-inf")
        self._has_shown_end = threading.Event()
        self.start()
        if sys.stderr is not None:
            sys.stderr.write(f"monitor: {self.url} (metrics: {self.url}metrics)\n")
            sys.stderr.flush()

    def show(self, status: RunStatus) -> None:
        """Serve another status from now on."""
        self._status = status

    def close(self) -> None:
        """Show the end of the run to a page that is open, then stop serving."""
        if self._status is not None:
            self._status = structs.replace(self._status, is_over=True)
            if monotonic() - self._asked < _LAST_LOOK_SECONDS:
                self._has_shown_end.wait(_LAST_LOOK_SECONDS)
        super().close()

    def answer(self, name: str, words: dict[str, str], reply: Reply) -> None:  # noqa: ARG002  (no request has words)
        """Answer with the page, the status as JSON, or metrics."""
        status = self._status
        if not name:
            reply.send_page(self._make_page())
        elif name == "status":
            self._asked = monotonic()
            fraction = None if status is None else status.fraction
            reply.send_json({"status": status, "fraction": fraction})
            if status is not None and status.is_over:
                self._has_shown_end.set()
        elif name == "metrics":
            text = "" if status is None else format_metrics(status)
            reply.send_body(text.encode(), CONTENT_TYPE)
        else:
            reply.send_not_found()

    def _make_page(self) -> str:
        """Make the page, which asks for everything else."""
        heading = element("div", element("h1", self._title), make_theme_button(), class_="row")
        header = element("header", element("div", heading, element("p", id="run", class_="quiet")), class_="top")
        tables = [
            element("section", element("h2", name), element("div", id=identifier), id=f"{identifier}-section")
            for identifier, name in (("workers", "Workers"), ("ended", "Jobs that have ended"))
        ]
        main = element(
            "main",
            element("p", id="job", role="status"),
            element("progress", id="progress", max=1, value=0),
            element("p", "Waiting for the first task.", id="why"),
            element("dl", id="cards", class_="cards"),
            element("figure", id="rate", class_="chart"),
            *tables,
        )
        return make_document(f"{self._title} · Gristmill", join(header, main), "monitor.js", connects="'self'")


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
