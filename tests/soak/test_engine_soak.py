"""Minutes of killed workers: every item returns its right result, nobody is blamed, nothing hangs, nothing is left."""

import json
import os
import random
import signal
import threading
import time

import pytest
from gristmill_testing.watching import is_alive, open_files

import gristmill as gm

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(900)]

NUM_ITEMS = 5000
KILL_SECONDS = 0.25


class Killer(threading.Thread):
    """Kills one busy worker every quarter of a second until told to stop."""

    def __init__(self, folder, signals):
        super().__init__()
        self._folder = folder
        self._signals = signals
        self._rng = random.Random(7)
        self._stop_now = threading.Event()
        self.num_kills = 0
        self.most_files = 0

    def run(self):
        while not self._stop_now.wait(KILL_SECONDS):
            self.most_files = max(self.most_files, len(open_files()))
            busy = [int(name) for name in os.listdir(self._folder) if is_alive(int(name))]
            if busy:
                try:
                    os.kill(self._rng.choice(busy), self._rng.choice(self._signals))
                except ProcessLookupError:
                    continue
                self.num_kills += 1

    def stop(self):
        self._stop_now.set()
        self.join()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("chunk_size", [1, "auto", 25])
def test_soak(folder, tmp_path, chunk_size, ordered):
    """4 workers, 5,000 items of 20 ms, one busy worker killed every 250 ms until done."""

    def function(n):
        sign = folder / str(os.getpid())  # "this process is inside an item"
        sign.touch()
        time.sleep(0.02)
        sign.unlink()
        return n, str(n) * 3

    path = tmp_path / "events.jsonl"
    killer = Killer(folder, [signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
    killer.start()
    try:
        results = gm.parallel_map(
            function,
            range(NUM_ITEMS),
            workers=4,
            chunk_size=chunk_size,
            ordered=ordered,
            on_error="return",
            progress=gm.EventLog(path),
        )
    finally:
        killer.stop()
    blamed = [result for result in results if isinstance(result, gm.Failure)]
    assert blamed == []
    assert (results if ordered else sorted(results)) == [(n, str(n) * 3) for n in range(NUM_ITEMS)]
    end = json.loads(path.read_text().splitlines()[-1])
    assert end["event"] == "job_ended"
    assert end["done"] == NUM_ITEMS
    assert killer.num_kills >= 40, "the test would prove little"
    assert end["deaths"] >= killer.num_kills // 2
    assert killer.most_files < 150


def test_soak_of_large_results(folder, tmp_path):
    """The same with 400 results of 4 MiB: workers die in the middle of their messages."""

    def function(n):
        sign = folder / str(os.getpid())
        sign.touch()
        return bytes([n % 256]) * (4 << 20)  # the sign stays: it is killed while it sends too

    killer = Killer(folder, [signal.SIGKILL])
    killer.start()
    try:
        for n, result in enumerate(gm.parallel_imap(function, range(400), workers=4, chunk_size=1)):
            assert result == bytes([n % 256]) * (4 << 20)
            time.sleep(0.02)  # a consumer with work of its own
    finally:
        killer.stop()
    assert n == 399
    assert killer.num_kills >= 10
    assert killer.most_files < 150


def test_soak_of_a_guilty_item_among_killed_innocents(folder):
    """Some items really kill their workers while others are killed from outside: only the guilty are named."""
    guilty = {100, 555, 900}

    def function(n):
        sign = folder / str(os.getpid())
        sign.touch()
        time.sleep(0.02)
        if n in guilty:
            os.abort()
        sign.unlink()
        return n

    killer = Killer(folder, [signal.SIGKILL])
    killer.start()
    try:
        results = gm.parallel_map(function, range(1000), workers=4, on_error="return")
    finally:
        killer.stop()
    assert {n for n, result in enumerate(results) if isinstance(result, gm.Failure)} == guilty
    assert all(result == n for n, result in enumerate(results) if n not in guilty)
    assert killer.num_kills >= 5
