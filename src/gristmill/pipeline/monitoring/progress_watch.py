"""A run looks at itself every few seconds: it writes its status, shows it, and notices when nothing moves.

A task that hangs shows as a run whose counts do not change. What is measured is in `monitoring`, which runs that end
before the first look never import.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from gristmill.core.errors import StalledError
from gristmill.engine.tasks import Stopwatch
from gristmill.pipeline.work_folder import STATUS
from gristmill.storage.commit import PendingFile
from gristmill.storage.locations import is_remote

if TYPE_CHECKING:
    from gristmill.engine.job_workers import JobWorkers
    from gristmill.engine.observer import EventLog, Observer
    from gristmill.pipeline.monitoring.run_status import RunStatus
    from gristmill.pipeline.monitoring.status_maker import StatusMaker
    from gristmill.pipeline.monitoring.views import StatusView
    from gristmill.storage.locations import Location


_SECONDS_BETWEEN = 5.0
"""How often the status is written."""
_END_SECONDS = 10.0
"""How long the end of a job waits for a status that is being written."""
_VIEW_SECONDS = 1.0
"""How often it is measured for a person or for the log of events."""

_log = logging.getLogger("gristmill")


class ProgressWatch:
    """Writes and shows the status of a run, and tells when nothing moves (`engine.observing.observer.RunWatch`)."""

    def __init__(
        self,
        output: Location,
        run_id: str,
        backend: str,
        *,
        stall_timeout: float,
        stops: bool,
        events: EventLog | None = None,
        monitors: bool = False,
    ) -> None:
        self.stopwatch = Stopwatch()
        """What the jobs of the run have used."""
        self.view: StatusView | None = None
        self._output = output
        self._run_id = run_id
        self._backend = backend
        self._stall_timeout = stall_timeout
        self._stops = stops
        self._events = events
        is_watched = monitors or events is not None
        self.seconds_between = min(_VIEW_SECONDS if is_watched else _SECONDS_BETWEEN, stall_timeout)
        self._maker: StatusMaker | None = None
        self._written = 0.0
        self._has_told = False
        self._writing: threading.Thread | None = None

    def look(self, observer: Observer, workers: JobWorkers) -> None:
        """Measure the job, and pass on what it is doing. Raises `StalledError` if it does nothing, if asked for."""
        status = self._find_maker().make(observer, workers)
        if monotonic() - self._written >= min(_SECONDS_BETWEEN, self._stall_timeout):
            self._written = monotonic()
            self._write_beside(msgspec.json.encode(status))
        if self._events is not None:
            self._events.write("progress", status=msgspec.to_builtins(status))
        self._show(status)
        if status.seconds_without_progress < self._stall_timeout:
            self._has_told = False
        elif not self._has_told:
            self._has_told = True
            from gristmill.pipeline.monitoring.run_status import describe_slowest  # noqa: PLC0415

            message = (
                f"{status.job}: no progress for {status.seconds_without_progress:.0f} s; {describe_slowest(status)}"
            )
            if self._stops:
                raise StalledError(message, help="the same command resumes; a timeout quarantines records that hang")
            _log.warning("%s", message)

    def end_job(self, observer: Observer) -> None:
        """Show the last numbers of a job. No status is written after it: the work folder may be removed."""
        if self._writing is not None:
            self._writing.join(_END_SECONDS)
        if self.view is not None:
            self._show(self._find_maker().make_last(observer))

    def close(self) -> None:
        """Close the view: the run has ended."""
        if self.view is not None:
            self.view.close()
            self.view = None

    def _find_maker(self) -> StatusMaker:
        if self._maker is None:
            from gristmill.pipeline.monitoring.status_maker import StatusMaker  # noqa: PLC0415  (not in short runs)

            self._maker = StatusMaker(self._run_id, self._backend, self.stopwatch)
        return self._maker

    def _show(self, status: RunStatus) -> None:
        if self.view is not None:
            try:
                self.view.show(status)
            except (OSError, ValueError):  # the terminal is gone; the run continues
                self.view = None

    def _write_beside(self, status: bytes) -> None:
        """Write the status; to a store in a thread, because workers would wait for the scheduler meanwhile."""
        if not is_remote(self._output):
            self._write(status)
        elif self._writing is None or not self._writing.is_alive():  # else the store is slow: a later look writes
            self._writing = threading.Thread(target=self._try_to_write, args=(status,), daemon=True)
            self._writing.start()

    def _try_to_write(self, status: bytes) -> None:
        try:
            self._write(status)
        except Exception as error:  # a store that does not answer ends the run where data is written
            _log.warning("the status of the run could not be written: %s", error)

    def _write(self, status: bytes) -> None:
        with PendingFile(self._output / STATUS, self._run_id) as file:
            file.write(status)
            file.commit(sync=False)
