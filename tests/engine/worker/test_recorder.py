"""The flight recorder: what a worker was doing, readable by its parent at any time and after its death."""

import os
import subprocess
import sys
import time

import pytest

from gristmill.engine.worker.recorder import SIZE, Recorder, create_recording


@pytest.fixture
def pair():
    """Two maps of one file, as parent and worker have them."""
    fd = create_recording()
    parent, worker = Recorder(fd), Recorder(fd)
    os.close(fd)
    yield parent, worker
    parent.close()
    worker.close()


def test_nothing_is_noted_at_first(pair):
    parent, _ = pair
    started, item, position = parent.read()
    assert started == float("inf")
    assert (item, position) == (-1, -1)
    assert parent.read_crash_text() == ""


def test_notes_are_seen_at_once(pair):
    parent, worker = pair
    worker.note(12.5, 2**40)
    assert parent.read() == (12.5, 2**40, -1)
    before = time.monotonic()
    worker.note_position(17)
    started, item, position = parent.read()
    assert before <= started <= time.monotonic()
    assert (item, position) == (2**40, 17)


def test_untimed_notes_are_never_late(pair):
    parent, worker = pair
    worker.note(12.5, 3)
    worker.note_position(9)
    worker.stop_clock()
    assert parent.read() == (float("inf"), 3, 9)
    worker.note_idle()
    assert parent.read() == (float("inf"), -1, -1)


def test_next_item_forgets_the_position(pair):
    parent, worker = pair
    worker.note(1.0, 1)
    worker.note_position(5)
    worker.note(2.0, 2)
    assert parent.read() == (2.0, 2, -1)


def test_file_has_no_name_and_goes_with_its_holders():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    fd = create_recording()
    assert os.fstat(fd).st_nlink == 0
    assert os.fstat(fd).st_size == SIZE
    os.close(fd)
    if before:
        assert not {name for name in set(os.listdir("/dev/shm")) - before if "gristmill" in name}


def test_notes_of_another_process_survive_its_death():
    fd = create_recording()
    code = (
        "import faulthandler, os, sys\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from gristmill.engine.worker.recorder import Recorder\n"
        f"recorder = Recorder({fd})\n"
        f"faulthandler.enable({fd}, all_threads=False)\n"
        "recorder.note(3.25, 42)\n"
        "def crashing_function(): os.kill(os.getpid(), 11)\n"
        "crashing_function()\n"
    )
    process = subprocess.run([sys.executable, "-c", code], pass_fds=[fd], timeout=240)
    assert process.returncode == -11
    recorder = Recorder(fd)
    os.close(fd)
    assert recorder.read() == (3.25, 42, -1)
    assert "Segmentation fault" in recorder.read_crash_text()
    assert "crashing_function" in recorder.read_crash_text()
    recorder.close()


def test_reading_never_sees_half_a_note():
    """A process that writes without pause, read as fast as possible: time and number always belong together."""
    fd = create_recording()
    code = (
        "import sys\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from gristmill.engine.worker.recorder import Recorder\n"
        f"recorder = Recorder({fd})\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    recorder.note(float(n), n, n)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[fd])
    recorder = Recorder(fd)
    os.close(fd)
    try:
        deadline = time.monotonic() + 30
        while recorder.read()[1] < 1000:
            assert time.monotonic() < deadline
        latest = 1000
        for _ in range(200_000):
            started, item, _ = recorder.read()
            assert started >= item, "an earlier time than that of the item, such as zero, would be late"
            assert item >= latest
            latest = item
    finally:
        process.kill()
        process.wait()
        recorder.close()
