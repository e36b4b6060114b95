"""The main function of a worker process: load a job, set up, then run one chunk after another until the next job.

A worker is a fresh interpreter, never a fork. It imports little: it starts in about 20 ms and takes 12 MiB. It ends
with its parent in every case: by the kernel's signal on Linux, even while native code holds the interpreter lock, and
by a watching thread everywhere.
"""

from __future__ import annotations

import _thread
import atexit
import io
import os
import select
import signal
import sys

from gristmill.engine.worker import wire
from gristmill.engine.worker.job import JobRunner
from gristmill.engine.worker.recorder import Recorder

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from typing import NoReturn

    from gristmill.engine.worker.pickling import Buffer

    Descriptors = tuple[int, int, int]
    """The worker's ends of what connects it to its parent: socket, lifeline, recording."""

_WATCH_SECONDS = 0.5


def main() -> NoReturn:
    """Serve the parent whose file descriptors are in the arguments, then exit."""
    descriptors = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for fd in descriptors:
        os.set_inheritable(fd, False)  # processes that the user's function starts must not keep them open
    _print_whole_lines()
    try:
        _end_with_parent(descriptors)
        worker = Worker(descriptors)
        worker.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        _end_process_group()
    except KeyboardInterrupt:
        os._exit(130)
    except MemoryError:  # not even the item could be received; the parent reads in the recording which one it was
        os._exit(1)
    if not worker.runner.has_run_user_code:
        _exit_at_once()
    sys.exit(0)


class Worker:
    """The child's end of the connection: receives jobs and chunks, sends what comes of them."""

    def __init__(self, descriptors: Descriptors) -> None:
        import faulthandler  # noqa: PLC0415

        socket, _, recording = descriptors
        self._receiver = wire.Receiver(socket)
        self._sender = wire.Sender(socket)
        self.runner = JobRunner(self._send, Recorder(recording), finishes_later=True)
        faulthandler.enable(recording, all_threads=False)

    def serve(self) -> None:
        """Load jobs and run their chunks until the parent stops the worker. Returns early if a set-up failed."""
        while (frame := self._receive()).kind != wire.STOP:
            if not self.runner.handle(frame):
                return
        self.runner.wait_for_last_chunk()

    def _send(self, segments: list[Buffer]) -> None:
        self._sender.push(segments)
        self._sender.flush()

    def _receive(self) -> wire.Frame:
        frame = self._receiver.receive()
        assert frame is not None, "the worker's end of the socket blocks"
        return frame


def _end_with_parent(descriptors: Descriptors) -> None:
    """End this process group when the parent ends: by the kernel itself on Linux, and by a thread everywhere.

    A thread alone is not enough: while a runaway regular expression holds the interpreter lock, no other thread runs.
    """
    parent = os.getppid()
    _, lifeline, _ = descriptors
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415

        # Nothing is ever written to the lifeline, so its only event is the parent's end.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        # A child that the parent forked may hold the lifeline's other end open: so check the parent's number too.
        while os.getppid() == parent and not select.select([lifeline], [], [], _WATCH_SECONDS)[0]:
            pass
        _end_process_group()

    _thread.start_new_thread(watch, ())


def _print_whole_lines() -> None:
    """Write each line in one piece and without delay: workers share one output. Overrides PYTHONUNBUFFERED."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _exit_at_once() -> NoReturn:
    """Exit without freeing every object: the parent waits, and the system frees memory much faster."""
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where the user's shell has closed them
        stream.flush()
    os._exit(0)


def _end_process_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    os._exit(1)
