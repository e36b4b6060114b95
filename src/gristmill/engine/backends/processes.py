"""Worker processes on this machine, each behind a private socket pair. Nothing here ever blocks on one of them.

Each worker leads its own session: the terminal's Ctrl-C reaches only the parent, and whatever the user's function
started ends with its worker. Death is seen twice over, by the process descriptor and by the end of the socket; what the
worker had sent before is read first, so that finished work counts.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.core.errors import UnpicklableError
from gristmill.engine import pickling, wire
from gristmill.engine.backend import Counts, Died, Ready, Results, SetupFailed, Undecodable
from gristmill.engine.captured_error import CapturedError
from gristmill.engine.recorder import Recorder, create_recording

if TYPE_CHECKING:
    from gristmill.engine.backend import Event, WorkerSpec
    from gristmill.engine.chunk import Chunk
    from gristmill.engine.job import Job
    from gristmill.engine.recorder import Note

# Cores are shared out by processes; native thread pools inside each would only fight over them. (Arrow's pool follows
# OMP_NUM_THREADS too.)
ONE_THREAD = {
    "FASTOKENS_BPE_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
# Workers make and drop blocks of a few megabytes all the time. By default glibc gives each back to the system, and the
# next one is filled with fresh pages: a tenth of a worker's time.
STEADY_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
# Not "-m gristmill.engine.worker": the package may be importable only by way of the parent's sys.path, which follows
# with the job (it can be too long for an argument).
_BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gristmill.engine.worker import main; main()"
_PACKAGE_ROOT = str(Path(__file__).parents[3])
_POLL_SECONDS = 0.5  # where the system has no process descriptors
_LEAVE_SECONDS = 2.0
_SOCKET_BYTES = 1 << 20


class ProcessWorker:
    """One child process and the parent's ends of all that connects to it."""

    def __init__(self, job: bytes, cpu: int | None, *, gives_back: bool) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._socket, end = socket.socketpair()
            ours.callback(self._socket.close)
            theirs.callback(end.close)
            for either in (self._socket, end):  # the usual 208 KiB would cut each MiB into many small turns
                either.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
                either.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
            lifeline_end, lifeline = os.pipe()
            ours.callback(os.close, lifeline)
            theirs.callback(os.close, lifeline_end)
            recording = create_recording()
            theirs.callback(os.close, recording)
            self._recorder = Recorder(recording)
            ours.callback(self._recorder.close)
            inherited = (end.fileno(), lifeline_end, recording)
            self.process = subprocess.Popen(
                [*_interpreter_command(), _BOOTSTRAP, _PACKAGE_ROOT, *map(str, inherited)],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**STEADY_HEAP, **os.environ, **ONE_THREAD},
            )
            ours.callback(self.kill)
            self.descriptor = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else None
            if self.descriptor is not None:
                ours.callback(os.close, self.descriptor)
            self._ours = ours.pop_all()
        self._socket.setblocking(False)
        self.pid = self.process.pid
        self.name = f"process {self.pid}"
        self._receiver = wire.Receiver(self._socket.fileno())
        self._sender = wire.Sender(self._socket.fileno())
        path = [str(entry) for entry in sys.path]
        self._sender.push(wire.pack(wire.JOB, (path, sys.argv, cpu, gives_back, job)))
        self.flush()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, chunk: Chunk) -> int:
        payload = chunk.indexes, chunk.items
        segments = wire.pack(wire.CHUNK, payload, chunk=chunk.number, num_items=chunk.indexes[0])
        self._sender.push(segments)
        self.flush()
        return sum(len(segment) for segment in segments)

    def flush(self) -> bool:
        try:
            return self._sender.flush()
        except (BrokenPipeError, ConnectionResetError):
            return True  # it is dead or dying: the end of its socket will say so

    def current(self) -> Note | None:
        started, item, position = self._recorder.read()
        return (started, item, position) if item >= 0 else None

    def num_bytes_received(self) -> int:
        return self._receiver.num_bytes

    def stop(self) -> None:
        self._sender.push(wire.pack(wire.STOP))
        self.flush()

    def kill(self) -> None:
        """End the worker and all that it started. Its number cannot be another's yet: it has not been reaped."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # what macOS says of a group of the dead
                os.killpg(self.process.pid, signal.SIGKILL)

    def receive(self) -> tuple[list[Event], bool]:
        """All complete messages that are there, and whether the worker's end is closed."""
        events: list[Event] = []
        try:
            while (frame := self._receiver.receive()) is not None:
                events.append(self._decode_event(frame))
        except (EOFError, ConnectionResetError):
            return events, True
        return events, False

    def _decode_event(self, frame: wire.Frame) -> Event:
        if frame.kind == wire.READY:
            return Ready(self)
        try:
            payload = frame.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the results' own code raises, sys.exit() included
            caught = CapturedError(error, "unpicklable", about="what the worker sent cannot be unpickled")
            if frame.kind == wire.SETUP_FAILED:
                return SetupFailed(self, caught)
            return Undecodable(self, frame.chunk, caught, frame.last)
        if frame.kind == wire.RESULTS:
            return Results(self, frame.chunk, payload, frame.last, frame.nbytes)
        if frame.kind == wire.COUNTS:
            return Counts(self, payload)
        if frame.kind == wire.SETUP_FAILED:
            return SetupFailed(self, payload)
        return Undecodable(self, frame.chunk, payload, frame.last)

    def reap(self) -> Died:
        """Reap the process, with what it left running, and say how it ended."""
        self.kill()
        code = self._wait_for_exit()
        _, item, position = self._recorder.read()
        crash_text = self._recorder.crash_text()
        self._ours.close()
        if code >= 0:
            return Died(self, f"exited with code {code}", None, item, position, crash_text)
        name = _signal_name(-code)
        return Died(self, f"was killed by {name}", name, item, position, crash_text)

    def _wait_for_exit(self) -> int:
        try:
            return self.process.wait(timeout=_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:  # killed, but stuck in the kernel (a dead network file system)
            return -signal.SIGKILL


class ProcessBackend:
    can_kill = True

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._interests: dict[ProcessWorker, int] = {}
        self._pickled_jobs: dict[Job, bytes] = {}

    def start(self, spec: WorkerSpec, cpu: int | None) -> ProcessWorker:
        if spec.job not in self._pickled_jobs:
            try:
                self._pickled_jobs[spec.job] = pickling.function_to_bytes(spec.job)
            except Exception as error:
                hint = "make what it captures (locks, connections, open files) inside the worker, in setup"
                raise UnpicklableError(f"the function cannot be sent to workers: {error}", help=hint) from error
        worker = ProcessWorker(self._pickled_jobs[spec.job], cpu, gives_back=spec.returns_unstarted)
        self._interests[worker] = selectors.EVENT_READ
        self._selector.register(worker, selectors.EVENT_READ, worker)
        if worker.descriptor is not None:
            self._selector.register(worker.descriptor, selectors.EVENT_READ, worker)
        return worker

    def wait(self, timeout: float | None) -> list[Event]:
        for worker, interest in self._interests.items():
            wanted = selectors.EVENT_READ if worker.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
            if wanted != interest:
                self._selector.modify(worker, wanted, worker)
                self._interests[worker] = wanted
        events: list[Event] = []
        dead: dict[ProcessWorker, None] = {}
        for key, _ in self._selector.select(timeout if hasattr(os, "pidfd_open") else _POLL_SECONDS):
            worker = key.data
            received, at_end = worker.receive()
            events += received
            if at_end or key.fileobj == worker.descriptor:
                dead[worker] = None
        if not hasattr(os, "pidfd_open"):
            dead.update((worker, None) for worker in self._interests if worker.process.poll() is not None)
        for worker in dead:
            events += worker.receive()[0]
            events.append(self._remove(worker))
        return events

    def _remove(self, worker: ProcessWorker) -> Died:
        self._selector.unregister(worker)
        if worker.descriptor is not None:
            self._selector.unregister(worker.descriptor)
        del self._interests[worker]
        return worker.reap()

    def close(self, *, at_once: bool) -> None:
        for worker in self._interests:
            worker.kill() if at_once else worker.stop()
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._interests and not at_once and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        for worker in list(self._interests):
            self._remove(worker)
        self._selector.close()


def _interpreter_command() -> list[str]:
    # -P: the current folder must not come first, where a user's random.py would hide Python's own.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-P", "-c"]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
