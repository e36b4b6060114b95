import os
import pickle
import socket

import pytest

from gristmill.core.errors import FolderLockedError, GristmillError
from gristmill.storage.lock import FolderLock


def test_a_second_taker_is_told_who_holds_the_folder(tmp_path):
    with FolderLock(tmp_path):
        with pytest.raises(FolderLockedError) as caught, FolderLock(tmp_path):
            pass
        assert str(os.getpid()) in str(caught.value)
        assert socket.gethostname() in str(caught.value)
        assert isinstance(pickle.loads(pickle.dumps(caught.value)), GristmillError)
        with pytest.raises(FolderLockedError), FolderLock(tmp_path):
            pass
    with FolderLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_dead_run_left_locks_nothing(tmp_path):
    FolderLock(tmp_path).path.write_text('{"pid": 1, "host": "elsewhere"}')
    with FolderLock(tmp_path):
        assert str(os.getpid()) in FolderLock(tmp_path).path.read_text()


@pytest.mark.parametrize("content", ["", "no json", "[]", "{}"])
def test_a_holder_that_has_not_written_its_name_holds_all_the_same(tmp_path, content):
    with FolderLock(tmp_path) as lock:
        lock.path.write_text(content)
        with pytest.raises(FolderLockedError, match="in use"), FolderLock(tmp_path):
            pass


def test_folders_do_not_meet(tmp_path):
    (tmp_path / "a").mkdir()
    with FolderLock(tmp_path), FolderLock(tmp_path / "a"):
        pass
