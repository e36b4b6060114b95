"""Workers that one of them forks after it has imported what all need: all are children of this process."""

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from gristmill_testing.watching import is_alive, meet, sign, wait_for_files, wait_until

from gristmill.engine.observing.events import EventLog
from gristmill.engine.parallel_run import make_pool
from gristmill.engine.pool import worker_pool
from gristmill.engine.tasks import Task, run_tasks
from gristmill.engine.worker.job import make_import_job

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers fork on Linux only"),
]
GET_CHILD_SUBREAPER = 37
FORKED_FROM = "GRISTMILL_TEST_FORKED_FROM"


def note_process():
    os.environ[FORKED_FROM] = str(os.getpid())


def note_process_and_start_thread():
    note_process()
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def refuse(*_):
    raise OSError(errno.EAGAIN, "no more of these")


def note_process_and_refuse(name):
    """Let a function of `os` that forking needs fail: without /proc, open files or processes that are left."""
    note_process()
    setattr(os, name, refuse)


def die_once(folder):
    note_process()
    if not list(folder.glob("dead")):
        sign(folder, "dead")
        os.kill(os.getpid(), signal.SIGKILL)


def hang(folder):
    sign(folder, os.getpid())
    time.sleep(600)


def describe_process(task, context):
    meet(task.payload, 3)
    origin = int(os.environ.get(FORKED_FROM, "0"))
    return os.getpid(), os.getppid(), os.getsid(0), origin


def kill_first_process(task, context):
    """Kill the process from which the others were forked, once, while all work."""
    meet(task.payload, 3)
    if os.getpid() == int(os.environ.get(FORKED_FROM, "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def kill_other_process(task, context):
    meet(task.payload, 3)
    if os.environ.get(FORKED_FROM, str(os.getpid())) != str(os.getpid()):
        with suppress(FileExistsError):
            (task.payload / "killed").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGSEGV)
    return os.getpid()


def start_pool(prepare=note_process):
    pool = make_pool("processes", keeps_workers=True)
    pool.start_ahead(3, make_import_job("json", prepare), forks=True)
    return pool


def run(pool, function, folder, num_tasks=3, **options):
    folder.mkdir(exist_ok=True)
    tasks = [Task(f"task {number}", folder) for number in range(num_tasks)]
    options = {"runs_user_code": False, "progress": False, **options}
    return [result for _, result in run_tasks(function, tasks, workers=3, pool=pool, **options)]


def list_events(path, kind):
    return [event for line in path.read_text().splitlines() if (event := json.loads(line))["event"] == kind]


@pytest.mark.parametrize("runs_user_code", [False, True])
def test_one_process_imports_for_all(tmp_path, runs_user_code):
    with start_pool() as pool:
        assert pool.num_unused == 3
        workers = run(pool, describe_process, tmp_path / "met", runs_user_code=runs_user_code)
        assert ctypes.CDLL(None).prctl(GET_CHILD_SUBREAPER, ctypes.byref(takes := ctypes.c_int(-1))) == 0
        assert takes.value == 0
    pids = {pid for pid, _, _, _ in workers}
    assert len(pids) == 3
    [origin] = {origin for _, _, _, origin in workers}
    assert origin in pids
    assert {parent for _, parent, _, _ in workers} == {os.getpid()}
    assert all(session == pid for pid, _, session, _ in workers)
    assert not any(map(is_alive, pids))


REFUSALS = [partial(note_process_and_refuse, name) for name in ("listdir", "pipe", "fork")]


@pytest.mark.parametrize(
    "prepare", [note_process_and_start_thread, *REFUSALS, None], ids=["threads", "proc", "pipes", "processes", "death"]
)
def test_workers_start_as_usual_where_one_cannot_fork(tmp_path, capfd, prepare):
    with start_pool(prepare or partial(die_once, tmp_path)) as pool:
        workers = run(pool, describe_process, tmp_path / "met")
    assert len({pid for pid, _, _, _ in workers}) == 3
    assert sum(origin != 0 for _, _, _, origin in workers) == (prepare is not None)
    assert capfd.readouterr().err == ""


def test_a_process_that_hangs_before_it_forks_is_replaced(tmp_path, monkeypatch):
    with start_pool(partial(hang, tmp_path)) as pool:
        [pid] = wait_for_files(tmp_path, 1)
        monkeypatch.setattr(worker_pool, "FORK_SECONDS", 0.0)
        workers = run(pool, describe_process, tmp_path / "met")
        assert len({pid for pid, _, _, _ in workers}) == 3
        assert int(pid) not in {pid for pid, _, _, _ in workers}
        wait_until(lambda: not is_alive(int(pid)), "the end of the process that hangs")


@pytest.mark.parametrize("function", [kill_first_process, kill_other_process])
def test_the_others_work_on_when_one_of_them_is_killed(tmp_path, function):
    events = tmp_path / "events.jsonl"
    with start_pool() as pool:
        assert len(run(pool, function, tmp_path / "met", num_tasks=20, events=EventLog(events))) == 20
    [death] = list_events(events, "worker_died")
    assert ("SIGKILL" if function is kill_first_process else "SIGSEGV") in death["cause"]
    assert len(list_events(events, "worker_reused")) == 3


SCRIPT = """
import sys, time
from pathlib import Path
sys.path[:] = {path!r}
from test_forked_workers import describe_process, start_pool, run
with start_pool() as pool:
    print(*(pid for pid, *_ in run(pool, describe_process, Path({folder!r}))), flush=True)
    time.sleep(600)
"""


def test_all_end_with_their_parent(tmp_path):
    script = SCRIPT.format(path=[str(Path(__file__).parent), *sys.path], folder=str(tmp_path / "met"))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(set(pids)) == 3
    wait_until(lambda: not any(map(is_alive, pids)), "the end of all workers")
