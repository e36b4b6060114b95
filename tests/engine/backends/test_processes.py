"""Worker processes: children of this one, which are gone after the job. All else is in `conformance` and `faults`."""

import os

import gristmill as gm


def find_process(_):
    return os.getpid(), os.getppid()


def test_workers_are_children_of_this_process():
    places = list(gm.parallel_map(find_process, range(4), backend="processes", workers=2))
    assert os.getpid() not in {pid for pid, _ in places}
    assert 1 <= len({pid for pid, _ in places}) <= 2
