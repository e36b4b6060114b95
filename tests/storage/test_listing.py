"""What a folder holds, on a disk and on a store."""

import os

import pytest

from gristmill.core.errors import GristmillError
from gristmill.storage.listing import find_remote, keep_in_memory, list_names, stat_path, version_of


def test_a_version_changes_with_the_file(tmp_path):
    path = tmp_path / "a"
    path.write_text("one")
    before = version_of(path.stat())
    os.utime(path, ns=(1, int(before) + 1))
    assert version_of(path.stat()) != before


def test_what_is_neither_file_nor_folder_is_refused(tmp_path):
    assert stat_path(str(tmp_path / "missing")) is None
    (tmp_path / "file").touch()
    assert stat_path(str(tmp_path / "file/below")) is None
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((GristmillError, OSError)):
        stat_path(str(tmp_path / "pipe"))


def test_a_store_tells_files_from_folders():
    url = keep_in_memory("listing/a/b.txt", b"four")
    folder = url.rpartition("/")[0]
    file, is_folder = find_remote(url)
    assert file is not None
    assert (file[1], is_folder) == (4, False)
    assert find_remote(folder) == (None, True)
    assert find_remote(f"{folder}/missing") == (None, False)
    assert [size and size[1] for size in list_names(folder).values()] == [4]
    assert list(list_names(folder.rpartition("/")[0]).values()) == [None]
    assert list_names(f"{folder}/missing") == {}
