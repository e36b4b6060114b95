"""What a worker does with the messages that it receives, wherever it runs: load a job, run chunks, send results."""

from __future__ import annotations

import _thread
import gc
import os
import sys
from time import monotonic

from gristmill.engine.worker import binding, nesting, pickling, wire
from gristmill.engine.worker import chunk as chunks
from gristmill.engine.worker.captured_error import CapturedError
from gristmill.engine.worker.job import Context

TYPE_CHECKING = False  # a worker does without the typing module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from gristmill.engine.worker.chunk import Chunk, ChunkResults
    from gristmill.engine.worker.pickling import Buffer
    from gristmill.engine.worker.recorder import Recorder


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
        self._context = Context(self._send_counts, recorder, self.wait_for_last_chunk)
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
        self._forget_job()
        if frame.kind == wire.JOB:
            if not self._load_job(frame):
                return False
            self._send(wire.READY)
        return True

    def wait_for_last_chunk(self) -> None:
        """Wait until nothing of an earlier chunk is under way, and its results are sent."""
        if self._finishing.locked():
            self._recorder.pause_clock()  # whatever that chunk waits for must not count as this item's time
            with self._finishing:
                self._recorder.restart_clock()

    def _forget_job(self) -> None:
        """Free what the last job has loaded, before the next one loads more."""
        self._function = None
        self._extra_arguments = ()
        self._context.state = None
        gc.collect()

    def _load_job(self, frame: wire.Frame) -> bool:
        try:
            path, sys.argv[:], place, self._returns_unstarted, pickled = frame.load()
            if path is not None:
                sys.path[:] = path
            if place is not None:
                binding.bind_process(place)
            nesting.mark_process_as_worker()
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
        self._context.begin_item()  # first: whoever reads the note then reads the counters of this item
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
            # As in the main thread it ends this process: the parent would wait for the result for ever.
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        finally:
            self._finishing.release()

    def _send_packed(self, segments: list[Buffer]) -> None:
        with self._sending:
            self._send_segments(segments)

    def _send(self, kind: int, payload: object = None, *, chunk: int = -1) -> None:
        self._send_packed(wire.pack(kind, payload, chunk=chunk))

    def _send_counts(self, counts: dict[str, int]) -> None:
        self._send(wire.COUNTS, counts)


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
