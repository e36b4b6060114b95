"""Files that are made here and appear together on a store, whatever happens on the way."""

import errno
import json
import os
import uuid

import pytest

from gristmill.core.errors import DamagedDatasetError, FolderLockedError, LeaseLostError
from gristmill.storage import parallel_files as in_place
from gristmill.storage.folders import open_folder
from gristmill.storage.locations import StorePath
from gristmill.storage.parallel_files import PreallocatedFiles, UploadedFiles, write_at
from gristmill.storage.stores.fsspec_store import FsspecStore


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(path, data, offset=0):
    fd = os.open(path, os.O_WRONLY)
    try:
        write_at(fd, data, offset)
    finally:
        os.close(fd)


def test_files_have_their_size_and_head_at_once_and_their_names_at_the_end(tmp_path):
    with PreallocatedFiles(tmp_path / "new/x") as files:
        temporary = files.add("_a.bin", 10, b"head")
        assert os.path.getsize(temporary) == 10
        assert not (tmp_path / "new/x_a.bin").exists()
        write(temporary, b"tail", 6)
        assert files.commit() == [tmp_path / "new/x_a.bin"]
    assert (tmp_path / "new/x_a.bin").read_bytes() == b"head\0\0tail"
    assert names(tmp_path / "new") == ["x_a.bin"]


def test_space_is_taken_before_anything_is_written(tmp_path):
    with PreallocatedFiles(tmp_path / "x") as files:
        assert os.stat(files.add(".bin", 1 << 20)).st_blocks * 512 >= 1 << 20


def test_without_commit_nothing_stays(tmp_path):
    with PreallocatedFiles(tmp_path / "x") as files:
        files.add(".bin", 10)
    assert names(tmp_path) == []


def test_no_space_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    def full(fd, start, num_bytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left") as caught, PreallocatedFiles(tmp_path / "x") as files:
        files.add("_train.bin", 10)
    assert any("x_train.bin" in note for note in caught.value.__notes__)
    assert names(tmp_path) == []


def test_temporaries_of_a_dead_process_are_removed_and_others_are_not(tmp_path):
    for prefix in ("x", "y"):
        files = PreallocatedFiles(tmp_path / prefix)
        files.__enter__()
        files.add(".bin", 10)
        files._lock.__exit__(None, None, None)  # as if it had been killed
    (tmp_path / "x_mine.bin").write_text("mine")
    with PreallocatedFiles(tmp_path / "x"):
        assert len(list(tmp_path.glob("*.tmp"))) == 1
    with PreallocatedFiles(tmp_path / "y"):
        assert not list(tmp_path.glob("*.tmp"))
    assert names(tmp_path) == ["x_mine.bin"]


@pytest.mark.parametrize("by", ["kill", "interrupt"])
@pytest.mark.parametrize("killed_at", range(5))
def test_ended_between_renames_there_is_never_new_beside_old(tmp_path, monkeypatch, killed_at, by):
    old = {"x.bin": b"old", "x.idx": b"old"}
    for name, content in old.items():
        (tmp_path / name).write_bytes(content)
    steps = iter(range(5))

    class Killed(BaseException):
        pass

    def dying(method):
        def call(self, *arguments, **keywords):
            if next(steps) == killed_at:
                raise Killed
            return method(self, *arguments, **keywords)

        return call

    files = PreallocatedFiles(tmp_path / "x")
    files.__enter__()
    for name in (".bin", ".idx"):
        files.add(name, 3, b"new")
    with monkeypatch.context() as patch:
        patch.setattr(in_place.Path, "unlink", dying(in_place.Path.unlink))
        patch.setattr(in_place.Path, "replace", dying(in_place.Path.replace))
        with pytest.raises(Killed):
            files.commit(replaced=[".bin", ".idx"])
    if by == "kill":  # nothing more is done, until the next one comes
        files._lock.__exit__(None, None, None)
        files = PreallocatedFiles(tmp_path / "x")
        files.__enter__()
    files.__exit__(None, None, None)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left in ({}, old)


OLD = {"x.bin": b"old", "x.idx": b"old", "x-1.bin": b"old"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield StorePath(f"memory://{uuid.uuid4().hex}/out")
    assert not list((tmp_path / "home").glob(".cache/gristmill/exports/*"))


def read_all(folder):
    return {name: (folder / name).read_bytes() for name, _ in open_folder(folder).list_below()}


def put(folder, content):
    for name, data in content.items():
        store, key = (folder / name).open_store()
        store.put(key, data)


def fill(files):
    for name in (".idx", ".bin"):
        files.add(name, 3, b"new")


def test_they_appear_together_with_what_tells_how_to_read_them_last(folder, monkeypatch):
    keys = []
    write = FsspecStore.put
    monkeypatch.setattr(
        FsspecStore, "put", lambda store, key, *rest, **more: keys.append(key) or write(store, key, *rest, **more)
    )
    with UploadedFiles(f"{folder}/x") as files:
        fill(files)
        assert not [name for name in read_all(folder) if name.startswith("x")]
        assert files.commit() == [folder / "x.idx", folder / "x.bin"]
    assert read_all(folder) == {"x.idx": b"new", "x.bin": b"new"}
    names = [key.rpartition("/")[2] for key in keys]
    assert names.index("journal.json") < names.index("x.bin") < names.index("x.idx")


@pytest.mark.parametrize("by", ["kill", "interrupt"])
@pytest.mark.parametrize("ended_at", range(5))
def test_ended_at_any_moment_there_is_never_new_beside_old(folder, monkeypatch, ended_at, by):
    others = {"y.bin": b"other", "sub/x.bin": b"other"}
    put(folder, OLD | others)
    requests = iter(range(5))

    class Ended(BaseException):
        pass

    def end(method):
        def call(store, key, *arguments, **keywords):
            is_beat = not isinstance(key, list) and key.endswith(".beat")  # of the lease's own thread
            if not is_beat and next(requests) == ended_at:
                raise Ended
            return method(store, key, *arguments, **keywords)

        return call

    files = UploadedFiles(f"{folder}/x")
    files.__enter__()
    assert [name for name in (".bin", ".idx", "-1.bin", "-2.bin") if files.exists(name)] == [".bin", ".idx", "-1.bin"]
    fill(files)
    with monkeypatch.context() as patch:
        patch.setattr(FsspecStore, "put", end(FsspecStore.put))
        patch.setattr(FsspecStore, "delete", end(FsspecStore.delete))
        with pytest.raises(Ended):
            files.commit(replaced=[".bin", ".idx", "-1.bin"])
    if by == "kill":  # nothing more is done, until the next one comes
        files._lease.__exit__(None, None, None)
        with UploadedFiles(f"{folder}/x"):
            left = read_all(folder)
        files._stack.pop_all()
        files._local.__exit__(None, None, None)
    else:
        files.__exit__(None, None, None)
        left = read_all(folder)
    visible = {name: data for name, data in left.items() if not name.startswith(".gristmill")}
    assert visible in (others, OLD | others)
    if by == "interrupt":
        assert visible == left, "nothing hidden stays either"


def test_one_writer_at_a_time(folder):
    with UploadedFiles(f"{folder}/x") as files:
        with pytest.raises(FolderLockedError, match="in use"), UploadedFiles(f"{folder}/x"):
            pass
        fill(files)
        files.commit()
    assert set(read_all(folder)) == {"x.idx", "x.bin"}


def test_who_has_lost_the_lease_deletes_nothing(folder):
    with UploadedFiles(f"{folder}/x") as files:
        fill(files)
        hidden = files._hidden_key.rpartition("/")[2]
        of_the_other = {"x.bin": b"new", f"{hidden}/00000002.json": b"{}", f"{hidden}/journal.json": b'["x.bin"]'}
        put(folder, of_the_other)
        with pytest.raises(LeaseLostError):
            files.commit()
    assert read_all(folder).items() >= of_the_other.items()


@pytest.mark.parametrize("name", ["../x.bin", "/x.bin", 5])
def test_a_journal_of_others_deletes_nothing_elsewhere(folder, name):
    put(folder, {"x.bin": b"old"})
    with UploadedFiles(f"{folder}/x") as files:
        hidden = files._hidden_key.rpartition("/")[2]
    put(folder, {f"{hidden}/journal.json": json.dumps(["x.bin", name]).encode()})
    with pytest.raises(DamagedDatasetError, match="damaged"), UploadedFiles(f"{folder}/x"):
        pass
    assert read_all(folder)["x.bin"] == b"old"
