"""From the messages of a worker in another process to events for the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.engine.backend import Counts, Finishing, Ready, Results, SetupFailed, Undecodable
from gristmill.engine.worker import wire
from gristmill.engine.worker.captured_error import CapturedError

if TYPE_CHECKING:
    from gristmill.engine.backend import Event, WorkerHandle


def decode_event(worker: WorkerHandle, frame: wire.Frame) -> Event:
    """Decode a message. What cannot be unpickled becomes an event too."""
    if frame.kind == wire.READY:
        return Ready(worker)
    if frame.kind == wire.FINISHING:
        return Finishing(worker, frame.chunk)
    try:
        payload = frame.load()
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # whatever the results' own code raises, sys.exit() included
        error = CapturedError(raised, "unpicklable", about="what the worker sent cannot be unpickled")
        if frame.kind == wire.SETUP_FAILED:
            return SetupFailed(worker, error)
        return Undecodable(worker, frame.chunk, error, frame.last)
    if frame.kind == wire.RESULTS:
        return Results(worker, frame.chunk, payload, frame.last, frame.nbytes)
    if frame.kind == wire.COUNTS:
        return Counts(worker, payload)
    if frame.kind == wire.SETUP_FAILED:
        return SetupFailed(worker, payload)
    return Undecodable(worker, frame.chunk, payload, frame.last)
