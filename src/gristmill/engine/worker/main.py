"""The main function of a worker process: load a job, set up, then run one chunk after another until the next job.

A worker is a fresh interpreter, never a fork. It imports little: it starts in about 20 ms and takes 12 MiB. It ends
with its parent in every case: by the kernel's signal on Linux, even while native code holds the interpreter lock, and
by a watching thread everywhere.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import io
import os
import select
import signal
import sys
from time import monotonic

from gristmill.engine.worker import binding, nesting, pickling, wire
from gristmill.engine.worker import chunk as chunks
from gristmill.engine.worker.captured_error import CapturedError
from gristmill.engine.worker.job import Context
from gristmill.engine.worker.recorder import Recorder

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from gristmill.engine.worker.chunk import Chunk, ChunkResults

_WATCH_SECONDS = 0.5


def main() -> NoReturn:
    """Serve the parent whose file descriptors are in the arguments, then exit."""
    socket, lifeline, recording = (int(argument) for argument in sys.argv[1:4])
    for fd in (socket, lifeline, recording):
        os.set_inheritable(fd, False)  # processes that the user's function starts must not keep them open
    _die_with_parent(lifeline)
    _print_whole_lines()
    worker = Worker(socket, recording)
    try:
        worker.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        _end_process_group()
    except KeyboardInterrupt:
        os._exit(130)
    except MemoryError:  # not even the item could be received; the parent reads in the recording which one it was
        os._exit(1)
    if not worker.has_run_user_code:
        _exit_at_once()
    sys.exit(0)


class Worker:
    """The child's end of the connection: receives the job and chunks, sends results."""

    def __init__(self, socket: int, recording: int) -> None:
        import faulthandler  # noqa: PLC0415

        self._pid = os.getpid()
        self._receiver = wire.Receiver(socket)
        self._sender = wire.Sender(socket)
        self._recorder = Recorder(recording)
        self._context = Context(self._send_counts, self._recorder)
        self._function: Any = None
        self._extra_arguments: tuple[Any, ...] = ()
        self._returns_unstarted = False
        self.has_run_user_code = False
        """Whether a job ran code of the user, which may have started threads."""
        faulthandler.enable(recording, all_threads=False)

    def serve(self) -> None:
        """Load jobs and run their chunks until the parent stops the worker. Returns early if a set-up failed."""
        while (frame := self._receive()).kind != wire.STOP:
            if frame.kind == wire.CHUNK:
                self._run_chunk(frame)
                continue
            self._forget_job()
            if frame.kind == wire.JOB:
                if not self._load_job(frame):
                    return
                self._send(wire.READY)

    def _forget_job(self) -> None:
        """Free what the last job has loaded, before the next one loads more."""
        self._function = None
        self._extra_arguments = ()
        self._context.state = None
        gc.collect()

    def _load_job(self, frame: wire.Frame) -> bool:
        try:
            sys.path[:], sys.argv[:], place, self._returns_unstarted, pickled = frame.load()
            if place is not None:
                binding.bind_process(place)
            nesting.mark_process_as_worker()
            job = pickling.decode(pickled)
            self.has_run_user_code |= job.runs_user_code
            self._function = job.function
            self._extra_arguments = job.run_setup(self._context)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._send(wire.SETUP_FAILED, CapturedError(error, travels=True))
            return False
        return True

    def _run_chunk(self, frame: wire.Frame) -> None:
        # Unpickling the items may kill this process or never end. Any of them may be the cause, so record the first:
        # in a chunk frame `num_items` is the number of its first item.
        self._recorder.note(monotonic(), frame.num_items)
        try:
            indexes, items = frame.load()
        except BaseException as raised:
            about = "the argument cannot be unpickled in a worker"
            error = CapturedError(raised, "unpicklable", about=about, travels=True)
            self._send(wire.UNDECODABLE, error, chunk=frame.chunk)
            return
        chunk = chunks.Chunk(frame.chunk, indexes, items)

        def emit(results: ChunkResults, *, last: bool) -> None:
            self._emit(results, chunk, last=last)

        chunks.run_chunk(
            self._function,
            self._extra_arguments,
            chunk,
            emit,
            recorder=self._recorder,
            returns_unstarted=self._returns_unstarted,
        )
        self._recorder.note_idle()

    def _emit(self, results: ChunkResults, chunk: Chunk, *, last: bool) -> None:
        if os.getpid() != self._pid:
            _end_forked_child(failed=bool(results.errors))
        self._context.flush()
        num_items = len(results.values)
        try:
            segments = wire.pack(wire.RESULTS, results, last=last, chunk=chunk.number, num_items=num_items)
        except BaseException:  # some result cannot be sent: find which
            for position, value in enumerate(results.values):
                try:
                    pickling.encode(value)
                except BaseException as error:
                    results.values[position] = None
                    about = "the result cannot be pickled"
                    results.errors[position] = CapturedError(error, "unpicklable", about=about, travels=True)
            segments = wire.pack(wire.RESULTS, results, last=last, chunk=chunk.number, num_items=num_items)
        # The parent may be busy and not read for a while: that must not count as the item's time.
        self._recorder.stop_clock()
        self._sender.push(segments)
        self._sender.flush()

    def _send(self, kind: int, payload: object = None, *, chunk: int = -1) -> None:
        self._sender.push(wire.pack(kind, payload, chunk=chunk))
        self._sender.flush()

    def _send_counts(self, counts: dict[str, int]) -> None:
        self._send(wire.COUNTS, counts)

    def _receive(self) -> wire.Frame:
        frame = self._receiver.receive()
        assert frame is not None, "the worker's end of the socket blocks"
        return frame


def _die_with_parent(lifeline: int) -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415

        # Nothing is ever written to the lifeline, so its only event is the parent's end; then the kernel itself kills
        # this process group. A thread alone could not: while a runaway regular expression holds the interpreter lock,
        # no other thread runs.
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
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _end_forked_child(*, failed: bool) -> NoReturn:
    """End a child that the user's function forked and that returned from it: it must not answer for the worker."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1 if failed else 0)


def _end_process_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    os._exit(1)
