"""Files that are synced in a thread: nobody hears of them before they are on the disk."""

import errno
import os
import threading

import pytest

from gristmill.storage import commit
from gristmill.storage.commit import PendingFile, sync_files
from gristmill.storage.sync_thread import SyncThread


@pytest.fixture
def synced(monkeypatch):
    """The paths that were synced, in order."""
    paths = []
    fsync = os.fsync

    def note(fd):
        fsync(fd)
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(commit.os, "fsync", note)
    return paths


def write(path, content=b"data"):
    with PendingFile(path, "run") as file:
        file.write(content)
        file.commit(sync=False)
    return path


def test_a_commit_without_sync_waits_for_no_disk(tmp_path, synced):
    path = write(tmp_path / "a.bin")
    assert path.read_bytes() == b"data"
    assert synced == []
    assert list(tmp_path.iterdir()) == [path]  # no temporary file is left


def test_files_are_synced_before_their_folders(tmp_path, synced):
    (tmp_path / "one").mkdir()
    paths = [write(tmp_path / "one" / "a"), write(tmp_path / "b"), write(tmp_path / "one" / "c")]
    sync_files(paths)
    assert synced == [*map(str, paths), str(tmp_path / "one"), str(tmp_path)]


def test_an_item_is_passed_on_after_its_files_and_folder(tmp_path, synced):
    events = []
    with SyncThread(lambda item: events.append((item, list(synced)))) as thread:
        for number in range(20):
            thread.add(number, [write(tmp_path / f"{number}.bin")])
    assert [item for item, _ in events] == list(range(20))
    for item, done in events:
        path = str(tmp_path / f"{item}.bin")
        assert str(tmp_path) in done[done.index(path) :]


def test_items_without_files_keep_their_order(tmp_path):
    order = []
    with SyncThread(order.append) as thread:
        thread.add("first", [write(tmp_path / "a")])
        thread.add("second", [])
    assert order == ["first", "second"]


def test_adding_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    may_sync = threading.Event()
    monkeypatch.setattr(commit.os, "fsync", lambda _fd: may_sync.wait())
    order = []
    with SyncThread(order.append) as thread:
        for number in range(5):
            thread.add(number, [write(tmp_path / str(number))])
        assert order == []
        may_sync.set()
    assert order == [0, 1, 2, 3, 4]


def test_an_error_of_the_disk_is_raised_and_nothing_after_it_is_passed_on(tmp_path, monkeypatch):
    def fail(_fd):
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(commit.os, "fsync", fail)
    order = []
    path = write(tmp_path / "a")
    with pytest.raises(OSError, match="the disk is gone") as caught, SyncThread(order.append) as thread:
        thread.add("first", [path])
    assert str(path) in caught.value.__notes__[0]
    assert order == []


def test_what_was_added_before_an_exception_is_still_passed_on(tmp_path):
    order = []

    def fail_after_one():
        with SyncThread(order.append) as thread:
            thread.add("done", [write(tmp_path / "a")])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_one()
    assert order == ["done"]


def test_a_slow_disk_slows_down_who_adds(tmp_path, monkeypatch):
    monkeypatch.setattr("gristmill.storage.sync_thread._MAX_WAITING", 2)
    order = []
    with SyncThread(order.append) as thread:
        for number in range(50):
            thread.add(number, [write(tmp_path / str(number))])
            assert len(thread._waiting) <= 2
    assert order == list(range(50))
