"""The simulation of a cluster: every task ends once, and memory does not grow with their number."""

import tracemalloc

from benchmarks.simulated_cluster import run_units, simulate


def measure(function, *numbers):
    tracemalloc.start()
    try:
        function(*numbers)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_the_scheduler_does_not_grow_with_tasks():
    measure(simulate, 50, 100)
    assert measure(simulate, 50, 4000) < measure(simulate, 50, 400) + 200_000


def test_a_stage_of_simulated_workers():
    assert run_units(20, 4) > 1
