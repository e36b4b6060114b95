import errno
import os

import pytest

from gristmill.storage import preallocated as in_place
from gristmill.storage.preallocated import PreallocatedFiles, write_at


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
