import os
import pickle
import socket

import pytest

from gristmill.core.errors import DamagedDatasetError, FolderLockedError, GristmillError
from gristmill.storage import lock
from gristmill.storage.lock import LOCK_NAME, FolderLock, find_file_system, is_shared_file_system


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


@pytest.mark.parametrize("kind", ["hard link", "pipe"])
def test_what_is_no_file_of_ours_is_not_opened_as_lock(tmp_path, kind):
    victim, folder = tmp_path / "victim", tmp_path / "out"
    folder.mkdir()
    victim.write_text("precious")
    if kind == "pipe":
        os.mkfifo(folder / LOCK_NAME)
    else:
        (folder / LOCK_NAME).hardlink_to(victim)
    with pytest.raises(DamagedDatasetError, match=r"hard link|not a regular file"), FolderLock(folder):
        pass
    assert victim.read_text() == "precious"


MOUNTS = r"""22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:30 / /mnt/cluster rw shared:2 - nfs4 server:/x rw
31 22 0:31 / /mnt/cluster/fast rw shared:3 - lustre mgs:/y rw
32 22 0:32 / /mnt/with\040space rw - fuse.s3fs s3fs rw
33 22 0:33 / /mnt/hidden rw - xfs /dev/a rw
34 22 0:34 / /mnt/hidden rw - ceph mon:/ rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/x", "ext4"),
        ("/mnt/cluster/out", "nfs4"),
        ("/mnt/cluster", "nfs4"),
        ("/mnt/clusters", "ext4"),
        ("/mnt/cluster/fast/a/b", "lustre"),
        ("/mnt/with space/a", "fuse.s3fs"),
        ("/mnt/hidden/a", "ceph"),
    ],
)
def test_the_deepest_mount_counts(folder, kind):
    assert find_file_system(folder, MOUNTS) == kind


def test_a_temporary_folder_is_local(tmp_path):
    assert not is_shared_file_system(tmp_path)


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "wekafs", "virtiofs", "fuse", "fuse.sshfs"])
def test_what_others_can_mount_is_shared(kind, monkeypatch):
    monkeypatch.setattr(lock, "find_file_system", lambda folder: kind)
    assert is_shared_file_system("/mnt")
