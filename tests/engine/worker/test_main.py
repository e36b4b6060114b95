"""What a worker process is like: its environment, its place, its life from first to last item."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from gristmill_testing.watching import meet, sign, wait_for_file, wait_until

import gristmill as gm

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity here")


def test_native_libraries_run_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    names = ["FASTOKENS_BPE_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"]

    def function(_):
        import pyarrow as pa

        return [os.environ.get(name) for name in names], pa.cpu_count()

    ((values, num_threads),) = gm.parallel_map(function, [0], workers=1)
    assert values == ["1"] * len(names)
    assert num_threads == 1
    assert os.environ["OMP_NUM_THREADS"] == "7"  # the caller's own environment is not touched


def test_environment_of_the_parent_is_passed_on(monkeypatch):
    monkeypatch.setenv("MY_SETTING", "blue")
    assert gm.parallel_map(os.getenv, ["MY_SETTING"], workers=1) == ["blue"]


def test_path_folder_and_arguments_of_the_parent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["my-script", "--option"])
    (tmp_path / "module_of_the_project.py").write_text("VALUE = 17\n")

    def function(_):
        import module_of_the_project

        return module_of_the_project.VALUE, os.getcwd(), list(sys.path), list(sys.argv)

    ((value, folder, path, arguments),) = gm.parallel_map(function, [0], workers=1)
    assert value == 17
    assert folder == os.path.realpath(tmp_path)
    assert path == sys.path
    assert arguments == ["my-script", "--option"]


def test_the_package_may_be_on_the_path_of_the_parent_alone():
    """Not installed, so that no worker finds it by itself."""
    code = f"import sys; sys.path[:] = {[*sys.path, str(Path(gm.__file__).parents[1])]!r}; import gristmill as gm\n"
    code += "print(gm.parallel_map(abs, [-7], workers=1, backend='processes'))"
    command = [sys.executable, "-S", "-c", code]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "[7]\n"


def test_worker_is_a_fresh_interpreter():
    """Nothing of the parent's heap, threads or open files is there."""
    import numpy as np

    ballast = np.ones(50 << 20, dtype=np.uint8)
    read, write = os.pipe()
    os.set_inheritable(read, True)

    def function(_):
        import psutil

        files = list(os.listdir("/proc/self/fd"))
        links = []
        for fd in files:
            try:
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        return "numpy" in sys.modules, links, psutil.Process().memory_info().rss, threading.active_count()

    ((has_numpy, links, size, _),) = gm.parallel_map(function, [0], workers=1)
    pipe = os.readlink(f"/proc/self/fd/{read}")
    os.close(read)
    os.close(write)
    assert not has_numpy
    assert pipe not in links
    assert size < (50 << 20) <= ballast.nbytes


def test_stdin_of_a_worker_is_empty():
    """A function that asks must not steal the terminal's input, nor wait for it."""
    assert gm.parallel_map(lambda _: sys.stdin.read(), [0], workers=1) == [""]


@needs_affinity
def test_pinned_workers_have_a_processor_each(folder):
    usable = os.sched_getaffinity(0)
    number = min(3, len(usable))

    def function(_):
        meet(folder, number)
        return os.sched_getaffinity(0)

    places = gm.parallel_map(function, range(number), workers=number, chunk_size=1, pin=True)
    assert all(len(place) == 1 for place in places)
    assert len(set.union(*places)) == number
    assert set.union(*places) <= usable
    assert os.sched_getaffinity(0) == usable


@needs_affinity
def test_pinned_replacement_takes_the_place_of_the_dead(folder):
    def function(n):
        place = os.sched_getaffinity(0)
        if n == 0 and not (folder / "died").exists():
            sign(folder, "died")
            sign(folder, f"cpu-{min(place)}")
            os._exit(1)
        return place

    ((place),) = gm.parallel_map(function, [0], workers=1, pin=True)
    assert (folder / f"cpu-{min(place)}").exists()


@needs_affinity
def test_more_pinned_workers_than_processors(folder):
    number = len(os.sched_getaffinity(0)) + 1

    def function(_):
        meet(folder, number)
        return len(os.sched_getaffinity(0))

    assert gm.parallel_map(function, range(number), workers=number, chunk_size=1, pin=True) == [1] * number


@needs_affinity
def test_unpinned_workers_may_run_anywhere():
    assert gm.parallel_map(lambda _: os.sched_getaffinity(0), [0], workers=1) == [os.sched_getaffinity(0)]


@pytest.mark.parametrize("chunk_size", [1, 3, "auto"])
def test_worker_is_replaced_after_some_items(chunk_size):
    pids = gm.parallel_map(lambda _: os.getpid(), range(20), workers=1, max_items_per_worker=4, chunk_size=chunk_size)
    items_of = {pid: pids.count(pid) for pid in pids}
    assert len(items_of) >= 5
    assert max(items_of.values()) <= 4


def test_set_up_runs_again_in_each_replacement():
    states = gm.parallel_map(
        lambda _, state: (os.getpid(), state), range(9), workers=1, max_items_per_worker=3, setup=os.getpid
    )
    assert all(pid == state for pid, state in states)
    assert len(set(states)) == 3


@pytest.mark.slow
def test_replacement_of_workers_that_do_not_want_to_leave(folder):
    """A thread that the function left running keeps the interpreter from exiting: the job continues without it."""

    def function(n):
        threading.Thread(target=wait_for_file, args=(folder / "never", 3600)).start()
        return n

    most = 0
    others = set(psutil.Process().children())
    results = []
    for result in gm.parallel_imap(function, range(12), workers=2, max_items_per_worker=2, chunk_size=1):
        results.append(result)
        most = max(most, len(set(psutil.Process().children()) - others))
    assert results == list(range(12))
    assert most <= 6, "those who should have left are still there"


def test_leaving_workers_run_their_exit_handlers(folder):
    """A worker that is not killed leaves as Python programs do, so that libraries can tidy up."""

    def setup():
        import atexit

        atexit.register(sign, folder, "tidy")

    gm.parallel_map(lambda n, _: n, range(3), workers=1, setup=setup)
    wait_until((folder / "tidy").exists, "the exit handler")


def test_end_does_not_wait_long_for_those_who_do_not_want_to_leave(folder):
    def function(n):
        threading.Thread(target=wait_for_file, args=(folder / "never", 3600)).start()
        return n

    before = set(psutil.Process().children())
    assert gm.parallel_map(function, range(2), workers=1) == [0, 1]
    assert set(psutil.Process().children()) <= before


def test_workers_wait_without_using_the_processor(folder):
    """While one item takes long, nobody else burns time: neither the idle worker nor the parent."""

    def function(n):
        meet(folder, 2)
        if n == 0:
            wait_for_file(folder / "release")
        return os.getpid()

    results = gm.parallel_imap(function, range(2), workers=2, chunk_size=1, ordered=False)
    idle = psutil.Process(next(results))

    def release():
        before = idle.cpu_times()
        time.sleep(1.0)  # what is measured is the use of time
        after = idle.cpu_times()
        used.append(after.user + after.system - before.user - before.system)
        sign(folder, "release")

    used = []
    thread = threading.Thread(target=release)
    thread.start()
    own = time.process_time()
    list(results)
    own = time.process_time() - own
    thread.join()
    assert used[0] < 0.2
    assert own < 0.5


def test_worker_does_not_keep_the_last_items(folder):
    """Between two chunks a worker holds neither the last arguments nor the last results."""

    def function(n):
        import gc

        class_name = "Big"
        return sum(type(obj).__name__ == class_name for obj in gc.get_objects())

    class Big:
        def __init__(self):
            self.data = [0] * 10

    counts = gm.parallel_map(function, [Big() for _ in range(10)], workers=1, chunk_size=1)
    assert max(counts) <= 3


def test_interpreter_flags_are_passed_on(project):
    (project / "script.py").write_text(
        "import sys, gristmill as gm\n"
        "print(gm.parallel_map(lambda _: (sys.flags.optimize, sys.warnoptions), [0], workers=1))\n"
    )
    process = subprocess.run(
        [sys.executable, "-O", "-W", "error::UserWarning", "script.py"], capture_output=True, text=True, timeout=240
    )
    assert process.stdout == "[(1, ['error::UserWarning'])]\n", process.stderr


@pytest.mark.parametrize("closed", ["", "sys.stdout = None; "])
def test_a_worker_ends_quietly_where_its_output_is_closed(closed):
    """As after `gristmill run recipe.yaml >&-`: there is nothing to flush."""
    script = f"import sys; from gristmill.engine.worker.main import _exit_at_once; {closed}_exit_at_once()"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
