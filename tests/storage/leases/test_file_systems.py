import pytest

from gristmill.storage.leases import file_systems
from gristmill.storage.leases.file_systems import find_file_system, is_shared_file_system

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
    monkeypatch.setattr(file_systems, "find_file_system", lambda folder: kind)
    assert is_shared_file_system("/mnt")
