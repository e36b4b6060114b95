"""The kernel kills for lack of memory, in a real control group: the greedy item is named, the rest is done."""

import json

import pytest
from gristmill_testing import memory_groups, scripts

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]

LIMIT = 300 << 20


def test_item_that_needs_more_than_there_is(project):
    script = scripts.write(
        project / "script.py",
        """
        import json, os
        import gristmill as gm

        def function(n):
            return len(bytearray(os.urandom(1 << 20)) * 1000) if n == 5 else n

        results = gm.parallel_map(function, range(12), workers=2, on_error="return", progress=False)
        failure = results[5]
        print(json.dumps([failure.kind, failure.index, failure.signal, failure.error_type]))
        print(json.dumps(results[:5] + results[6:]))
        """,
    )
    with memory_groups.limited(LIMIT) as group:
        process = memory_groups.run_inside(group, script)
    assert process.returncode == 0, process.stderr
    failure, others = map(json.loads, process.stdout.splitlines())
    assert failure == ["out_of_memory", 5, "SIGKILL", "OutOfMemoryError"]
    assert others == [n for n in range(12) if n != 5]


@pytest.mark.full
def test_it_is_raised_as_a_memory_error(project):
    script = scripts.write(
        project / "script.py",
        """
        import os
        import gristmill as gm

        try:
            gm.parallel_map(lambda n: len(bytearray(os.urandom(1 << 20)) * 1000), [0], workers=1, progress=False)
        except MemoryError as error:
            print(type(error).__name__, error.__notes__[0])
        """,
    )
    with memory_groups.limited(LIMIT) as group:
        process = memory_groups.run_inside(group, script)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("OutOfMemoryError")
    assert "item 0" in process.stdout


@pytest.mark.full
def test_items_that_fit_only_one_at_a_time(project):
    """Each needs half of the memory. Fewer workers, and everything returns; nobody is to blame."""
    script = scripts.write(
        project / "script.py",
        """
        import json, os, time
        import gristmill as gm

        def function(n):
            memory = bytearray(os.urandom(1 << 20)) * 170
            time.sleep(0.05)  # so that they meet
            return n + len(memory) - len(memory)

        log = gm.EventLog("events.jsonl")
        print(json.dumps(gm.parallel_map(function, range(10), workers=4, chunk_size=1, progress=log)))
        """,
    )
    with memory_groups.limited(LIMIT) as group:
        process = memory_groups.run_inside(group, script, cwd=project)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == list(range(10))
    events = [json.loads(line) for line in (project / "events.jsonl").read_text().splitlines()]
    assert any(event["event"] == "workers_reduced" for event in events), events


@pytest.mark.full
def test_argument_that_does_not_fit_into_the_group(project):
    """The parent lies outside the limit; the worker is killed while it receives. It must end, with this item named."""
    script = scripts.write(
        project / "script.py",
        """
        import json, os, sys
        import gristmill as gm

        def setup():  # only the workers are limited
            with open(sys.argv[1], "w") as file:
                file.write(str(os.getpid()))

        def function(item, _):
            return len(item)

        items = [b"a", bytes(600 << 20), b"b"]
        results = gm.parallel_map(
            function, items, workers=2, chunk_size=1, setup=setup, on_error="return", progress=False
        )
        print(json.dumps([result.kind if isinstance(result, gm.Failure) else result for result in results]))
        """,
    )
    with memory_groups.limited(LIMIT) as group:
        process = scripts.run(script, group / "cgroup.procs", seconds=25)
    assert process.returncode == 0, process.stderr
    first, kind, last = json.loads(process.stdout)
    assert (first, last) == (1, 1)
    assert kind in ("out_of_memory", "worker_died")  # the parent does not see the workers' own group


@pytest.mark.full
def test_number_of_workers_follows_the_memory_of_the_group(project):
    """`workers="auto"`: a set-up of 100 MiB leaves room for two in 300 MiB, however many cores there are."""
    script = scripts.write(
        project / "script.py",
        """
        import os
        import gristmill as gm
        from gristmill.engine import machine

        machine.usable_cpus = lambda: list(range(10))
        machine.num_physical_cores = lambda: 16
        machine.cpu_quota = lambda: float("inf")

        def setup():
            return bytearray(os.urandom(1 << 20)) * 100

        def function(n, state):
            return os.getpid()

        print(len(set(gm.parallel_map(function, range(200), chunk_size=1, setup=setup, progress=False))))
        """,
    )
    with memory_groups.limited(LIMIT) as group:
        process = memory_groups.run_inside(group, script)
    assert process.returncode == 0, process.stderr
    assert 1 <= int(process.stdout) <= 2
    assert "SIGKILL" not in process.stderr


@pytest.mark.slow
def test_worker_that_grows_is_recycled(project):
    """A function that leaks: its worker is replaced between items, before the kernel has to kill it.

    25 MiB a second at most, and memory is looked at every second: the cap of 120 MiB is seen well below 150.
    """
    script = scripts.write(
        project / "script.py",
        """
        import json, os, time
        import gristmill as gm

        leaked = []

        def function(n):
            leaked.append(bytearray(os.urandom(1 << 20)))
            time.sleep(0.04)
            return os.getpid()

        log = gm.EventLog("events.jsonl")
        pids = gm.parallel_map(function, range(170), workers=1, chunk_size=1, progress=log)
        print(len(set(pids)))
        """,
    )
    with memory_groups.limited(150 << 20) as group:
        process = memory_groups.run_inside(group, script, cwd=project)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) >= 2
    events = [json.loads(line)["event"] for line in (project / "events.jsonl").read_text().splitlines()]
    assert "worker_recycled" in events
    assert "worker_died" not in events
