"""A worker stopped in the middle of a message holds up nobody: the scheduler never waits for one worker."""

import os
import signal

import psutil
import pytest
from gristmill_testing.watching import sign, wait_for_file, wait_until

import gristmill as gm

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]

LARGE = 64 << 20  # far more than any socket buffer holds
NUM_SMALL = 10


def function_for(folder):
    """Item 0 gives a large result once it is told to. The others are small."""

    def function(n):
        if n == 0:
            (folder / "new").write_text(str(os.getpid()))
            (folder / "new").rename(folder / "pid")
            wait_for_file(folder / "go")
            return bytes(LARGE)
        wait_for_file(folder / "pid")
        return n

    return function


def stop_in_mid_message(folder):
    """Called while nobody reads: let the worker of item 0 send, wait until it is stuck in that, then stop it."""
    process = psutil.Process(int((folder / "pid").read_text()))
    sign(folder, "go")

    def is_stuck_in_write():
        with open(f"/proc/{process.pid}/syscall") as file:
            return file.read().split()[0] in ("1", "20", "44", "46")  # write, writev, sendto, sendmsg

    wait_until(is_stuck_in_write, "the worker to be stuck in its send")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the worker to be stopped")
    return process


def started(folder, **options):
    """A job of which one small result has been taken, while item 0 waits to be told to send its large one."""
    results = gm.parallel_imap(
        function_for(folder), range(1 + NUM_SMALL), workers=2, chunk_size=1, ordered=False, **options
    )
    first = next(results)
    assert isinstance(first, int)
    return results, [first]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system calls are known by number on x86-64 only")
class TestStopped:
    def test_others_go_on_and_a_continued_worker_completes(self, folder):
        results, got = started(folder)
        process = stop_in_mid_message(folder)
        # One more may already have been sent to the stopped worker; test_slow_items.py is about that one.
        got += [next(results) for _ in range(NUM_SMALL - 2)]
        assert all(isinstance(result, int) for result in got), "the others came while one was stopped"
        process.send_signal(signal.SIGCONT)
        got += list(results)
        assert sorted(result for result in got if isinstance(result, int)) == list(range(1, 1 + NUM_SMALL))
        assert [result for result in got if isinstance(result, bytes)] == [bytes(LARGE)]

    def test_stopped_worker_is_killed_when_the_caller_leaves(self, folder):
        results, _ = started(folder)
        process = stop_in_mid_message(folder)
        results.close()
        assert not process.is_running()

    def test_stopped_worker_can_be_killed_and_its_item_is_run_again(self, folder):
        results, got = started(folder)
        process = stop_in_mid_message(folder)
        process.kill()
        got += list(results)
        assert sorted(result for result in got if isinstance(result, int)) == list(range(1, 1 + NUM_SMALL))
        assert [result for result in got if isinstance(result, bytes)] == [bytes(LARGE)]

    def test_stopped_worker_is_ended_by_the_timeout(self, folder):
        """It will never finish its message; with a timeout the job must."""
        results, got = started(folder, timeout=2.0, on_error="return")
        stop_in_mid_message(folder)
        got += list(results)
        assert sorted(result for result in got if isinstance(result, int)) == list(range(1, 1 + NUM_SMALL))
        (last,) = (result for result in got if not isinstance(result, int))
        assert isinstance(last, bytes) or last.kind == "timeout"


@pytest.mark.full
def test_worker_stopped_while_it_should_receive(folder):
    """The large message goes the other way: an item that cannot be delivered. Others go on."""

    def function(item):
        if item == "stop":
            sign(folder, f"pid-{os.getpid()}")
            os.kill(os.getpid(), signal.SIGSTOP)
        return len(item)

    items = ["stop", *[bytes(8 << 20)] * 8]
    results = gm.parallel_imap(function, items, workers=2, chunk_size=1, ordered=False)
    got = [next(results) for _ in range(7)]  # the eighth may be on its way to the stopped one
    assert got == [8 << 20] * 7
    (path,) = folder.glob("pid-*")
    os.kill(int(path.name.removeprefix("pid-")), signal.SIGCONT)
    assert sorted([*got, *results]) == [4, *[8 << 20] * 8]


def test_stopped_in_the_function_is_late(folder):
    """A worker that is stopped inside its item is over its timeout like one that sleeps."""

    def function(n):
        if n == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return n

    results = gm.parallel_map(function, range(3), workers=2, timeout=1.0, on_error="return")
    assert (results[0], results[2]) == (0, 2)
    assert results[1].kind == "timeout"
