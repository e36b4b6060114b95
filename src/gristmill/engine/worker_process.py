"""One worker process as the parent sees it: how it is started, sent messages, killed and reaped.

Each worker leads a separate session: Ctrl-C in the terminal reaches only the parent, and everything that the user's
function started ends with its worker. Nothing here blocks, except for the moment in which a killed process is reaped.
`decode_event` turns the messages of a worker, in a process here or on a cluster, into events for the scheduler.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.engine.backend import Counts, Died, Finishing, Ready, Results, SetupFailed, Undecodable
from gristmill.engine.worker import wire
from gristmill.engine.worker.pickling import CapturedError
from gristmill.engine.worker.recorder import Recorder, create_recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gristmill.engine.backend import Event, WorkerHandle, WorkerSpec
    from gristmill.engine.worker.chunk import Chunk
    from gristmill.engine.worker.recorder import Note


# There is one worker for each core; native thread pools inside of workers would only compete for the cores. (Arrow's
# pool follows OMP_NUM_THREADS too.)
ONE_THREAD = {
    "FASTOKENS_BPE_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
# Workers allocate and free blocks of a few megabytes all the time. By default glibc returns each to the system, and the
# next one is filled with fresh pages: a tenth of a worker's time.
# The same for Arrow's allocator (mimalloc), which returns what was free for 10 ms. It also asks for huge pages; to fill
# the first ones with zeros costs a worker 20 ms, more than they save on 100 MB.
STEADY_HEAP = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MIMALLOC_ALLOW_THP": "0",
    "MIMALLOC_PURGE_DELAY": "1000",
}
LEAVE_SECONDS = 2.0
# Not "-m gristmill.engine.worker.main": the package may be importable only through the parent's sys.path, which follows
# with the job (it can be too long for an argument).
_BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gristmill.engine.worker.main import main; main()"
_PACKAGE_ROOT = str(Path(__file__).parents[__name__.count(".")])
_SOCKET_BYTES = 1 << 20


class WorkerEnds:
    """The parent's ends of all that connects to a worker, and the worker's ends until it has inherited them."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self.socket, child_socket = socket.socketpair()
            ours.callback(self.socket.close)
            theirs.callback(child_socket.close)
            for end in (self.socket, child_socket):  # the usual 208 KiB would cut each MiB into many small turns
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
            self.socket.setblocking(False)
            child_lifeline, lifeline = os.pipe()
            ours.callback(os.close, lifeline)
            theirs.callback(os.close, child_lifeline)
            recording = create_recording()
            theirs.callback(os.close, recording)
            self.recorder = Recorder(recording)
            ours.callback(self.recorder.close)
            self.inherited = child_socket.fileno(), child_lifeline, recording
            self.ours = ours.pop_all()
            self.theirs = theirs.pop_all()
            """Closed as soon as the child has inherited them: else this process would never see the socket's end."""


class WorkerProcess:
    """A child process and the parent's ends of everything that connects to it. A `WorkerHandle` for the scheduler."""

    node = None
    is_placed = True
    host = ""
    remote_use = None

    def __init__(
        self, process: subprocess.Popen[bytes], ends: WorkerEnds, cpus: Sequence[int] | None, unsent: set[WorkerProcess]
    ) -> None:
        """Take charge of a process. It is in `unsent` while it has been sent more than its socket takes."""
        self.process = process
        self.pid = process.pid
        self.name = f"process {self.pid}"
        self._socket = ends.socket
        self._recorder = ends.recorder
        with ends.ours as ours:
            ours.callback(self.kill)
            self.descriptor = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
            """Readable when the process has ended; None where the system has no process descriptors."""
            if self.descriptor is not None:
                ours.callback(os.close, self.descriptor)
            self._ours = ours.pop_all()
        self._receiver = wire.Receiver(self._socket.fileno())
        self._sender = wire.Sender(self._socket.fileno())
        self._cpus = cpus
        self._unsent = unsent
        self._num_loading = 0
        """How many jobs it was given and has not set up yet. Only the last of them counts."""

    def assign(self, spec: WorkerSpec | None) -> None:
        if spec is None:
            self._sender.push(wire.pack(wire.FORGET))
        else:
            path = [str(entry) for entry in sys.path]
            payload = path, sys.argv, self._cpus, spec.returns_unstarted, spec.pickled_job
            self._sender.push(wire.pack(wire.JOB, payload))
            self._num_loading += 1
        self.flush()

    def fileno(self) -> int:
        """Return the socket, for a selector."""
        return self._socket.fileno()

    def send(self, chunk: Chunk) -> int:
        payload = chunk.indexes, chunk.items
        segments = wire.pack(wire.CHUNK, payload, chunk=chunk.number, num_items=chunk.indexes[0])
        self._sender.push(segments)
        self.flush()
        return sum(len(segment) for segment in segments)

    def flush(self) -> None:
        """Write as much as the socket takes. It is closed if an interrupt came before the scheduler saw the death."""
        try:
            has_sent_all = self._socket.fileno() < 0 or self._sender.flush()
        except (BrokenPipeError, ConnectionResetError):
            has_sent_all = True  # it is dead or dying, which `receive` will notice
        if has_sent_all:
            self._unsent.discard(self)
        else:
            self._unsent.add(self)

    def current(self) -> Note | None:
        started, item, position = self._recorder.read()
        return (started, item, position) if item >= 0 else None

    def read_counts(self) -> dict[str, int]:
        num_records, num_bytes = self._recorder.read_counts()
        return {"records": num_records, "bytes": num_bytes}

    def num_bytes_received(self) -> int:
        return self._receiver.num_bytes

    def stop(self) -> None:
        self._sender.push(wire.pack(wire.STOP))
        self.flush()

    def kill(self) -> None:
        """End the worker and all processes that it started."""
        # Until the process is reaped, the system cannot give its number to another one.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of dead processes
                os.killpg(self.process.pid, signal.SIGKILL)

    def receive(self) -> tuple[list[Event], bool]:
        """Return the events of all complete messages, and whether the worker's end of the socket is closed."""
        events: list[Event] = []
        try:
            while (frame := self._receiver.receive()) is not None:
                if frame.kind in (wire.READY, wire.SETUP_FAILED):
                    self._num_loading -= 1
                    if self._num_loading:  # of a job that has ended before
                        continue
                events.append(decode_event(self, frame))
        except (EOFError, ConnectionResetError):
            return events, True
        return events, False

    def reap(self) -> Died:
        """Reap the process, end what it left running, and return how it ended."""
        code = self._end()
        _, item, position = self._recorder.read()
        crash_text = self._recorder.read_crash_text()
        self._ours.close()
        if code >= 0:
            return Died(self, f"exited with code {code}", None, item, position, crash_text)
        name = _name_signal(-code)
        return Died(self, f"was killed by {name}", name, item, position, crash_text)

    def close(self) -> None:
        """End the process and close this end of it, wherever an interrupt has left `reap`."""
        self._end()
        self._ours.close()

    def _end(self) -> int:
        self.kill()
        try:
            return self.process.wait(timeout=LEAVE_SECONDS)
        except subprocess.TimeoutExpired:  # killed, but stuck in the kernel (a dead network file system)
            return -signal.SIGKILL


def start_process(cpus: Sequence[int] | None, unsent: set[WorkerProcess]) -> WorkerProcess:
    """Start a worker process."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with contextlib.ExitStack() as ours:
        ends = WorkerEnds()
        ours.push(ends.ours)
        with ends.theirs:
            process = subprocess.Popen(
                # -P: the current folder must not come first, where a user's random.py would hide Python's own.
                [sys.executable, *flags, "-P", "-c", _BOOTSTRAP, _PACKAGE_ROOT, *map(str, ends.inherited)],
                pass_fds=ends.inherited,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**STEADY_HEAP, **os.environ, **ONE_THREAD},
            )
        worker = WorkerProcess(process, ends, cpus, unsent)
        ours.pop_all()
    return worker


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
    except BaseException as raised:  # anything that the results' own code raises, sys.exit() included
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
