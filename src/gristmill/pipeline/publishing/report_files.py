"""The report of a finished dataset: written after its manifest, and again where a run finds that it is not there."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gristmill.core.errors import GristmillError
from gristmill.report.model import JobTimes, RunTimes, WorkerTimes
from gristmill.report.write import load_report, write_report
from gristmill.shards.report import REPORT_PAGE
from gristmill.storage.commit import remove_temporaries

if TYPE_CHECKING:
    from gristmill.engine.tasks import JobUse, Stopwatch
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.shards.manifests.manifest import Manifest
    from gristmill.storage.leases.output_lock import HeldOutput
    from gristmill.storage.locations import Location

_log = logging.getLogger("gristmill")


def publish_report(
    folder: Location, manifest: Manifest, held: HeldOutput, samples: int, run: RunTimes | None = None
) -> None:
    """Write the report of a dataset. The dataset is complete: a report that cannot be made is only a warning."""
    held.check()
    try:
        write_report(folder, manifest, held.run_id, samples=samples, run=run)
    except (OSError, GristmillError):  # the disk is full, or a shard is damaged: the user has to know
        raise
    except Exception:
        _log.warning("the dataset is complete, but its report could not be made", exc_info=True)


def complete_report(plan: Plan, manifest: Manifest, held: HeldOutput) -> None:
    """Write the report again if a killed run has left none, or if the recipe asks for another number of samples."""
    report = load_report(plan.output)
    has_page = report is not None and report.page is not None and (plan.output / REPORT_PAGE).exists()
    if not has_page or report is None or report.samples is None or report.samples.wanted != plan.recipe.num_samples:
        remove_temporaries(plan.output, None)  # of the run that was killed
        publish_report(plan.output, manifest, held, plan.recipe.num_samples, report.run if report is not None else None)


def describe_times(stopwatch: Stopwatch, backend: str, seconds: float) -> RunTimes:
    """Describe what the jobs of a run have used."""
    return RunTimes(
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
        backend=backend,
        jobs=[_describe_job(job) for job in stopwatch.jobs],
    )


def _describe_job(job: JobUse) -> JobTimes:
    return JobTimes(
        name=job.name,
        seconds=round(job.seconds, 3),
        tasks=job.tasks,
        deaths=job.deaths,
        records=job.counts.get("records", 0),
        bytes=job.counts.get("bytes", 0),
        workers=[
            WorkerTimes(
                name=worker.name,
                tasks=worker.items,
                cpu_seconds=round(worker.cpu_seconds, 2),
                peak_bytes=worker.peak_bytes,
                node=worker.node,
                host=worker.host,
            )
            for worker in job.workers
        ],
    )
