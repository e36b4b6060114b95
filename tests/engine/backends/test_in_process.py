"""The calling thread as a worker: one chunk for each wait, in order. What all backends promise is in `conformance`.

Worker threads: of this process, and as many as asked for. What all backends promise is in `conformance`.
"""

import os
import threading

import gristmill as gm
from gristmill.engine.backends.in_process import SerialBackend


def test_items_run_in_the_calling_thread_in_order():
    seen = []

    def note(item):
        seen.append((item, threading.get_ident()))
        return item

    assert list(gm.parallel_map(note, range(5), backend="serial")) == list(range(5))
    assert seen == [(item, threading.get_ident()) for item in range(5)]


def test_a_worker_that_is_stopped_says_so():
    backend = SerialBackend()
    worker = backend.start(None)
    assert backend.wait(0) == []
    worker.stop()
    [died] = backend.wait(None)
    assert died.worker is worker
    assert backend.wait(0) == []
    assert backend.find_other_node("a") is None


def test_workers_are_threads_of_this_process_that_run_together():
    together = threading.Barrier(3, timeout=60)

    def meet(item):
        together.wait()
        return os.getpid(), threading.get_ident()

    places = list(gm.parallel_map(meet, range(3), backend="threads", workers=3, chunk_size=1))
    assert {pid for pid, _ in places} == {os.getpid()}
    assert len({thread for _, thread in places}) == 3
    assert threading.get_ident() not in {thread for _, thread in places}
