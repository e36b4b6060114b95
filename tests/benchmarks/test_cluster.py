"""The simulation of a cluster: every task ends once, and memory does not grow with their number."""

import tracemalloc

from benchmarks.cluster import simulate


def measure(num_tasks):
    tracemalloc.start()
    try:
        assert simulate(50, num_tasks)["tasks"] == num_tasks
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_the_scheduler_does_not_grow_with_tasks():
    measure(100)
    assert measure(4000) < measure(400) + 200_000
