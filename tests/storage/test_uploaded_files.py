"""Files that are made here and appear together on a store, whatever happens on the way."""

import json
import uuid

import pytest

from gristmill.core.errors import DamagedDatasetError, FolderLockedError, LeaseLostError
from gristmill.storage.locations import StorePath, list_files_below
from gristmill.storage.stores.fsspec_store import FsspecStore
from gristmill.storage.uploaded_files import UploadedFiles

OLD = {"x.bin": b"old", "x.idx": b"old", "x-1.bin": b"old"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield StorePath(f"memory://{uuid.uuid4().hex}/out")
    assert not list((tmp_path / "home").glob(".cache/gristmill/exports/*"))


def read_all(folder):
    return {name: (folder / name).read_bytes() for name, _ in list_files_below(folder)}


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
