"""What a run leaves that has failed or was stopped: `report.html` with the reason, and the records that it has refused.

Nothing is published. Next to its receipts, the work folder gets the quarantined and dropped records of all finished
tasks, and `failed.json`, which describes them as a manifest would, of a dataset without shards. So the report, the
viewer and `inspect --quarantine` read it as they read a dataset. The next run removes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec

from gristmill.core.errors import GristmillError
from gristmill.pipeline.publishing.publish import describe_failed_dataset
from gristmill.pipeline.publishing.side_files import join_quarantine, join_refused
from gristmill.pipeline.work_folder import FAILED_RUN, work_path
from gristmill.report.model import RunFailure
from gristmill.report.write import write_report
from gristmill.shards.dataset import Dataset
from gristmill.shards.derived_files import REPORT, REPORT_PAGE
from gristmill.shards.manifest import Manifest  # noqa: TC001  (msgspec looks at the types)
from gristmill.shards.stored_files import MANIFEST, StoredFile
from gristmill.storage.commit import write_file
from gristmill.storage.locations import decode_stored, read_stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gristmill.core.books import Account
    from gristmill.pipeline.planning.plan import Plan
    from gristmill.report.model import RunTimes
    from gristmill.storage.leases import HeldOutput
    from gristmill.storage.locations import Location

_log = logging.getLogger("gristmill")


@dataclass(frozen=True, slots=True)
class RefusedRecords:
    """The books and the files of refused records that the finished tasks of a source have left."""

    books: list[Account]
    quarantine: list[StoredFile]
    dropped: list[StoredFile]


class FailedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended without a dataset."""

    failure: RunFailure
    manifest: Manifest
    """Of a dataset without shards: books, quarantined and dropped records."""


def leave_failed_run(
    plan: Plan, error: BaseException, sources: Mapping[str, RefusedRecords], held: HeldOutput, run: RunTimes
) -> None:
    """Leave a report of a run that has failed. The error is what matters: what goes wrong here is only logged."""
    if (plan.output / MANIFEST).exists():  # an update: the report is that of the dataset which is still there
        return
    try:
        held.check()
        run_id = held.run_id
        context = error.context if isinstance(error, GristmillError) else {}
        lines = cast("list[str]", context.get("lines", []))
        quarantine = []
        for source in plan.sources:
            refused = sources.get(source.name)
            extra = [_write_lines(plan, lines, run_id)] if lines and context["source"] == source.name else []
            if files := [*(refused.quarantine if refused is not None else []), *extra]:
                quarantine.append(join_quarantine(plan.output, source, files, run_id))
        dropped = join_refused(plan, {name: refused.dropped for name, refused in sources.items()}, run_id)
        manifest = describe_failed_dataset(
            plan, {name: refused.books for name, refused in sources.items()}, quarantine, list(dropped.values())
        )
        failed = FailedRun(failure=_describe(error), manifest=manifest)
        write_file(plan.output / FAILED_RUN, msgspec.json.encode(failed), run_id)
        num_samples = plan.recipe.num_samples
        write_report(plan.output, manifest, run_id, samples=num_samples, run=run, failure=failed.failure)
    except Exception:
        _log.debug("the report of the failed run could not be made", exc_info=True)


def _write_lines(plan: Plan, lines: Sequence[str], run_id: str) -> StoredFile:
    """Write the quarantined records of a task that has failed, and so has no file."""
    content = "".join(lines).encode()
    path = work_path("last.quarantine.jsonl")
    return StoredFile(path=path, bytes=len(content), xxh3=write_file(plan.output / path, content, run_id))


def _describe(error: BaseException) -> RunFailure:
    is_stopped = isinstance(error, KeyboardInterrupt)
    message = error.message if isinstance(error, GristmillError) else str(error) or type(error).__name__
    return RunFailure(
        message="" if is_stopped else message,
        help=(error.help or "") if isinstance(error, GristmillError) else "",
        is_stopped=is_stopped,
        ended=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def load_failed_run(folder: Location) -> FailedRun | None:
    """Load what a failed run has left in an output folder; None if there is a dataset, or no run has failed."""
    path = folder / FAILED_RUN
    if (folder / MANIFEST).exists() or not path.is_file():
        return None
    return decode_stored(read_stored(path), FailedRun, path)


def open_failed_run(folder: Location) -> tuple[Dataset, RunFailure] | None:
    """Open what a failed run has left as a dataset without shards, with the reason of its end."""
    failed = load_failed_run(folder)
    return None if failed is None else (Dataset(folder, failed.manifest), failed.failure)


def remove_failed_run(folder: Location) -> None:
    """Remove the report of a failed run, before another run or `clean` removes the rest."""
    if (folder / FAILED_RUN).is_file():
        if not (folder / MANIFEST).exists():
            for name in (REPORT, REPORT_PAGE):
                (folder / name).unlink(missing_ok=True)
        (folder / FAILED_RUN).unlink(missing_ok=True)
