"""A job as a worker receives it, and what a worker does with it, in a process here or in an actor on a cluster.

A `Job` is a function and its set-up. The `JobRunner` loads it, runs its chunks and sends the results; a running task
reports to the scheduler through its `Context`.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING

from gristmill.engine.worker import pickling, wire
from gristmill.engine.worker.chunk import Chunk, mark_process_as_worker, run_chunk
from gristmill.engine.worker.pickling import CapturedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from gristmill.engine.worker.chunk import ChunkResults
    from gristmill.engine.worker.pickling import Buffer
    from gristmill.engine.worker.recorder import Recorder


_COUNTS_SECONDS = 0.25


class Job:
    """A function and its set-up. Sent to each worker once."""

    __slots__ = ("function", "runs_user_code", "setup", "takes_context")

    def __init__(
        self,
        function: Callable[..., Any],
        setup: Callable[[], Any] | None = None,
        *,
        takes_context: bool = False,
        runs_user_code: bool = True,
    ) -> None:
        self.function = function
        self.setup = setup
        self.takes_context = takes_context
        self.runs_user_code = runs_user_code
        """Whether it may change the state of its process: its workers run nothing before it and nothing after it."""

    def run_setup(self, context: Context) -> tuple[Any, ...]:
        """Run the set-up and return the arguments that follow the item in each call."""
        context.state = self.setup() if self.setup is not None else None
        if self.takes_context:
            return (context,)
        return (context.state,) if self.setup is not None else ()


def make_import_job(module: str) -> Job:
    """Make the job of workers that are started before there is work for them: to import what they will need."""
    return Job(import_module, partial(_import_for_good, module), runs_user_code=False)


def _import_for_good(module: str) -> None:
    """Import a module, and keep what it made from the garbage collector: it stays, and need not be searched again."""
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.freeze()
        gc.enable()


class Context:
    """A running task's connection to the scheduler: the worker's `state`, counters and a position."""

    def __init__(
        self,
        send: Callable[[dict[str, int]], None],
        recorder: Recorder | None = None,
        wait_for_last: Callable[[], float] | None = None,
    ) -> None:
        self.state: Any = None
        self._wait_for_last = wait_for_last
        self._send = send
        self._recorder = recorder
        self._counts: dict[str, int] = {}
        self._num_records = self._num_bytes = 0
        self._sent = monotonic()

    def begin_item(self) -> None:
        """Note that the counters of another item begin."""
        self._num_records = self._num_bytes = 0
        if self._recorder is not None:
            self._recorder.note_counts(0, 0)

    def count(self, **amounts: int) -> None:
        """Add to the job's counters (records, bytes, tokens). Sent at most four times a second."""
        for name, amount in amounts.items():
            self._counts[name] = self._counts.get(name, 0) + amount
        if self._recorder is not None:
            self._num_records += amounts.get("records", 0)
            self._num_bytes += amounts.get("bytes", 0)
            self._recorder.note_counts(self._num_records, self._num_bytes)
        if monotonic() - self._sent > _COUNTS_SECONDS:
            self.flush()

    def at(self, position: int) -> None:
        """Report that work on this position (record) inside the task starts now.

        The task's timeout counts from here, and a death or timeout names the position.
        """
        if self._recorder is not None:
            self._recorder.note_position(position)

    def wait_for_last_task(self) -> float:
        """Wait until the task before has finished (`Unfinished`): a worker has one under way while it runs another.

        Returns the seconds that it waited, exactly 0 if nothing was under way.
        """
        return 0.0 if self._wait_for_last is None else self._wait_for_last()

    def flush(self) -> None:
        """Send the counters now."""
        if self._counts:
            self._send(self._counts)
            self._counts = {}
            self._sent = monotonic()


class JobRunner:
    """The job of a worker. Answers go out through `send`, as segments of frames.

    With `finishes_later` results that are `Unfinished` are sent by a thread, while the next chunk runs. There is one
    such thread at a time, so results are sent in order.
    """

    def __init__(
        self, send: Callable[[list[Buffer]], None], recorder: Recorder, *, finishes_later: bool = False
    ) -> None:
        self._pid = os.getpid()
        self._send_segments = send
        self._sending = _thread.allocate_lock()
        self._finishing = _thread.allocate_lock()
        """Held while a thread waits for what is unfinished."""
        self._finishes_later = finishes_later
        self._recorder = recorder
        self._context = Context(lambda counts: self._send(wire.COUNTS, counts), recorder, self.wait_for_last_chunk)
        self._function: Any = None
        self._extra_arguments: tuple[Any, ...] = ()
        self._returns_unstarted = False
        self.has_run_user_code = False
        """Whether a job ran code of the user, which may have started threads."""

    def handle(self, frame: wire.Frame) -> bool:
        """Load a job, run a chunk, or forget the job. Returns false if a set-up failed: the worker is of no use."""
        if frame.kind == wire.CHUNK:
            self._run_chunk(frame)
            return True
        # Free what the last job has loaded, before the next one loads more.
        self._function = None
        self._extra_arguments = ()
        self._context.state = None
        gc.collect()
        if frame.kind == wire.JOB:
            if not self._load_job(frame):
                return False
            self._send(wire.READY)
        return True

    def wait_for_last_chunk(self) -> float:
        """Wait until nothing of an earlier chunk is under way, and its results are sent; returns the seconds waited."""
        if not self._finishing.locked():
            return 0.0
        started = monotonic()
        self._recorder.pause_clock()  # what that chunk waits for must not count as this item's time
        with self._finishing:
            self._recorder.restart_clock()
        return monotonic() - started

    def _load_job(self, frame: wire.Frame) -> bool:
        try:
            path, sys.argv[:], cpus, self._returns_unstarted, pickled = frame.load()
            if path is not None:
                sys.path[:] = path
            if cpus is not None:
                with suppress(OSError):  # the CPUs were taken away since the parent looked: it runs where it may
                    os.sched_setaffinity(0, cpus)
            mark_process_as_worker()
            job = pickling.decode(pickled if isinstance(pickled, bytes) else pickled.read())
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
        self._context.begin_item()  # first: a reader of the note then reads the counters of this item
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
        chunk = Chunk(frame.chunk, indexes, items)

        def emit(results: ChunkResults, *, last: bool) -> None:
            self._emit(results, chunk, last=last)

        run_chunk(
            self._function,
            self._extra_arguments,
            chunk,
            emit,
            recorder=self._recorder,
            returns_unstarted=self._returns_unstarted,
            finishes_later=self._finishes_later,
        )
        self._recorder.note_idle()

    def _emit(self, results: ChunkResults, chunk: Chunk, *, last: bool) -> None:
        if os.getpid() != self._pid:
            _end_forked_child(failed=bool(results.errors))
        self._context.flush()
        if results.is_unfinished:
            self.wait_for_last_chunk()
            if last:
                self._send(wire.FINISHING, chunk=chunk.number)
            self._finishing.acquire()
            _thread.start_new_thread(self._finish, (results, chunk, last))
            return
        segments = _pack_results(results, chunk, last=last)
        self.wait_for_last_chunk()
        # The parent may be busy and not read for a while: that must not count as the item's time.
        self._recorder.stop_clock()
        self._send_packed(segments)

    def _finish(self, results: ChunkResults, chunk: Chunk, last: bool) -> None:  # noqa: FBT001  (of a thread)
        try:
            results.finish()
            self._send_packed(_pack_results(results, chunk, last=last))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the parent has ended: the thread that watches it ends this process
        except BaseException:
            # As in the main thread it ends this process: the parent would wait for the result forever.
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        finally:
            self._finishing.release()

    def _send_packed(self, segments: list[Buffer]) -> None:
        with self._sending:
            self._send_segments(segments)

    def _send(self, kind: int, payload: object = None, *, chunk: int = -1) -> None:
        self._send_packed(wire.pack(kind, payload, chunk=chunk))


def _pack_results(results: ChunkResults, chunk: Chunk, *, last: bool) -> list[Buffer]:
    num_items = len(results.values)
    try:
        return wire.pack(wire.RESULTS, results, last=last, chunk=chunk.number, num_items=num_items)
    except BaseException:  # some result cannot be sent: find which
        for position, value in enumerate(results.values):
            try:
                pickling.encode(value)
            except BaseException as error:
                results.values[position] = None
                about = "the result cannot be pickled"
                results.errors[position] = CapturedError(error, "unpicklable", about=about, travels=True)
        return wire.pack(wire.RESULTS, results, last=last, chunk=chunk.number, num_items=num_items)


def _end_forked_child(*, failed: bool) -> NoReturn:
    """End a child that the user's function forked and that returned from it: it must not answer for the worker."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(1 if failed else 0)
