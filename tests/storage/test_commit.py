"""Files that are synced in a thread: nobody hears of them before they are on the disk."""

import contextlib
import errno
import os
import threading

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import UsageError
from gristmill.storage import commit
from gristmill.storage.commit import (
    PendingFile,
    SyncThread,
    count_free_bytes,
    make_folder,
    remove_temporaries,
    sync_files,
    write_file,
)
from gristmill.storage.files import compute_file_checksum


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_nothing_is_visible_before_commit_and_all_after(tmp_path):
    path = tmp_path / "shard"
    with PendingFile(path, "run1") as file:
        file.write(b"hello ")
        file.write(b"world")
        assert not path.exists()
        file.commit()
        assert path.read_bytes() == b"hello world"
    assert names(tmp_path) == ["shard"]
    assert file.num_bytes == 11
    assert file.checksum == compute_file_checksum(path) == xxhash.xxh3_64_hexdigest(b"hello world")


def test_without_commit_nothing_stays(tmp_path):
    with PendingFile(tmp_path / "a", "run1") as file:
        file.write(bytes(10**6))
    assert names(tmp_path) == []


def test_an_exception_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with contextlib.suppress(KeyError), PendingFile(path, "run1") as file:
        file.write(b"new")
        file.sync()
        raise KeyError
    assert names(tmp_path) == ["a"]
    assert path.read_text() == "old"


def test_commit_replaces_an_older_file(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    checksum = write_file(path, b"new", "run1")
    assert path.read_text() == "new"
    assert checksum == compute_file_checksum(path)


def test_two_writers_of_one_name_do_not_meet(tmp_path):
    path = tmp_path / "a"
    with PendingFile(path, "run1") as first, PendingFile(path, "run1") as second:
        first.write(b"first")
        second.write(b"second")
        second.commit()
        assert path.read_bytes() == b"second"
        first.commit()
    assert path.read_bytes() == b"first"


@given(
    pieces=st.lists(
        st.one_of(st.binary(max_size=50), st.integers(0, 600_000).map(lambda size: b"x" * size)), max_size=8
    )
)
def test_writes_of_any_size_add_up(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("sizes") / "a"
    with PendingFile(path, "run1") as file:
        for piece in pieces:
            file.write(piece)
        file.commit()
    assert path.read_bytes() == b"".join(pieces)
    assert file.checksum == xxhash.xxh3_64_hexdigest(b"".join(pieces))


def test_a_changed_buffer_does_not_change_what_was_written(tmp_path):
    buffer = bytearray(b"before")
    with PendingFile(tmp_path / "a", "run1") as file:
        file.write(buffer)
        buffer[:] = b"after!"
        file.commit()
    assert (tmp_path / "a").read_bytes() == b"before"


def test_arrays_are_buffers_too(tmp_path):
    array = np.arange(6, dtype=np.uint16).reshape(2, 3)
    write_file(tmp_path / "a", array, "run1")
    assert (tmp_path / "a").read_bytes() == array.tobytes()


def test_missing_folders_are_made(tmp_path):
    write_file(tmp_path / "train" / "web" / "a", b"", "run1")
    make_folder(tmp_path / "train" / "web")
    assert names(tmp_path / "train" / "web") == ["a"]


def test_files_have_the_rights_the_user_asked_for(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "a", b"", "run1")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_only_our_own_temporaries_are_removed(tmp_path):
    kept = [".gristmill-run1-short.tmp", "x.tmp", ".hidden", ".gristmill-lock", "gristmill-run1-0123456789abcdef.tmp"]
    for name in kept:
        (tmp_path / name).write_text("")
    (tmp_path / "train").mkdir()
    for folder, run in ((tmp_path, "run1"), (tmp_path / "train", "run1"), (tmp_path, "run2"), (tmp_path, "my-run1")):
        PendingFile(folder / "a", run).__enter__()  # as if killed
    assert len(remove_temporaries(tmp_path, "run1")) == 2
    assert len(names(tmp_path)) == len(kept) + 3
    assert len(remove_temporaries(tmp_path, None)) == 2
    assert names(tmp_path) == sorted([*kept, "train"])
    assert names(tmp_path / "train") == []


@pytest.mark.parametrize("mark", [".gristmill", ".gristmill-lock"])
def test_temporaries_of_another_output_inside_are_left_alone(tmp_path, mark):
    (tmp_path / mark).mkdir()
    (tmp_path / "other" / mark).mkdir(parents=True)
    for folder in (tmp_path / mark, tmp_path / "other", tmp_path / "other" / mark):
        PendingFile(folder / "a", "run1").__enter__()
    assert [os.path.dirname(path) for path in remove_temporaries(tmp_path, None)] == [str(tmp_path / mark)]


@pytest.mark.parametrize("run_id", ["", "a/b", "a b", "../x"])
def test_a_run_id_that_is_no_part_of_a_name_is_refused(tmp_path, run_id):
    with pytest.raises(UsageError, match="run id"), PendingFile(tmp_path / "a", run_id):
        pass
    assert names(tmp_path) == []


def test_errors_name_the_path_and_keep_their_number(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("")
    with pytest.raises(OSError, match="director") as caught:
        write_file(tmp_path / "a", b"", "run1")
    assert caught.value.errno is not None
    assert str(tmp_path / "a") in "".join(caught.value.__notes__)
    assert names(tmp_path) == ["a"]


def test_free_bytes_of_a_folder_that_is_not_there_yet(tmp_path):
    assert count_free_bytes(tmp_path / "x" / "y") > 0


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
    monkeypatch.setattr("gristmill.storage.commit._MAX_WAITING", 2)
    order = []
    with SyncThread(order.append) as thread:
        for number in range(50):
            thread.add(number, [write(tmp_path / str(number))])
            assert len(thread._waiting) <= 2
    assert order == list(range(50))
