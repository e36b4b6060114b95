"""What every folder promises, on a disk or on a store."""

import os
import uuid

import pytest

from gristmill.core.errors import DamagedDatasetError, FolderLockedError
from gristmill.storage.commit import write_file
from gristmill.storage.files import map_files, read_range
from gristmill.storage.folders import KnownFiles, open_folder
from gristmill.storage.locations import is_remote, parse_location

FILES = {"a": b"one", "sub/b": b"four", "sub/deep/.hidden": b"", "subway/c": b"c"}


@pytest.fixture(params=["local", "memory", "s3"])
def place(request, tmp_path):
    if request.param == "local":
        return tmp_path / "out"
    if request.param == "memory":
        return parse_location(f"memory://{uuid.uuid4().hex}/out")
    return parse_location(f"{request.getfixturevalue('s3').url}/out")


@pytest.fixture
def filled(place):
    for path, content in FILES.items():
        write_file(place / path, content, "test")
    return place


def list_paths(place):
    return sorted(path for path, _ in open_folder(place).list_below())


def test_a_folder_that_is_not_there_is_empty(place):
    folder = open_folder(place)
    assert (list(folder.list_below()), folder.measure(["a"]), folder.find_obstacle()) == ([], {}, None)
    folder.remove(["a"])
    folder.remove_tree()
    folder.abort_uploads()
    assert not place.exists()


def test_files_are_listed_and_measured(filled):
    folder = open_folder(filled)
    assert sorted(folder.list_below()) == sorted((path, len(content)) for path, content in FILES.items())
    states = folder.measure(["a", "sub/b", "missing", "sub/deep/.hidden"])
    assert {path: state.num_bytes for path, state in states.items()} == {"a": 3, "sub/b": 4, "sub/deep/.hidden": 0}
    write_file(filled / "a", b"two", "test")
    after = folder.measure(["a", "sub/b"])
    assert after["sub/b"] == states["sub/b"]
    assert after["a"].version != states["a"].version
    assert folder.is_remote == is_remote(filled / "a")


def test_a_move_gives_files_other_names(filled):
    folder = open_folder(filled)
    folder.move([("a", "new/a"), ("sub/b", "b")])
    assert ((filled / "new/a").read_bytes(), (filled / "b").read_bytes()) == (b"one", b"four")
    assert (filled / "a").exists() != folder.can_rename


def test_removed_files_leave_no_empty_folders(filled):
    open_folder(filled).remove(["sub/deep/.hidden", "sub/b", "missing"])
    assert list_paths(filled) == ["a", "subway/c"]
    assert not (filled / "sub").exists()


def test_a_tree_is_removed_but_for_what_is_kept(filled):
    write_file(filled.parent / "other", b"not ours", "test")
    folder = open_folder(filled)
    folder.remove_tree("sub/b".__eq__)
    assert list_paths(filled) == ["sub/b"]
    folder.remove_tree()
    assert not filled.exists()
    assert list_paths(filled.parent) == ["other"]


def test_files_are_read_in_order_and_by_range(filled):
    paths = [filled / path for path in ("sub/b", "a", "missing", "subway/c")]
    contents = map_files(paths)
    assert [bytes(next(contents)), bytes(next(contents))] == [b"four", b"one"]
    with pytest.raises(FileNotFoundError):
        next(contents)
    assert (read_range(str(paths[0]), 1, 3), read_range(str(paths[0]), 2, 9)) == (b"ou", b"ur")


def test_known_files_have_their_sizes(filled):
    known = KnownFiles(filled)
    assert (known.find_size("sub/b"), known.find_size("missing")) == (4, None)
    write_file(filled / "missing", b"12345", "test")
    known.add("missing", 5)
    assert known.find_size("missing") == 5


def test_no_path_leaves_a_local_folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out/link").symlink_to(tmp_path)
    (tmp_path / "out/a").write_text("a")
    folder = open_folder(tmp_path / "out")
    for path in ("../victim", "link/victim", "/etc/hosts"):
        for act in (folder.remove, folder.measure, lambda paths: folder.move([*((path, "b") for path in paths)])):
            with pytest.raises(DamagedDatasetError):
                act(["a", path])
    folder.remove_tree()
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "out").exists()


def test_what_keeps_a_run_from_writing_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert open_folder(tmp_path / "file/out").find_obstacle() == f"{tmp_path}/file is a file"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert open_folder(tmp_path / "new/out").find_obstacle() == f"no permission in {tmp_path}"


def test_a_lock_is_for_local_folders(place, tmp_path):
    lock = open_folder(place).lock()
    assert (lock is None) == is_remote(place)
    if lock is not None:
        place.mkdir()
        with lock:
            assert lock.is_held()
            with pytest.raises(FolderLockedError), open_folder(place).lock():
                pass
        assert not lock.is_held()
